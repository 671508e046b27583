//! Shares of a global batch in whole samples, by speed and within limits.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// 2^32 samples: the largest global batch that is divided among ranks; a larger one is refused with
/// an error. Fractions of such a batch in `f64` are still exact to far less than one sample.
pub const BATCH_MAX: u64 = 1 << 32;

/// Why a batch cannot be split; always an error of the caller.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BatchError {
    /// There is no rank.
    #[error("a batch needs at least one rank")]
    NoRank,
    /// A speed is not a finite positive number.
    #[error("rank {rank} has speed {speed}: it must be finite and above 0")]
    Speed {
        /// The rank's index.
        rank: usize,
        /// Its speed.
        speed: f64,
    },
    /// The speeds' sum is not finite.
    #[error("the speeds add up to more than {}: give them in a larger unit", f64::MAX)]
    Sum,
    /// The batch has more than [`BATCH_MAX`] samples.
    #[error("a batch of {samples} samples is above the limit of {BATCH_MAX}")]
    TooLarge {
        /// Samples of the batch.
        samples: u64,
    },
    /// The number of limits is not the number of ranks.
    #[error("{limits} limits for {ranks} ranks")]
    Limits {
        /// Number of limits.
        limits: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// Ranks split different batches.
    #[error(
        "rank {rank} splits another global batch, by other speeds, or within other limits, than \
         rank 0"
    )]
    Unlike {
        /// The first rank that differs from rank 0.
        rank: usize,
    },
    /// The batch has more samples than all limits together.
    #[error("a batch of {samples} samples is above the {room} that all ranks hold together")]
    NoRoom {
        /// Samples asked for.
        samples: u64,
        /// Sum of all limits.
        room: u64,
    },
}

/// Divides `global_batch` samples among ranks in proportion to their `speeds`, which are samples
/// per unit of time in any unit.
///
/// The split has the least makespan, `max(share / speed)`. Among all such splits each rank gets the
/// whole part of its quota, `global_batch * speed / sum`. The remaining samples go by largest
/// remainder to ranks that still end in time; of equals the lower rank gets one first.
///
/// A share is less than one below its quota, and at most `ranks * speed / sum` above it. Largest
/// remainder alone would stay closer to the quotas, but slow ranks would then end last. A faster
/// rank never gets less than a slower one; a slow rank may get nothing.
///
/// # Errors
/// [`BatchError`]: the first fault found. A rank with a bad speed is named.
pub fn batch_shares(global_batch: u64, speeds: &[f64]) -> Result<Vec<u64>, BatchError> {
    batch_shares_within(global_batch, speeds, &vec![u64::MAX; speeds.len()])
}

/// Divides `global_batch` samples among ranks as [`batch_shares`] does, with a limit in samples for
/// each rank, such as its memory.
///
/// A rank whose quota exceeds its limit gets the limit. The others share the remaining samples in
/// proportion to their speeds. No split within the limits has a smaller makespan.
///
/// # Errors
/// [`BatchError`]: the first fault found, such as limits that together are below the batch. A rank
/// with a bad speed is named.
pub fn batch_shares_within(
    global_batch: u64,
    speeds: &[f64],
    limits: &[u64],
) -> Result<Vec<u64>, BatchError> {
    check_batch_for_shares(global_batch, speeds)?;
    if limits.len() != speeds.len() {
        return Err(BatchError::Limits { limits: limits.len(), ranks: speeds.len() });
    }
    let room = limits.iter().fold(0u64, |sum, limit| sum.saturating_add(*limit));
    if room < global_batch {
        return Err(BatchError::NoRoom { samples: global_batch, room });
    }
    let quotas = batch_share_quotas(global_batch, speeds, limits);
    let mut left = global_batch;
    let whole_part = |(quota, limit): (&f64, &u64)| {
        let whole = (*quota as u64).min(left).min(*limit);
        left -= whole;
        whole
    };
    let mut shares: Vec<u64> = quotas.iter().zip(limits).map(whole_part).collect();
    let time_of_next =
        |rank: usize, share: u64| (share < limits[rank]).then(|| (share + 1) as f64 / speeds[rank]);
    // Whole parts of quotas fit into every makespan, so starting from them loses nothing.
    let mut soonest = shares.clone();
    hand_out_batch_shares(&mut soonest, left, time_of_next);
    let times = soonest.iter().zip(speeds).map(|(share, speed)| *share as f64 / speed);
    let makespan = times.fold(0.0, f64::max);
    // The largest remainder first.
    hand_out_batch_shares(&mut shares, left, |rank, share| {
        let is_in_time = time_of_next(rank, share).is_some_and(|time| time <= makespan);
        is_in_time.then(|| share as f64 - quotas[rank])
    });
    Ok(shares)
}

/// Gives `samples` one by one to the rank with the least key; of equals to the lower rank.
///
/// A key depends on the rank's own share so far. A rank without a key gets no more samples. Panics
/// if samples are left and no rank has a key.
fn hand_out_batch_shares(
    shares: &mut [u64],
    samples: u64,
    key: impl Fn(usize, u64) -> Option<f64>,
) {
    let waits =
        |rank: usize, share: u64| key(rank, share).map(|key| BatchSharesCandidate { key, rank });
    let mut heap: BinaryHeap<BatchSharesCandidate> =
        shares.iter().enumerate().filter_map(|(rank, share)| waits(rank, *share)).collect();
    for _ in 0..samples {
        let first = heap.pop().expect("the ranks hold the batch");
        shares[first.rank] += 1;
        heap.extend(waits(first.rank, shares[first.rank]));
    }
}

/// A rank that waits for a sample. The greatest is the one with the least key.
struct BatchSharesCandidate {
    key: f64,
    rank: usize,
}

impl Ord for BatchSharesCandidate {
    /// Orders by key, then by rank, both reversed: the greatest has the least key, and of equal
    /// keys the lower rank.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.total_cmp(&self.key).then(other.rank.cmp(&self.rank))
    }
}

impl PartialOrd for BatchSharesCandidate {
    /// Returns the order of `cmp`, never `None`.
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for BatchSharesCandidate {
    /// Returns whether `cmp` finds key and rank equal.
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for BatchSharesCandidate {}

/// Returns each rank's quota, not rounded. Splits the batch by speed; ranks above their limit get
/// the limit, and the rest is split again.
///
/// This is Newton's method on a concave function, the samples done by a time. Each round halves the
/// missing samples or the speed of the remaining ranks, so few rounds suffice.
fn batch_share_quotas(global_batch: u64, speeds: &[f64], limits: &[u64]) -> Vec<f64> {
    let mut full = vec![false; speeds.len()];
    loop {
        let held = |rank: &usize| full[*rank];
        let at_limit: u64 = (0..speeds.len()).filter(held).map(|rank| limits[rank]).sum();
        let left = (global_batch - at_limit) as f64;
        let total: f64 = speeds.iter().zip(&full).filter(|(_, full)| !**full).map(|(v, _)| v).sum();
        let quota = |rank: usize| match full[rank] {
            true => limits[rank] as f64,
            false => left * (speeds[rank] / total),
        };
        let quotas: Vec<f64> = (0..speeds.len()).map(quota).collect();
        let over =
            (0..speeds.len()).filter(|rank| !full[*rank] && quotas[*rank] > limits[*rank] as f64);
        let over: Vec<usize> = over.collect();
        if over.is_empty() {
            return quotas;
        }
        over.into_iter().for_each(|rank| full[rank] = true);
    }
}

/// Checks that there is a rank, and that the batch has at most [`BATCH_MAX`] samples. Each speed
/// must be finite and above 0, and their sum finite.
fn check_batch_for_shares(global_batch: u64, speeds: &[f64]) -> Result<(), BatchError> {
    if speeds.is_empty() {
        return Err(BatchError::NoRank);
    }
    if global_batch > BATCH_MAX {
        return Err(BatchError::TooLarge { samples: global_batch });
    }
    for (rank, &speed) in speeds.iter().enumerate() {
        if !(speed.is_finite() && speed > 0.0) {
            return Err(BatchError::Speed { rank, speed });
        }
    }
    let total: f64 = speeds.iter().sum();
    if total.is_finite() { Ok(()) } else { Err(BatchError::Sum) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;

    fn makespan(shares: &[u64], speeds: &[f64]) -> f64 {
        shares.iter().zip(speeds).map(|(share, speed)| *share as f64 / speed).fold(0.0, f64::max)
    }

    /// The least makespan by counting: some rank ends exactly at it, so it is one of the times
    /// at which a rank ends a sample.
    fn optimum(batch: u64, speeds: &[f64], limits: &[u64]) -> f64 {
        let fits = |time: f64| {
            let within = |(speed, limit): (&f64, &u64)| {
                (0..=batch.min(*limit)).rev().find(|n| *n as f64 / speed <= time)
            };
            speeds.iter().zip(limits).filter_map(within).sum::<u64>() >= batch
        };
        let times = speeds.iter().flat_map(|speed| (0..=batch).map(move |n| n as f64 / speed));
        times.filter(|time| fits(*time)).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn worked_cases() {
        assert_eq!(batch_shares(97, &[1.0, 1.0, 0.5, 2.0]), Ok(vec![22, 21, 11, 43]));
        assert_eq!(batch_shares(0, &[1.0, 2.0]), Ok(vec![0, 0]));
        assert_eq!(batch_shares(1, &[1.0, 1.0]), Ok(vec![1, 0]));
        assert_eq!(batch_shares(BATCH_MAX, &[3.0]), Ok(vec![BATCH_MAX]));
        // Largest remainder alone would give a slow rank a sample that takes twice as long as
        // the fast rank needs for all.
        assert_eq!(batch_shares(51, &[1.0, 100.0]), Ok(vec![0, 51]));
    }

    #[test]
    fn an_invalid_batch_is_refused() {
        assert_eq!(batch_shares(1, &[]), Err(BatchError::NoRank));
        for speed in [0.0, -1.0, f64::INFINITY] {
            assert_eq!(batch_shares(1, &[1.0, speed]), Err(BatchError::Speed { rank: 1, speed }));
        }
        assert!(matches!(batch_shares(1, &[f64::NAN]), Err(BatchError::Speed { rank: 0, .. })));
        assert_eq!(batch_shares(1, &[f64::MAX; 2]), Err(BatchError::Sum));
        let short = batch_shares_within(1, &[1.0; 2], &[1]);
        assert_eq!(short, Err(BatchError::Limits { limits: 1, ranks: 2 }));
        let samples = BATCH_MAX + 1;
        assert_eq!(batch_shares(samples, &[1.0]), Err(BatchError::TooLarge { samples }));
    }

    /// Each sample evaluates the keys of few ranks, not of all.
    #[test]
    fn each_sample_needs_few_of_many_ranks() {
        let ranks = 10_000;
        let looked = Cell::new(0_usize);
        let mut shares = vec![0; ranks];
        hand_out_batch_shares(&mut shares, 3 * ranks as u64, |rank, share| {
            looked.set(looked.get() + 1);
            Some(share as f64 / (1 + rank % 7) as f64)
        });
        assert_eq!((looked.get(), shares.iter().sum::<u64>()), (4 * ranks, 3 * ranks as u64));
        // Half of the quotas are not whole, and some limits are reached.
        let speeds: Vec<f64> = (0..ranks).map(|rank| 1.0 + (rank % 97) as f64 / 31.0).collect();
        let limits: Vec<u64> = (0..ranks).map(|rank| 40 + (rank % 13) as u64).collect();
        let shares = batch_shares_within(433_333, &speeds, &limits).expect("they hold it");
        assert_eq!(shares.iter().sum::<u64>(), 433_333);
        assert!(shares.iter().zip(&limits).all(|(share, limit)| share <= limit));
    }

    /// Speeds that tie often, and speeds far apart.
    fn speeds() -> impl Strategy<Value = Vec<f64>> {
        let speed = prop_oneof![
            prop::sample::select(vec![0.25, 0.5, 1.0, 2.0, 3.0]),
            0.1..10.0,
            1e-6..1e6,
            Just(f64::from_bits(1)),
        ];
        prop::collection::vec(speed, 1..20)
    }

    proptest! {
        #[test]
        fn shares_add_up_and_are_in_proportion(batch in 0..=BATCH_MAX, speeds in speeds()) {
            let shares = batch_shares(batch, &speeds).unwrap();
            prop_assert_eq!(shares.iter().sum::<u64>(), batch);
            let total: f64 = speeds.iter().sum();
            for (share, speed) in shares.iter().zip(&speeds) {
                let quota = batch as f64 * speed / total;
                let above = speeds.len() as f64 * speed / total;
                let within = quota - 1.0 - 1e-5..=quota + above + 1e-5;
                prop_assert!(within.contains(&(*share as f64)), "{share} of {quota}");
            }
        }

        #[test]
        fn no_split_ends_earlier(batch in 0..60_u64, speeds in speeds()) {
            let shares = batch_shares(batch, &speeds).unwrap();
            let unlimited = vec![u64::MAX; speeds.len()];
            prop_assert_eq!(makespan(&shares, &speeds), optimum(batch, &speeds, &unlimited));
        }

        #[test]
        fn no_split_within_the_limits_ends_earlier(
            batch in 0..60_u64,
            speeds in speeds(),
            limits in prop::collection::vec(0..20_u64, 20),
        ) {
            let limits = &limits[..speeds.len()];
            match batch_shares_within(batch, &speeds, limits) {
                Ok(shares) => {
                    prop_assert_eq!(shares.iter().sum::<u64>(), batch);
                    prop_assert!(shares.iter().zip(limits).all(|(share, limit)| share <= limit));
                    let least = optimum(batch, &speeds, limits);
                    prop_assert_eq!(makespan(&shares, &speeds), least);
                }
                Err(error) => {
                    let room = limits.iter().sum::<u64>();
                    prop_assert!(room < batch, "{error}");
                }
            }
        }

        #[test]
        fn a_faster_rank_never_gets_less(batch in 0..5_000_u64, mut speeds in speeds()) {
            speeds.sort_by(|a, b| b.total_cmp(a));
            let shares = batch_shares(batch, &speeds).unwrap();
            prop_assert!(shares.is_sorted_by(|a, b| a >= b), "{shares:?}");
        }
    }
}
