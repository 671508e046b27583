//! A global batch in whole samples, split among ranks of unequal speed.

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
    let total = check(global_batch, speeds)?;
    let quotas: Vec<f64> =
        speeds.iter().map(|speed| global_batch as f64 * (speed / total)).collect();
    let mut left = global_batch;
    let whole_part = |quota: &f64| {
        let whole = (*quota as u64).min(left);
        left -= whole;
        whole
    };
    let mut shares: Vec<u64> = quotas.iter().map(whole_part).collect();
    let makespan = least_makespan(shares.clone(), left, speeds);
    for _ in 0..left {
        let missing = |rank: usize| quotas[rank] - shares[rank] as f64;
        let in_time =
            (0..speeds.len()).filter(|&rank| time_of_next(&shares, speeds, rank) <= makespan);
        // `max_by` would take the last of equals.
        let next = in_time.rev().max_by(|&a, &b| missing(a).total_cmp(&missing(b)));
        shares[next.expect("a split with this makespan exists")] += 1;
    }
    Ok(shares)
}

fn check(global_batch: u64, speeds: &[f64]) -> Result<f64, BatchError> {
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
    if total.is_finite() { Ok(total) } else { Err(BatchError::Sum) }
}

/// The makespan when each of the `left` samples goes where it is done first. Whole parts of
/// quotas fit into every makespan, so starting from them loses nothing.
fn least_makespan(mut shares: Vec<u64>, left: u64, speeds: &[f64]) -> f64 {
    for _ in 0..left {
        let time = |rank: usize| time_of_next(&shares, speeds, rank);
        let first = (0..speeds.len()).min_by(|&a, &b| time(a).total_cmp(&time(b)));
        shares[first.expect("there is a rank")] += 1;
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
    fn optimum(batch: u64, speeds: &[f64]) -> f64 {
        let fits = |time: f64| {
            let within = |speed: &f64| (0..=batch).rev().find(|n| *n as f64 / speed <= time);
            speeds.iter().filter_map(within).sum::<u64>() >= batch
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
            prop_assert_eq!(makespan(&shares, &speeds), optimum(batch, &speeds));
        }

        #[test]
        fn a_faster_rank_never_gets_less(batch in 0..5_000_u64, mut speeds in speeds()) {
            speeds.sort_by(|a, b| b.total_cmp(a));
            let shares = batch_shares(batch, &speeds).unwrap();
            prop_assert!(shares.is_sorted_by(|a, b| a >= b), "{shares:?}");
        }
    }
}
