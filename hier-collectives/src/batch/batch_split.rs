//! Rebalancing: a batch is split anew at step boundaries as speeds drift.

use super::batch_shares::{BatchError, batch_shares_within};
use crate::codec::fnv1a_hash;
use std::collections::VecDeque;

/// 5 training steps: another split of the batch, by median speeds of these steps, is adopted only
/// if it would have shortened each of them by 5 %. The number is chosen, since speeds of ranks
/// fluctuate.
/// Tested by `fluctuating_speeds_change_nothing`.
const REBALANCE_STEPS: usize = 5;

/// 0.05 of a training step's time by the present split: another split must save at least so much in
/// each recent step, or the present split stays. The fraction is chosen, since each change costs a
/// trainer a batch of another size.
/// Tested by `a_lasting_change_is_followed_once`.
const REBALANCE_GAIN_MIN: f64 = 0.05;

/// The split of a global batch over time, step by step.
///
/// It depends on its inputs alone, so ranks that pass the same speeds have the same split. A
/// fluctuation changes nothing: another split must have been better in each of the last steps.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchSplit {
    global_batch: u64,
    limits: Vec<u64>,
    /// Expected speeds, on which the first split is based.
    expected: Vec<f64>,
    shares: Vec<u64>,
    /// Speeds in the last steps, newest last.
    seen: VecDeque<Vec<f64>>,
}

impl BatchSplit {
    /// Makes the first split, by expected speeds, as [`batch_shares_within`] makes it.
    ///
    /// # Errors
    /// The errors of [`batch_shares_within`].
    pub fn new(global_batch: u64, speeds: &[f64], limits: &[u64]) -> Result<Self, BatchError> {
        let shares = batch_shares_within(global_batch, speeds, limits)?;
        let (limits, expected) = (limits.to_vec(), speeds.to_vec());
        Ok(Self {
            global_batch,
            limits,
            expected,
            shares,
            seen: VecDeque::with_capacity(REBALANCE_STEPS),
        })
    }

    /// Returns each rank's samples of the next step, which add up to the global batch.
    pub fn shares(&self) -> &[u64] {
        &self.shares
    }

    /// Records all ranks' speeds in the last step, in samples per unit of time. Once five steps are
    /// recorded, compares the present split with one by each rank's median speed of these steps.
    ///
    /// The new split is adopted if it saves 5 % of the time of each recorded step. The records then
    /// begin anew, and this returns true. A rank without samples passes its last speed.
    ///
    /// # Errors
    /// [`BatchError`]: the speeds make no split; nothing has changed.
    pub fn handle_speeds(&mut self, speeds: &[f64]) -> Result<bool, BatchError> {
        // Invalid speeds are refused before they are stored.
        batch_shares_within(self.global_batch, speeds, &self.limits)?;
        if self.seen.len() == REBALANCE_STEPS {
            self.seen.pop_front();
        }
        self.seen.push_back(speeds.to_vec());
        if self.seen.len() < REBALANCE_STEPS {
            return Ok(false);
        }
        let usual: Vec<f64> = (0..speeds.len()).map(|rank| self.median_speed(rank)).collect();
        let other = batch_shares_within(self.global_batch, &usual, &self.limits)?;
        let better = |speeds: &Vec<f64>| {
            batch_split_makespan(&other, speeds)
                <= (1.0 - REBALANCE_GAIN_MIN) * batch_split_makespan(&self.shares, speeds)
        };
        // An empty batch takes no time, and no split of it is better.
        let changes = other != self.shares && self.seen.iter().all(better);
        if changes {
            self.shares = other;
            self.seen.clear();
        }
        Ok(changes)
    }

    /// Takes all ranks' speeds and digests after an exchange; returns true if the batch is split
    /// anew.
    ///
    /// A speed of 0 is not measured yet. The digests are [`Self::agreed_digest`] and
    /// [`Self::state_digest`] of each rank. With equal states, speeds are handled as by
    /// [`Self::handle_speeds`]. An exchange that failed on some ranks only leaves them with
    /// different states; the next one that succeeds then splits anew by its speeds alone.
    ///
    /// # Errors
    /// [`BatchError`]: agreed digests differ, or the speeds make no split; nothing has changed.
    pub fn handle_exchange(
        &mut self,
        speeds: &[f64],
        agreed: &[u64],
        states: &[u64],
    ) -> Result<bool, BatchError> {
        let unlike = |of: &[u64]| of.iter().position(|one| *one != of[0]);
        if let Some(rank) = unlike(agreed) {
            return Err(BatchError::Unlike { rank });
        }
        let speeds = self.speeds_in_one_unit(speeds);
        if unlike(states).is_none() {
            return self.handle_speeds(&speeds);
        }
        let shares = batch_shares_within(self.global_batch, &speeds, &self.limits)?;
        self.seen.clear();
        self.shares = shares;
        Ok(true)
    }

    /// Hashes the inputs of the split on which all ranks must agree: global batch, limits, expected
    /// speeds.
    pub fn agreed_digest(&self) -> u64 {
        let expected = self.expected.iter().map(|speed| speed.to_bits());
        batch_split_digest([self.global_batch].iter().chain(&self.limits).copied().chain(expected))
    }

    /// Hashes the state of the split: the current shares and the stored speeds.
    pub fn state_digest(&self) -> u64 {
        let seen = self.seen.iter().flatten().map(|speed| speed.to_bits());
        batch_split_digest(self.shares.iter().copied().chain(seen))
    }

    /// Replaces each speed of 0, which is not measured, by the expected one, in the unit of the
    /// measured ones. Returns the expected speeds if none is measured.
    fn speeds_in_one_unit(&self, speeds: &[f64]) -> Vec<f64> {
        let pairs = || speeds.iter().zip(&self.expected);
        if speeds.len() != self.expected.len() || !speeds.contains(&0.0) {
            return speeds.to_vec();
        }
        let measured = || pairs().filter(|(speed, _)| **speed != 0.0);
        if measured().next().is_none() {
            return self.expected.clone();
        }
        let total: f64 = measured().map(|(speed, _)| speed).sum();
        let expected: f64 = measured().map(|(_, expected)| expected).sum();
        let usual = |(speed, by_config): (&f64, &f64)| match *speed {
            0.0 => by_config / expected * total,
            measured => measured,
        };
        pairs().map(usual).collect()
    }

    /// Returns the median of a rank's last speeds.
    fn median_speed(&self, rank: usize) -> f64 {
        let mut seen: Vec<f64> = self.seen.iter().map(|speeds| speeds[rank]).collect();
        seen.sort_by(f64::total_cmp);
        seen[seen.len() / 2]
    }
}

/// Returns the FNV-1a hash of numbers.
fn batch_split_digest(values: impl Iterator<Item = u64>) -> u64 {
    fnv1a_hash(&values.flat_map(u64::to_be_bytes).collect::<Vec<u8>>())
}

/// Returns the time that the slowest rank needs for its share of the batch.
fn batch_split_makespan(shares: &[u64], speeds: &[f64]) -> f64 {
    shares.iter().zip(speeds).map(|(share, speed)| *share as f64 / speed).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BATCH_SAMPLES: u64 = 4096;
    const RANKS: usize = 11;

    fn split(speeds: &[f64]) -> BatchSplit {
        BatchSplit::new(BATCH_SAMPLES, speeds, &vec![u64::MAX; speeds.len()]).expect("can be split")
    }

    /// Makespan of a split, relative to the best.
    fn excess(split: &BatchSplit, speeds: &[f64]) -> f64 {
        batch_split_makespan(split.shares(), speeds)
            / batch_split_makespan(self::split(speeds).shares(), speeds)
    }

    fn fluctuating(speeds: &[f64], fluctuations: &[f64], part: f64) -> Vec<f64> {
        speeds
            .iter()
            .zip(fluctuations)
            .map(|(speed, change)| speed * (1.0 + part * change))
            .collect()
    }

    fn speeds() -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(1.0..4.0, RANKS)
    }

    /// Of each rank in each step, from -1 to 1.
    fn fluctuations(steps: usize) -> impl Strategy<Value = Vec<Vec<f64>>> {
        prop::collection::vec(prop::collection::vec(-1.0..=1.0, RANKS), steps)
    }

    proptest! {
        /// One rank becomes slower or faster for good, while all fluctuate a little.
        #[test]
        fn a_lasting_change_is_followed_once(
            mut speeds in speeds(),
            rank in 0..RANKS,
            factor in prop_oneof![0.3..0.85, 1.6..3.0],
            fluctuations in fluctuations(60),
        ) {
            let mut split = split(&speeds);
            speeds[rank] *= factor;
            let matters = excess(&split, &speeds) > 1.1;
            let mut changes = vec![];
            for (step, fluctuation) in fluctuations.iter().enumerate() {
                if split.handle_speeds(&fluctuating(&speeds, fluctuation, 0.01)).expect("speeds") {
                    changes.push(step);
                }
                prop_assert_eq!(split.shares().iter().sum::<u64>(), BATCH_SAMPLES);
            }
            prop_assert!(changes.len() <= 1, "{changes:?}");
            prop_assert!(!matters || changes == [REBALANCE_STEPS - 1], "{changes:?}");
            prop_assert!(excess(&split, &speeds) <= 1.07, "{}", excess(&split, &speeds));
        }

        /// Speeds that differ by a fifth from step to step, but not for good.
        #[test]
        fn fluctuating_speeds_change_nothing(speeds in speeds(), fluctuations in fluctuations(300)) {
            let mut split = split(&speeds);
            let before = split.clone();
            for fluctuation in &fluctuations {
                split.handle_speeds(&fluctuating(&speeds, fluctuation, 0.1)).expect("speeds");
            }
            prop_assert_eq!(split.shares(), before.shares());
        }

        /// A rank that is slow in some steps, but never for long enough.
        #[test]
        fn an_alternating_rank_changes_nothing(
            speeds in speeds(),
            slow in 1..REBALANCE_STEPS,
            fast in REBALANCE_STEPS..2 * REBALANCE_STEPS,
        ) {
            let mut split = split(&speeds);
            for step in 0..200 {
                let mut now = speeds.clone();
                now[3] *= if step % (slow + fast) < slow { 0.5 } else { 1.0 };
                prop_assert_eq!(split.handle_speeds(&now), Ok(false));
            }
        }

        /// Speeds drift by half a percent a step, for half of the ranks, down to a third.
        #[test]
        fn a_drift_is_followed_in_few_changes(speeds in speeds(), fluctuations in fluctuations(220)) {
            let mut split = split(&speeds);
            let mut changes = 0;
            for (step, fluctuation) in fluctuations.iter().enumerate() {
                let drift = 0.995_f64.powi(i32::try_from(step).expect("few"));
                let now: Vec<f64> = speeds
                    .iter()
                    .enumerate()
                    .map(|(rank, speed)| if rank % 2 == 0 { speed * drift } else { *speed })
                    .collect();
                changes += u32::from(
                    split.handle_speeds(&fluctuating(&now, fluctuation, 0.01)).expect("speeds"),
                );
                prop_assert!(excess(&split, &now) <= 1.15, "{}", excess(&split, &now));
            }
            prop_assert!(changes <= 20, "{changes}");
        }

        /// A part of each step's time is fixed, so that speeds depend on shares; splits still
        /// settle.
        #[test]
        fn the_effect_of_a_share_on_speed_is_no_drift(
            speeds in speeds(),
            fixed in 0.0..200.0,
        ) {
            let mut split = split(&[1.0; RANKS]);
            let took = |split: &BatchSplit| -> Vec<f64> {
                let shares = split.shares().iter().zip(&speeds);
                shares.map(|(share, speed)| fixed + *share as f64 / speed).collect()
            };
            let mut last_change = 0;
            for step in 0..100 {
                let shares = split.shares().iter().zip(took(&split));
                let seen: Vec<f64> = shares.map(|(share, time)| *share as f64 / time).collect();
                if split.handle_speeds(&seen).expect("speeds") {
                    last_change = step;
                }
            }
            prop_assert!(last_change < 60, "still changing in step {last_change}");
            let (most, least) = took(&split)
                .into_iter()
                .fold((0.0, f64::INFINITY), |(a, b): (f64, f64), t| (a.max(t), b.min(t)));
            prop_assert!(most <= 1.2 * least, "{most} and {least}");
        }
    }

    /// Passes the same speeds to each split; whether each was split anew.
    fn exchange(splits: &mut [BatchSplit], speeds: &[f64]) -> Vec<Result<bool, BatchError>> {
        let agreed: Vec<u64> = splits.iter().map(BatchSplit::agreed_digest).collect();
        let states: Vec<u64> = splits.iter().map(BatchSplit::state_digest).collect();
        splits.iter_mut().map(|s| s.handle_exchange(speeds, &agreed, &states)).collect()
    }

    #[test]
    fn diverged_splits_are_alike_after_one_exchange() {
        let mut splits = vec![split(&[1.0, 1.0, 1.0]); 3];
        for step in 0..4 {
            let changed = exchange(&mut splits, &[1.0, 1.0, 2.0 + 0.01 * f64::from(step)]);
            assert_eq!(changed, vec![Ok(false); 3]);
        }
        // The decisive exchange reaches two of three ranks.
        exchange(&mut splits[..2], &[1.0, 1.0, 2.0]);
        assert_ne!(splits[0].shares(), splits[2].shares());
        let changed = exchange(&mut splits, &[1.0, 1.0, 2.0]);
        assert_eq!(changed, vec![Ok(true); 3]);
        let anew = split_as(&splits[0], &[1.0, 1.0, 2.0]);
        assert!(splits.iter().all(|one| *one == anew));
        assert_eq!(exchange(&mut splits, &[1.0, 1.0, 2.0]), vec![Ok(false); 3]);
        // The stored speeds count as well as the shares.
        exchange(&mut splits[1..], &[1.0, 1.0, 4.0]);
        assert_eq!(exchange(&mut splits, &[1.0, 1.0, 2.0]), vec![Ok(true); 3]);
    }

    #[test]
    fn ranks_that_split_another_batch_are_named() {
        let mut splits = vec![split(&[1.0, 2.0]); 2];
        splits[1] =
            BatchSplit::new(BATCH_SAMPLES, &[1.0, 2.0], &[BATCH_SAMPLES, 3 * BATCH_SAMPLES])
                .expect("splits");
        let before = splits.clone();
        let changed = exchange(&mut splits, &[1.0, 2.0]);
        assert_eq!(changed, vec![Err(BatchError::Unlike { rank: 1 }); 2]);
        assert_eq!(splits, before);
    }

    /// Speeds are expected in any unit, and measured in samples per second.
    #[test]
    fn an_unmeasured_rank_has_its_expected_relative_speed() {
        let mut splits = vec![split(&[1.0, 1.0, 2.0]); 3];
        let before = splits[0].shares().to_vec();
        for _ in 0..2 * REBALANCE_STEPS {
            assert_eq!(exchange(&mut splits, &[100.0, 100.0, 0.0]), vec![Ok(false); 3]);
            assert_eq!(exchange(&mut splits, &[0.0; 3]), vec![Ok(false); 3]);
        }
        assert_eq!(splits[0].shares(), before);
        let mut slow = splits.clone();
        for _ in 0..REBALANCE_STEPS {
            exchange(&mut slow, &[50.0, 100.0, 0.0]);
        }
        assert_eq!(slow[0], split_as(&splits[0], &[50.0, 100.0, 150.0]));
        let mut unlike = split(&[1.0, 1.0, 3.0]);
        assert_ne!(unlike.agreed_digest(), splits[0].agreed_digest());
        let (agreed, states) = ([unlike.agreed_digest(); 3], [1, 2, 3]);
        assert_eq!(unlike.handle_exchange(&[0.0, 10.0, 30.0], &agreed, &states), Ok(true));
        assert_eq!(unlike.shares(), split(&[1.0, 1.0, 3.0]).shares());
    }

    /// The split after splitting anew by these speeds.
    fn split_as(begun: &BatchSplit, speeds: &[f64]) -> BatchSplit {
        let mut split = begun.clone();
        split.shares = self::split(speeds).shares;
        split.seen.clear();
        split
    }

    #[test]
    fn invalid_speeds_change_nothing() {
        let mut split = split(&[1.0, 2.0]);
        let before = split.clone();
        for wrong in [vec![1.0], vec![1.0, 0.0], vec![f64::NAN, 1.0]] {
            assert!(split.handle_speeds(&wrong).is_err());
            assert_eq!(split, before);
        }
        let agreed = vec![split.agreed_digest(); 2];
        for wrong in [[-1.0, 0.0], [f64::INFINITY, 0.0]] {
            let states = vec![split.state_digest(); 2];
            assert!(split.handle_exchange(&wrong, &agreed, &states).is_err());
            assert_eq!(split, before);
        }
        let mut nothing = BatchSplit::new(0, &[1.0, 1.0], &[5, 5]).expect("splits");
        for _ in 0..9 {
            assert_eq!(nothing.handle_speeds(&[1.0, 3.0]), Ok(false));
        }
    }
}
