//! Data-parallel training as one rank sees it.
//!
//! Every step draws one global batch, the same on every rank, and cuts it into consecutive ranges,
//! one for each rank. The average weights each rank's mean gradient by its number of samples. It is
//! therefore the mean gradient of the global batch, whatever the shares.

use crate::digits::{DigitBatches, DigitSample, Digits};
use crate::mlp::{self, PARAMETERS};
use std::num::NonZeroU32;
use std::ops::Range;

/// 97 samples: the batch of one training step, of all ranks together. A prime number, so that no
/// split among ranks is even.
/// Tested by `shares_cut_the_batch_without_gap_or_overlap`.
pub const GLOBAL_BATCH: usize = 97;
/// 80 training steps: the default of a quickstart, which is 5.4 passes over the training data. The
/// number is chosen, enough for a test accuracy of 0.967.
pub const STEPS_DEFAULT: NonZeroU32 = NonZeroU32::new(80).unwrap();
/// 502,667 elements: as many as each rank contributes to the average of one training step, those of
/// the gradient and behind them the loss.
pub const EXCHANGED_ELEMENTS: usize = PARAMETERS + 1;

/// 672: the seed of the initial model parameters, equal on all ranks and in the reference that
/// trains in one process. Any number would do.
pub(crate) const PARAMETER_SEED: u64 = 672;
/// 97: the seed of the order of training samples, equal on all ranks and in the reference that
/// trains in one process. Any number would do.
pub(crate) const ORDER_SEED: u64 = 97;
/// 0.05: the learning rate of gradient descent, by which a step multiplies the velocity. With
/// [`MOMENTUM`], it gives 0.967 test accuracy after [`STEPS_DEFAULT`] steps.
/// Tested by `uneven_ranks_end_where_one_process_does`.
pub(crate) const LEARNING_RATE: f32 = 0.05;
/// 0.9 of the velocity of gradient descent is kept by each step, which then adds the gradient. The
/// momentum is chosen, as usual.
pub(crate) const MOMENTUM: f32 = 0.9;

/// The range of every global batch that one rank computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataParallelRange(Range<usize>);

/// Why shares do not divide a global batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// The shares leave samples out or use them twice.
    #[error("the shares {0:?} do not sum to the global batch of {GLOBAL_BATCH} samples")]
    Sum(Vec<u64>),
    /// A rank has no share.
    #[error("rank {rank} has no share: there are {shares}")]
    Rank {
        /// The rank.
        rank: usize,
        /// Number of shares.
        shares: usize,
    },
}

impl DataParallelRange {
    /// Returns the range of `rank`, given that rank r computes `shares[r]` samples of each batch.
    ///
    /// # Errors
    /// When the shares do not sum to [`GLOBAL_BATCH`] or `rank` has no share.
    pub fn from_shares(shares: &[u64], rank: usize) -> Result<Self, ShareError> {
        let sum = shares.iter().try_fold(0, |sum: u64, share| sum.checked_add(*share));
        if sum != Some(GLOBAL_BATCH as u64) {
            return Err(ShareError::Sum(shares.to_vec()));
        }
        let Some(own) = shares.get(rank) else {
            let shares = shares.len();
            return Err(ShareError::Rank { rank, shares });
        };
        // Neither exceeds the global batch, which is their sum.
        let start = shares[..rank].iter().sum::<u64>() as usize;
        Ok(Self(start..start + *own as usize))
    }

    /// Returns the weight of this rank in an average of gradients: its number of samples.
    pub fn weight(&self) -> f64 {
        self.0.len() as f64
    }
}

/// Result of a training.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// The final parameters.
    pub parameters: Vec<f32>,
    /// Mean loss over the last global batch, in nats.
    pub loss: f32,
}

/// Trains the network for `steps` steps as the rank that computes `share` of each batch.
///
/// `average` replaces the buffer of [`EXCHANGED_ELEMENTS`] elements by the mean over all ranks,
/// weighted by the second argument of `average`. A rank without samples contributes zeros with
/// weight 0.
/// `progress` receives the number of each step, from 1, and the mean loss over its global batch.
///
/// # Errors
/// The first error of `average`.
pub async fn train_rank_in_parallel<E>(
    digits: &Digits,
    share: &DataParallelRange,
    steps: NonZeroU32,
    mut average: impl AsyncFnMut(&mut [f32], f64) -> Result<(), E>,
    mut progress: impl FnMut(u32, f32),
) -> Result<Trained, E> {
    let mut parameters = mlp::initial_mlp_parameters(PARAMETER_SEED);
    // The optimiser's state is in f64, like the reference's: in f32 its rounding alone would put a
    // run of 2,000 steps 8e-6 away from the reference.
    let mut exact: Vec<f64> = parameters.iter().map(|p| f64::from(*p)).collect();
    let mut velocity = vec![0.0; PARAMETERS];
    let mut exchanged = vec![0.0; EXCHANGED_ELEMENTS];
    let mut batches = DigitBatches::<GLOBAL_BATCH>::new(ORDER_SEED);
    for step in 1..=steps.get() {
        let batch = batches.draw_batch();
        let own: Vec<&DigitSample> =
            batch[share.0.clone()].iter().map(|i| &digits.train[*i]).collect();
        let (gradient, loss) = exchanged.split_at_mut(PARAMETERS);
        loss[0] = mlp::mlp_loss_and_gradient(&parameters, &own, gradient);
        average(&mut exchanged, share.weight()).await?;
        descend_gradient_in_parallel(&mut exact, &mut velocity, &exchanged[..PARAMETERS]);
        round_parameters_in_parallel(&exact, &mut parameters);
        progress(step, exchanged[PARAMETERS]);
    }
    let loss = exchanged[PARAMETERS];
    Ok(Trained { parameters, loss })
}

/// Moves the parameters by one step of gradient descent with momentum, and updates the velocity.
fn descend_gradient_in_parallel(parameters: &mut [f64], velocity: &mut [f64], gradient: &[f32]) {
    for ((parameter, velocity), gradient) in parameters.iter_mut().zip(velocity).zip(gradient) {
        *velocity = f64::from(MOMENTUM) * *velocity + f64::from(*gradient);
        *parameter -= f64::from(LEARNING_RATE) * *velocity;
    }
}

/// Rounds the exact parameters to those with which the network computes.
fn round_parameters_in_parallel(exact: &[f64], parameters: &mut [f32]) {
    for (parameter, exact) in parameters.iter_mut().zip(exact) {
        *parameter = *exact as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference_training::{self, difference_from_reference_training};
    use std::convert::Infallible;
    use std::pin::pin;
    use std::sync::{Barrier, Mutex};
    use std::task::{Context, Poll, Waker};

    const SHARES: [u64; 4] = [22, 21, 11, 43];

    /// An average over threads in place of gateways: f32 sums in rank order.
    struct ThreadAverage {
        posted: Mutex<Vec<(Vec<f32>, f32)>>,
        all_here: Barrier,
    }

    impl ThreadAverage {
        fn new(ranks: usize) -> Self {
            Self {
                posted: Mutex::new(vec![(Vec::new(), 0.0); ranks]),
                all_here: Barrier::new(ranks),
            }
        }

        /// Replaces the buffer of a rank by the weighted mean over all ranks.
        fn average(&self, rank: usize, buffer: &mut [f32], weight: f64) {
            self.posted.lock().unwrap()[rank] = (buffer.to_vec(), weight as f32);
            self.all_here.wait();
            buffer.fill(0.0);
            let posted = self.posted.lock().unwrap().clone();
            let total: f32 = posted.iter().map(|(_, weight)| weight).sum();
            for (contribution, weight) in &posted {
                for (sum, element) in buffer.iter_mut().zip(contribution) {
                    *sum += element * (weight / total);
                }
            }
            self.all_here.wait();
        }
    }

    /// Polls a future that is ready at once.
    fn run_now<F: Future>(future: F) -> F::Output {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => output,
            Poll::Pending => unreachable!("it never waits"),
        }
    }

    /// Trains every rank on a thread of its own.
    fn train_all(
        digits: &Digits,
        shares: &[u64],
        steps: u32,
        weight: impl Fn(f64) -> f64 + Sync,
    ) -> Vec<Trained> {
        let (exchange, weight) = (&ThreadAverage::new(shares.len()), &weight);
        let steps = NonZeroU32::new(steps).unwrap();
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..shares.len())
                .map(|rank| {
                    let share = DataParallelRange::from_shares(shares, rank).unwrap();
                    scope.spawn(move || {
                        let average = async |buffer: &mut [f32], samples: f64| {
                            exchange.average(rank, buffer, weight(samples));
                            Ok::<(), Infallible>(())
                        };
                        run_now(train_rank_in_parallel(digits, &share, steps, average, |_, _| ()))
                            .unwrap()
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn uneven_ranks_end_where_one_process_does() {
        let digits = Digits::load();
        let ranks = train_all(&digits, &SHARES, STEPS_DEFAULT.get(), |samples| samples);
        for rank in &ranks[1..] {
            assert_eq!(rank, &ranks[0], "bit-identical");
        }
        let reference = reference_training::run_reference_training(&digits, STEPS_DEFAULT);
        let difference =
            difference_from_reference_training(&ranks[0].parameters, &reference.parameters);
        let accuracy = mlp::mlp_accuracy(&ranks[0].parameters, &digits.test);
        println!("difference {difference:e}, accuracy {accuracy}, loss {}", ranks[0].loss);
        assert!(difference < 1e-6, "{difference:e}");
        assert!((f64::from(ranks[0].loss) - f64::from(reference.loss)).abs() < 1e-5);
        assert!(accuracy >= 0.93, "{accuracy}");
    }

    #[test]
    fn unweighted_averages_miss_the_reference() {
        let digits = Digits::load();
        let steps = 5;
        let unweighted = train_all(&digits, &SHARES, steps, |_| 1.0);
        let reference =
            reference_training::run_reference_training(&digits, NonZeroU32::new(steps).unwrap());
        let difference =
            difference_from_reference_training(&unweighted[0].parameters, &reference.parameters);
        assert!(difference > 1e-4, "{difference:e}");
    }

    #[test]
    fn a_rank_without_samples_changes_nothing() {
        let digits = Digits::load();
        let with_idle = train_all(&digits, &[60, 0, 37], 2, |samples| samples);
        let without = train_all(&digits, &[60, 37], 2, |samples| samples);
        assert_eq!(with_idle[1], with_idle[0]);
        assert_eq!(with_idle[0], without[0]);
    }

    #[test]
    fn a_failed_average_ends_the_training_after_reported_steps() {
        let digits = Digits::load();
        let share = DataParallelRange::from_shares(&[97], 0).unwrap();
        let mut seen = Vec::new();
        let mut calls = 0;
        let average = async |_: &mut [f32], weight: f64| {
            assert_eq!(weight, 97.0);
            calls += 1;
            if calls < 3 { Ok(()) } else { Err("link lost") }
        };
        let progress = |step, loss| seen.push((step, loss));
        let got =
            run_now(train_rank_in_parallel(&digits, &share, STEPS_DEFAULT, average, progress));
        assert_eq!(got, Err("link lost"));
        assert_eq!(seen.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [1, 2]);
        assert!(seen[0].1 > 1.5, "ten digits not yet distinguished: {seen:?}");
    }

    #[test]
    fn shares_cut_the_batch_without_gap_or_overlap() {
        let mut next = 0;
        for (rank, share) in SHARES.iter().enumerate() {
            let DataParallelRange(range) = DataParallelRange::from_shares(&SHARES, rank).unwrap();
            assert_eq!((range.start, range.len()), (next, *share as usize));
            next = range.end;
        }
        assert_eq!(next, GLOBAL_BATCH);
        assert_eq!(DataParallelRange::from_shares(&[96], 0), Err(ShareError::Sum(vec![96])));
        let overflowing = vec![u64::MAX, 98];
        assert_eq!(
            DataParallelRange::from_shares(&overflowing, 0),
            Err(ShareError::Sum(overflowing.clone()))
        );
        let missing = ShareError::Rank { rank: 1, shares: 1 };
        assert_eq!(DataParallelRange::from_shares(&[97], 1), Err(missing));
    }
}
