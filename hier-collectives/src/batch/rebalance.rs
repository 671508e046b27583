//! A batch that is split anew as speeds drift, at step boundaries.

use super::shares::{BatchError, batch_shares_within};
use crate::codec::fnv1a;
use std::collections::VecDeque;

/// Another split must have been better in so many steps one after the other,
const STEPS: usize = 5;
/// by this part of the time of each.
const GAIN: f64 = 0.05;

/// How a global batch is split, step by step.
///
/// What it answers follows from what it was told alone, so that all ranks that tell it the same
/// speeds have the same split. Speeds that breathe change nothing: another split must have been
/// better in each of the last steps.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchSplit {
    global_batch: u64,
    limits: Vec<u64>,
    /// What the first split went by.
    expected: Vec<f64>,
    shares: Vec<u64>,
    /// Speeds in the last steps, newest last.
    seen: VecDeque<Vec<f64>>,
}

impl BatchSplit {
    /// As [`batch_shares_within`] splits it, by speeds that are expected.
    ///
    /// # Errors
    /// [`BatchError`], naming the first rank at fault.
    pub fn new(global_batch: u64, speeds: &[f64], limits: &[u64]) -> Result<Self, BatchError> {
        let shares = batch_shares_within(global_batch, speeds, limits)?;
        let (limits, expected) = (limits.to_vec(), speeds.to_vec());
        Ok(Self { global_batch, limits, expected, shares, seen: VecDeque::with_capacity(STEPS) })
    }

    /// Each rank's samples of the next step, adding up to the global batch.
    pub fn shares(&self) -> &[u64] {
        &self.shares
    }

    /// A step is over, in which ranks had these speeds, in samples per unit of time; for a rank
    /// without samples, the last that it had. True if the next step is split in another way.
    ///
    /// # Errors
    /// [`BatchError`], naming the first rank at fault; nothing has changed.
    pub fn handle_speeds(&mut self, speeds: &[f64]) -> Result<bool, BatchError> {
        // What cannot be split by is refused before it is remembered.
        batch_shares_within(self.global_batch, speeds, &self.limits)?;
        if self.seen.len() == STEPS {
            self.seen.pop_front();
        }
        self.seen.push_back(speeds.to_vec());
        if self.seen.len() < STEPS {
            return Ok(false);
        }
        let usual: Vec<f64> = (0..speeds.len()).map(|rank| self.usual(rank)).collect();
        let other = batch_shares_within(self.global_batch, &usual, &self.limits)?;
        let better = |speeds: &Vec<f64>| {
            makespan(&other, speeds) <= (1.0 - GAIN) * makespan(&self.shares, speeds)
        };
        // Nothing takes no time, and no split of nothing is better.
        let changes = other != self.shares && self.seen.iter().all(better);
        if changes {
            self.shares = other;
            self.seen.clear();
        }
        Ok(changes)
    }

    /// Every rank's speeds, 0 for those not measured yet, and what each says of its own split:
    /// [`Self::agreed`] and [`Self::state`]. A collective of speeds that failed on some ranks and
    /// not on others leaves them with unlike splits, so that the next that succeeds splits anew, by
    /// its speeds alone. True if the next step is split in another way.
    ///
    /// # Errors
    /// [`BatchError`]; nothing has changed.
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
        let speeds = self.in_one_unit(speeds);
        if unlike(states).is_none() {
            return self.handle_speeds(&speeds);
        }
        let shares = batch_shares_within(self.global_batch, &speeds, &self.limits)?;
        self.seen.clear();
        self.shares = shares;
        Ok(true)
    }

    /// A name for what all ranks must have said alike: the global batch, the limits, and the speeds
    /// that were expected.
    pub fn agreed(&self) -> u64 {
        let expected = self.expected.iter().map(|speed| speed.to_bits());
        name([self.global_batch].iter().chain(&self.limits).copied().chain(expected))
    }

    /// A name for all that the next answers follow from, but for what is agreed.
    pub fn state(&self) -> u64 {
        let seen = self.seen.iter().flatten().map(|speed| speed.to_bits());
        name(self.shares.iter().copied().chain(seen))
    }

    /// A rank whose speed was not measured has what was expected of it, in proportion to what the
    /// others turned out to have, for speeds are expected in any unit.
    fn in_one_unit(&self, speeds: &[f64]) -> Vec<f64> {
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

    /// The median of a rank's last speeds.
    fn usual(&self, rank: usize) -> f64 {
        let mut seen: Vec<f64> = self.seen.iter().map(|speeds| speeds[rank]).collect();
        seen.sort_by(f64::total_cmp);
        seen[seen.len() / 2]
    }
}

fn name(values: impl Iterator<Item = u64>) -> u64 {
    fnv1a(&values.flat_map(u64::to_be_bytes).collect::<Vec<u8>>())
}

fn makespan(shares: &[u64], speeds: &[f64]) -> f64 {
    shares.iter().zip(speeds).map(|(share, speed)| *share as f64 / speed).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BATCH: u64 = 4096;
    const RANKS: usize = 11;

    fn split(speeds: &[f64]) -> BatchSplit {
        BatchSplit::new(BATCH, speeds, &vec![u64::MAX; speeds.len()]).expect("can be split")
    }

    /// What a split takes, relative to the best.
    fn excess(split: &BatchSplit, speeds: &[f64]) -> f64 {
        makespan(split.shares(), speeds) / makespan(self::split(speeds).shares(), speeds)
    }

    fn breathing(speeds: &[f64], breaths: &[f64], part: f64) -> Vec<f64> {
        speeds.iter().zip(breaths).map(|(speed, breath)| speed * (1.0 + part * breath)).collect()
    }

    fn speeds() -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(1.0..4.0, RANKS)
    }

    /// Of each rank in each step, from -1 to 1.
    fn breaths(steps: usize) -> impl Strategy<Value = Vec<Vec<f64>>> {
        prop::collection::vec(prop::collection::vec(-1.0..=1.0, RANKS), steps)
    }

    proptest! {
        /// One rank becomes slower or faster for good, while all breathe a little.
        #[test]
        fn a_change_that_lasts_is_followed_once(
            mut speeds in speeds(),
            rank in 0..RANKS,
            factor in prop_oneof![0.3..0.85, 1.6..3.0],
            breaths in breaths(60),
        ) {
            let mut split = split(&speeds);
            speeds[rank] *= factor;
            let matters = excess(&split, &speeds) > 1.1;
            let mut changes = vec![];
            for (step, breath) in breaths.iter().enumerate() {
                if split.handle_speeds(&breathing(&speeds, breath, 0.01)).expect("speeds") {
                    changes.push(step);
                }
                prop_assert_eq!(split.shares().iter().sum::<u64>(), BATCH);
            }
            prop_assert!(changes.len() <= 1, "{changes:?}");
            prop_assert!(!matters || changes == [STEPS - 1], "{changes:?}");
            prop_assert!(excess(&split, &speeds) <= 1.07, "{}", excess(&split, &speeds));
        }

        /// Speeds that differ by a fifth from step to step, but not for good.
        #[test]
        fn speeds_that_breathe_change_nothing(speeds in speeds(), breaths in breaths(300)) {
            let mut split = split(&speeds);
            let before = split.clone();
            for breath in &breaths {
                split.handle_speeds(&breathing(&speeds, breath, 0.1)).expect("speeds");
            }
            prop_assert_eq!(split.shares(), before.shares());
        }

        /// A rank that is slow every other step, or for less than it takes to be believed.
        #[test]
        fn a_rank_to_and_fro_changes_nothing(
            speeds in speeds(),
            slow in 1..STEPS,
            fast in STEPS..2 * STEPS,
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
        fn a_drift_is_followed_in_few_changes(speeds in speeds(), breaths in breaths(220)) {
            let mut split = split(&speeds);
            let mut changes = 0;
            for (step, breath) in breaths.iter().enumerate() {
                let drift = 0.995_f64.powi(i32::try_from(step).expect("few"));
                let now: Vec<f64> = speeds
                    .iter()
                    .enumerate()
                    .map(|(rank, speed)| if rank % 2 == 0 { speed * drift } else { *speed })
                    .collect();
                changes += u32::from(
                    split.handle_speeds(&breathing(&now, breath, 0.01)).expect("speeds"),
                );
                prop_assert!(excess(&split, &now) <= 1.15, "{}", excess(&split, &now));
            }
            prop_assert!(changes <= 20, "{changes}");
        }

        /// A part of each step's time does not depend on the samples, so that speeds follow from
        /// shares: splits settle all the same.
        #[test]
        fn what_a_share_does_to_a_speed_is_no_drift(
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

    /// Told of speeds, each of these; whether each was split anew.
    fn exchange(splits: &mut [BatchSplit], speeds: &[f64]) -> Vec<Result<bool, BatchError>> {
        let agreed: Vec<u64> = splits.iter().map(BatchSplit::agreed).collect();
        let states: Vec<u64> = splits.iter().map(BatchSplit::state).collect();
        splits.iter_mut().map(|s| s.handle_exchange(speeds, &agreed, &states)).collect()
    }

    #[test]
    fn splits_that_came_apart_are_alike_after_one_exchange() {
        let mut splits = vec![split(&[1.0, 1.0, 1.0]); 3];
        for step in 0..4 {
            let told = exchange(&mut splits, &[1.0, 1.0, 2.0 + 0.01 * f64::from(step)]);
            assert_eq!(told, vec![Ok(false); 3]);
        }
        // The exchange that makes them believe it reaches two of three.
        exchange(&mut splits[..2], &[1.0, 1.0, 2.0]);
        assert_ne!(splits[0].shares(), splits[2].shares());
        let told = exchange(&mut splits, &[1.0, 1.0, 2.0]);
        assert_eq!(told, vec![Ok(true); 3]);
        let anew = split_as(&splits[0], &[1.0, 1.0, 2.0]);
        assert!(splits.iter().all(|one| *one == anew));
        assert_eq!(exchange(&mut splits, &[1.0, 1.0, 2.0]), vec![Ok(false); 3]);
        // Not the shares alone: what will be believed next.
        exchange(&mut splits[1..], &[1.0, 1.0, 4.0]);
        assert_eq!(exchange(&mut splits, &[1.0, 1.0, 2.0]), vec![Ok(true); 3]);
    }

    #[test]
    fn ranks_that_split_another_batch_are_named() {
        let mut splits = vec![split(&[1.0, 2.0]); 2];
        splits[1] = BatchSplit::new(BATCH, &[1.0, 2.0], &[BATCH, 3 * BATCH]).expect("splits");
        let before = splits.clone();
        let told = exchange(&mut splits, &[1.0, 2.0]);
        assert_eq!(told, vec![Err(BatchError::Unlike { rank: 1 }); 2]);
        assert_eq!(splits, before);
    }

    /// Speeds are expected in any unit, and measured in samples per second.
    #[test]
    fn a_rank_not_measured_yet_has_what_was_expected_in_the_unit_of_the_others() {
        let mut splits = vec![split(&[1.0, 1.0, 2.0]); 3];
        let before = splits[0].shares().to_vec();
        for _ in 0..2 * STEPS {
            assert_eq!(exchange(&mut splits, &[100.0, 100.0, 0.0]), vec![Ok(false); 3]);
            assert_eq!(exchange(&mut splits, &[0.0; 3]), vec![Ok(false); 3]);
        }
        assert_eq!(splits[0].shares(), before);
        let mut slow = splits.clone();
        for _ in 0..STEPS {
            exchange(&mut slow, &[50.0, 100.0, 0.0]);
        }
        assert_eq!(slow[0], split_as(&splits[0], &[50.0, 100.0, 150.0]));
        let mut unlike = split(&[1.0, 1.0, 3.0]);
        assert_ne!(unlike.agreed(), splits[0].agreed());
        let (agreed, states) = ([unlike.agreed(); 3], [1, 2, 3]);
        assert_eq!(unlike.handle_exchange(&[0.0, 10.0, 30.0], &agreed, &states), Ok(true));
        assert_eq!(unlike.shares(), split(&[1.0, 1.0, 3.0]).shares());
    }

    /// What it is after splitting by these.
    fn split_as(begun: &BatchSplit, speeds: &[f64]) -> BatchSplit {
        let mut split = begun.clone();
        split.shares = self::split(speeds).shares;
        split.seen.clear();
        split
    }

    #[test]
    fn what_cannot_be_split_by_changes_nothing() {
        let mut split = split(&[1.0, 2.0]);
        let before = split.clone();
        for wrong in [vec![1.0], vec![1.0, 0.0], vec![f64::NAN, 1.0]] {
            assert!(split.handle_speeds(&wrong).is_err());
            assert_eq!(split, before);
        }
        let agreed = vec![split.agreed(); 2];
        for wrong in [[-1.0, 0.0], [f64::INFINITY, 0.0]] {
            let states = vec![split.state(); 2];
            assert!(split.handle_exchange(&wrong, &agreed, &states).is_err());
            assert_eq!(split, before);
        }
        let mut nothing = BatchSplit::new(0, &[1.0, 1.0], &[5, 5]).expect("splits");
        for _ in 0..9 {
            assert_eq!(nothing.handle_speeds(&[1.0, 3.0]), Ok(false));
        }
    }
}
