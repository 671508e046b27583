//! A multi-layer perceptron, 64-672-672-10, whose parameters are one flat f32 vector.
//!
//! The vector holds for each layer the weights, one row per input, then the biases. The activation
//! is (z + sqrt(z^2 + 1) - 1) / 2, a smooth ReLU. The slope of a ReLU jumps at 0: the last bit of a
//! sum would decide whether a sample adds to the gradient, and runs that differ in rounding alone
//! would diverge.

use crate::digits::{CLASSES, DigitSample, PIXELS};
use crate::matrix::{Matrix, multiply_matrices};
use crate::rng::Rng;

/// 502,666 elements: the length of the parameter vector, with weights and biases of all layers.
pub const PARAMETERS: usize = {
    let (mut sum, mut layer) = (0, 0);
    while layer < LAYERS {
        sum += (LAYER_WIDTHS[layer] + 1) * LAYER_WIDTHS[layer + 1];
        layer += 1;
    }
    sum
};

/// 672 units in each of the two hidden layers of the multilayer perceptron. The width is chosen:
/// gradients are then 2 MB.
const HIDDEN_WIDTH: usize = 672;
/// 64, 672, 672 and 10: the numbers of inputs of the perceptron's three layers, and behind them the
/// number of outputs of the last layer.
const LAYER_WIDTHS: [usize; LAYERS + 1] = [PIXELS, HIDDEN_WIDTH, HIDDEN_WIDTH, CLASSES];
/// 3 layers of weights: two hidden ones and the output of the multilayer perceptron.
const LAYERS: usize = 3;

/// Returns the initial parameters of the network for a `seed`, the same on every machine.
pub fn initial_mlp_parameters(seed: u64) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    let mut parameters = Vec::with_capacity(PARAMETERS);
    for widths in LAYER_WIDTHS.windows(2) {
        // He's variance 2 / inputs, as a uniform distribution.
        let bound = (6.0 / widths[0] as f32).sqrt();
        parameters.extend((0..widths[0] * widths[1]).map(|_| bound * rng.signed_unit()));
        parameters.extend((0..widths[1]).map(|_| 0.0));
    }
    parameters
}

/// Overwrites `gradient` with the mean gradient of the loss over `samples`. Returns the mean loss:
/// cross-entropy, in nats. Both are zero without samples.
///
/// # Panics
/// Unless `parameters` and `gradient` have [`PARAMETERS`] elements.
pub fn mlp_loss_and_gradient(
    parameters: &[f32],
    samples: &[&DigitSample],
    gradient: &mut [f32],
) -> f32 {
    if samples.is_empty() {
        gradient.fill(0.0);
        return 0.0;
    }
    let layers = split_mlp_layers(parameters);
    let images = stack_mlp_inputs(samples);
    let passes = mlp_forward_pass(&layers, &images);
    let (loss, mut slopes) = mlp_loss_and_slopes(&passes[LAYERS - 1].outputs, samples);
    let mut rest = gradient;
    for index in (0..LAYERS).rev() {
        let (inputs, outputs) = (LAYER_WIDTHS[index], LAYER_WIDTHS[index + 1]);
        let before = if index == 0 { &images } else { &passes[index - 1].outputs };
        let split = rest.len() - (inputs + 1) * outputs;
        let (earlier, own) = rest.split_at_mut(split);
        let (weights, biases) = own.split_at_mut(inputs * outputs);
        let slopes_matrix = Matrix::new(&slopes, outputs);
        multiply_matrices(Matrix::new(before, inputs).transposed(), slopes_matrix, weights);
        sum_mlp_rows(&slopes, biases);
        if index > 0 {
            let mut below = vec![0.0; samples.len() * inputs];
            let weights = Matrix::new(layers[index].weights, outputs);
            multiply_matrices(slopes_matrix, weights.transposed(), &mut below);
            for (slope, activation) in below.iter_mut().zip(&passes[index - 1].slopes) {
                *slope *= activation;
            }
            slopes = below;
        }
        rest = earlier;
    }
    assert!(rest.is_empty(), "gradient of {PARAMETERS} elements");
    loss
}

/// Returns the fraction of `samples` that the network classifies correctly, 0 to 1; NaN without
/// samples.
///
/// # Panics
/// Unless `parameters` has [`PARAMETERS`] elements.
pub fn mlp_accuracy(parameters: &[f32], samples: &[DigitSample]) -> f64 {
    let samples: Vec<&DigitSample> = samples.iter().collect();
    let passes = mlp_forward_pass(&split_mlp_layers(parameters), &stack_mlp_inputs(&samples));
    let rows = passes[LAYERS - 1].outputs.chunks_exact(CLASSES);
    let right = rows.zip(&samples).filter(|(scores, sample)| {
        let best = (0..CLASSES).max_by(|a, b| scores[*a].total_cmp(&scores[*b]));
        best == Some(usize::from(sample.label))
    });
    right.count() as f64 / samples.len() as f64
}

/// Weights and biases of one layer.
struct Layer<'a> {
    weights: &'a [f32],
    biases: &'a [f32],
}

/// Outputs of one layer for a batch, row by row.
struct LayerOutputs {
    outputs: Vec<f32>,
    /// Slope of the activation at each output. The last layer has no activation.
    slopes: Vec<f32>,
}

/// Returns the weights and biases of each layer as slices of the parameter vector.
fn split_mlp_layers(parameters: &[f32]) -> [Layer<'_>; LAYERS] {
    assert_eq!(parameters.len(), PARAMETERS, "parameters");
    let mut rest = parameters;
    std::array::from_fn(|index| {
        let (inputs, outputs) = (LAYER_WIDTHS[index], LAYER_WIDTHS[index + 1]);
        let (weights, after) = rest.split_at(inputs * outputs);
        let (biases, after) = after.split_at(outputs);
        rest = after;
        Layer { weights, biases }
    })
}

/// Returns the pixels of all samples in one vector, one row for each sample.
fn stack_mlp_inputs(samples: &[&DigitSample]) -> Vec<f32> {
    samples.iter().flat_map(|sample| sample.pixels).collect()
}

/// Computes the outputs of every layer for a batch of images.
fn mlp_forward_pass(layers: &[Layer<'_>; LAYERS], images: &[f32]) -> Vec<LayerOutputs> {
    let mut passes: Vec<LayerOutputs> = Vec::with_capacity(LAYERS);
    for (index, layer) in layers.iter().enumerate() {
        let width = LAYER_WIDTHS[index + 1];
        let mut outputs = vec![0.0; images.len() / PIXELS * width];
        let before = passes.last().map_or(images, |pass| &pass.outputs);
        multiply_matrices(
            Matrix::new(before, LAYER_WIDTHS[index]),
            Matrix::new(layer.weights, width),
            &mut outputs,
        );
        for row in outputs.chunks_exact_mut(width) {
            for (output, bias) in row.iter_mut().zip(layer.biases) {
                *output += bias;
            }
        }
        let last = index == LAYERS - 1;
        let slopes = if last { Vec::new() } else { apply_mlp_activation(&mut outputs) };
        passes.push(LayerOutputs { outputs, slopes });
    }
    passes
}

/// Applies the activation to `values` in place and returns its slopes.
fn apply_mlp_activation(values: &mut [f32]) -> Vec<f32> {
    let activate_value = |value: &mut f32| {
        let root = (*value * *value + 1.0).sqrt();
        let slope = 0.5 + 0.5 * (*value / root);
        *value = 0.5 * (*value + root - 1.0);
        slope
    };
    values.iter_mut().map(activate_value).collect()
}

/// Returns the mean cross-entropy of softmax, and the slope of that mean with respect to every
/// score. Computes in f64, since all gradients of a step follow from these few hundred slopes.
fn mlp_loss_and_slopes(scores: &[f32], samples: &[&DigitSample]) -> (f32, Vec<f32>) {
    let count = samples.len() as f64;
    let mut loss = 0.0;
    let mut slopes = Vec::with_capacity(scores.len());
    for (row, sample) in scores.chunks_exact(CLASSES).zip(samples) {
        let highest = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let powers: [f64; CLASSES] = std::array::from_fn(|c| (f64::from(row[c]) - highest).exp());
        let sum: f64 = powers.iter().sum();
        let label = usize::from(sample.label);
        loss += sum.ln() + highest - f64::from(row[label]);
        slopes.extend((0..CLASSES).map(|class| {
            let wanted = if class == label { 1.0 } else { 0.0 };
            ((powers[class] / sum - wanted) / count) as f32
        }));
    }
    ((loss / count) as f32, slopes)
}

/// Writes the sum of all rows of `values` to `sums`, which has the length of a row.
fn sum_mlp_rows(values: &[f32], sums: &mut [f32]) {
    sums.fill(0.0);
    for row in values.chunks_exact(sums.len()) {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digits::Digits;

    /// Returns the loss, computed in f64 and plain loops for comparison.
    fn loss_f64(parameters: &[f64], samples: &[&DigitSample]) -> f64 {
        let losses = samples.iter().map(|sample| {
            let mut values: Vec<f64> = sample.pixels.iter().map(|p| f64::from(*p)).collect();
            let mut rest = parameters;
            for outputs in &LAYER_WIDTHS[1..] {
                let (weights, after) = rest.split_at(values.len() * outputs);
                let (biases, after) = after.split_at(*outputs);
                let mut next = biases.to_vec();
                for (value, row) in values.iter().zip(weights.chunks_exact(*outputs)) {
                    for (sum, weight) in next.iter_mut().zip(row) {
                        *sum += value * weight;
                    }
                }
                if !after.is_empty() {
                    next.iter_mut().for_each(|z| *z = (*z + z.hypot(1.0) - 1.0) / 2.0);
                }
                (values, rest) = (next, after);
            }
            let sum: f64 = values.iter().map(|score| score.exp()).sum();
            sum.ln() - values[usize::from(sample.label)]
        });
        losses.sum::<f64>() / samples.len() as f64
    }

    #[test]
    fn the_gradient_is_that_of_finite_differences() {
        let digits = Digits::load();
        let samples: Vec<&DigitSample> = digits.train[..3].iter().collect();
        let parameters = initial_mlp_parameters(11);
        let mut got = vec![f32::NAN; PARAMETERS];
        let loss = mlp_loss_and_gradient(&parameters, &samples, &mut got);
        let mut exact: Vec<f64> = parameters.iter().map(|p| f64::from(*p)).collect();
        assert!((loss_f64(&exact, &samples) - f64::from(loss)).abs() < 1e-5);
        // Every 8,191st parameter reaches all weight matrices; the last ten are biases.
        let mut moved = 0;
        for index in (10..PARAMETERS).step_by(8191).chain(PARAMETERS - 10..PARAMETERS) {
            let mut at = |offset: f64| {
                let kept = exact[index];
                exact[index] = kept + offset;
                let loss = loss_f64(&exact, &samples);
                exact[index] = kept;
                loss
            };
            let want = (at(1e-4) - at(-1e-4)) / 2e-4;
            let error = (want - f64::from(got[index])).abs();
            assert!(error < 1e-6 + 1e-5 * want.abs(), "{index}: {want} {}", got[index]);
            moved += u32::from(want.abs() > 1e-4);
        }
        assert!(moved > 30, "{moved} gradients that are not nearly zero");
    }

    #[test]
    fn equal_input_gives_equal_bits() {
        let digits = Digits::load();
        let samples: Vec<&DigitSample> = digits.train[..43].iter().collect();
        let run = || {
            let mut got = vec![0.0; PARAMETERS];
            let loss = mlp_loss_and_gradient(&initial_mlp_parameters(1), &samples, &mut got);
            (loss.to_bits(), got.iter().map(|g| g.to_bits()).collect::<Vec<_>>())
        };
        assert_eq!(run(), run());
        assert_ne!(initial_mlp_parameters(1), initial_mlp_parameters(2));
        assert_eq!(initial_mlp_parameters(1).len(), PARAMETERS);
    }

    #[test]
    fn no_samples_give_zeros() {
        let mut got = vec![f32::NAN; PARAMETERS];
        assert_eq!(mlp_loss_and_gradient(&initial_mlp_parameters(1), &[], &mut got), 0.0);
        assert!(got.iter().all(|g| *g == 0.0));
    }

    #[test]
    fn accuracy_counts_the_highest_score() {
        let digits = Digits::load();
        // Zero weights and a bias towards 7: right on the sevens and nothing else.
        let mut parameters = vec![0.0; PARAMETERS];
        parameters[PARAMETERS - CLASSES + 7] = 1.0;
        let sevens = digits.test.iter().filter(|s| s.label == 7).count();
        assert_eq!(mlp_accuracy(&parameters, &digits.test), sevens as f64 / 360.0);
    }
}
