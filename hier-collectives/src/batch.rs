//! A global batch in whole samples, split among ranks of unequal speed.

mod drift;

pub use drift::Split;

/// The largest global batch: quotas in `f64` stay far more exact than one sample.
pub const BATCH_MAX: u64 = 1 << 32;

/// A batch that cannot be split. The caller's fault.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BatchError {
    /// There is no rank to give a sample to.
    #[error("a batch needs at least one rank")]
    NoRank,
    /// A speed that no share can be in proportion to.
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
    /// More samples than a batch may have.
    #[error("a batch of {samples} samples is above the limit of {BATCH_MAX}")]
    TooLarge {
        /// Samples asked for.
        samples: u64,
    },
    /// Not one limit for each rank.
    #[error("{limits} limits for {ranks} ranks")]
    Limits {
        /// Limits given.
        limits: usize,
        /// Ranks.
        ranks: usize,
    },
    /// Ranks do not split the same.
    #[error(
        "rank {rank} splits another global batch, by other speeds, or within other limits, than \
         rank 0"
    )]
    Unlike {
        /// The first of them.
        rank: usize,
    },
    /// More samples than the ranks' memory holds together.
    #[error("a batch of {samples} samples is above the {room} that all ranks hold together")]
    NoRoom {
        /// Samples asked for.
        samples: u64,
        /// Samples that fit.
        room: u64,
    },
}

/// Samples for each rank, adding up to `global_batch`, in proportion to `speeds` (samples per
/// unit of time, any unit).
///
/// No split ends earlier: `max(share / speed)`, the makespan, is the least there is. Among
/// those splits each rank gets the whole part of its quota, `global_batch * speed / sum`, and
/// the remaining samples go by largest remainder, ties to the lower rank, to ranks that end in
/// time with one more. So a share is less than one below its quota, and above it by at most
/// `ranks * speed / sum`, about one for a rank of average speed: largest remainder alone would
/// stay within one of every quota, but make slow ranks end last. A faster rank never gets less
/// than a slower one; a slow one may get nothing.
///
/// # Errors
/// [`BatchError`], naming the first rank at fault.
pub fn batch_shares(global_batch: u64, speeds: &[f64]) -> Result<Vec<u64>, BatchError> {
    batch_shares_within(global_batch, speeds, &vec![u64::MAX; speeds.len()])
}

/// As [`batch_shares`], no rank getting more than its limit, such as what its memory holds. A
/// rank whose quota is above its limit gets the limit, and the others share what is left in
/// proportion to their speeds; no split within the limits ends earlier.
///
/// # Errors
/// [`BatchError`], naming the first rank at fault.
pub fn batch_shares_within(
    global_batch: u64,
    speeds: &[f64],
    limits: &[u64],
) -> Result<Vec<u64>, BatchError> {
    check(global_batch, speeds)?;
    if limits.len() != speeds.len() {
        return Err(BatchError::Limits { limits: limits.len(), ranks: speeds.len() });
    }
    let room = limits.iter().fold(0u64, |sum, limit| sum.saturating_add(*limit));
    if room < global_batch {
        return Err(BatchError::NoRoom { samples: global_batch, room });
    }
    let quotas = quotas(global_batch, speeds, limits);
    let mut left = global_batch;
    let whole_part = |(quota, limit): (&f64, &u64)| {
        let whole = (*quota as u64).min(left).min(*limit);
        left -= whole;
        whole
    };
    let mut shares: Vec<u64> = quotas.iter().zip(limits).map(whole_part).collect();
    let makespan = least_makespan(shares.clone(), left, speeds, limits);
    for _ in 0..left {
        let missing = |rank: usize| quotas[rank] - shares[rank] as f64;
        let fits = |rank: &usize| {
            shares[*rank] < limits[*rank] && time_of_next(&shares, speeds, *rank) <= makespan
        };
        let in_time = (0..speeds.len()).filter(fits);
        // `max_by` would take the last of equals.
        let next = in_time.rev().max_by(|&a, &b| missing(a).total_cmp(&missing(b)));
        shares[next.expect("a split with this makespan exists")] += 1;
    }
    Ok(shares)
}

/// What each rank would do of divisible samples, so that all below their limit end together.
fn quotas(global_batch: u64, speeds: &[f64], limits: &[u64]) -> Vec<f64> {
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

fn check(global_batch: u64, speeds: &[f64]) -> Result<(), BatchError> {
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

/// The makespan when each of the `left` samples goes where it is done first. Whole parts of
/// quotas fit into every makespan, so starting from them loses nothing.
fn least_makespan(mut shares: Vec<u64>, left: u64, speeds: &[f64], limits: &[u64]) -> f64 {
    for _ in 0..left {
        let time = |rank: usize| time_of_next(&shares, speeds, rank);
        let free = (0..speeds.len()).filter(|rank| shares[*rank] < limits[*rank]);
        let first = free.min_by(|&a, &b| time(a).total_cmp(&time(b)));
        shares[first.expect("the batch fits")] += 1;
    }
    let times = shares.iter().zip(speeds).map(|(share, speed)| *share as f64 / speed);
    times.fold(0.0, f64::max)
}

/// When `rank` would finish with one sample more.
fn time_of_next(shares: &[u64], speeds: &[f64], rank: usize) -> f64 {
    (shares[rank] + 1) as f64 / speeds[rank]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    fn what_cannot_be_split_is_refused() {
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
