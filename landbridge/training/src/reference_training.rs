//! The training in one process, for comparison: each step uses the whole global batch, with
//! parameters and momentum in f64 and without any exchange.

use crate::data_parallel::{
    GLOBAL_BATCH, LEARNING_RATE, MOMENTUM, ORDER_SEED, PARAMETER_SEED, Trained,
};
use crate::digits::{DigitBatches, Digits};
use crate::mlp::{self, PARAMETERS};
use std::num::NonZeroU32;

/// Trains the network for `steps` steps in one process, on whole global batches.
pub fn run_reference_training(digits: &Digits, steps: NonZeroU32) -> Trained {
    let mut parameters = mlp::initial_mlp_parameters(PARAMETER_SEED);
    let mut exact: Vec<f64> = parameters.iter().map(|p| f64::from(*p)).collect();
    let mut velocity = vec![0.0_f64; PARAMETERS];
    let mut gradient = vec![0.0; PARAMETERS];
    let mut batches = DigitBatches::<GLOBAL_BATCH>::new(ORDER_SEED);
    let mut loss = 0.0;
    for _ in 0..steps.get() {
        let batch = batches.draw_batch().map(|index| &digits.train[index]);
        loss = mlp::mlp_loss_and_gradient(&parameters, &batch, &mut gradient);
        for index in 0..PARAMETERS {
            velocity[index] = f64::from(MOMENTUM) * velocity[index] + f64::from(gradient[index]);
            exact[index] -= f64::from(LEARNING_RATE) * velocity[index];
            parameters[index] = exact[index] as f32;
        }
    }
    Trained { parameters, loss }
}

/// Returns the largest difference between two parameter vectors, or NaN if any element is NaN.
///
/// # Panics
/// Unless the vectors are equally long.
pub fn difference_from_reference_training(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "parameters");
    let differences = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs());
    // `f64::max` would skip a NaN.
    differences.fold(0.0, |most, d| if d > most || d.is_nan() { d } else { most })
}
