//! Splitting a global batch among ranks of unequal speed.

/// Why there is no split. The caller's fault.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BatchError {
    /// A speed that is none.
    #[error("speed {0} of rank {1} is not a positive number")]
    BadSpeed(f64, usize),
    /// Nobody to split it among.
    #[error("no rank")]
    NoRank,
}

/// Whole samples of `global_batch` for each rank, in proportion to its speed: each gets the
/// integer part of its quota, and what is left goes to the largest remainders, lower ranks
/// first. So each share is within one sample of its quota.
///
/// # Errors
/// [`BatchError`].
pub fn batch_shares(global_batch: u32, speeds: &[f64]) -> Result<Vec<u64>, BatchError> {
    let bad = speeds.iter().enumerate().find(|(_, speed)| !(speed.is_finite() && **speed > 0.0));
    if let Some((rank, speed)) = bad {
        return Err(BatchError::BadSpeed(*speed, rank));
    }
    if speeds.is_empty() {
        return Err(BatchError::NoRank);
    }
    let total: f64 = speeds.iter().sum();
    let quotas: Vec<f64> =
        speeds.iter().map(|speed| f64::from(global_batch) * (speed / total)).collect();
    let mut shares: Vec<u64> = quotas.iter().map(|quota| quota.floor() as u64).collect();
    let mut order: Vec<usize> = (0..quotas.len()).collect();
    let rest = |rank: &usize| quotas[*rank] - quotas[*rank].floor();
    order.sort_by(|a, b| rest(b).total_cmp(&rest(a)).then(a.cmp(b)));
    let left = u64::from(global_batch).saturating_sub(shares.iter().sum());
    for rank in order.into_iter().cycle().take(left as usize) {
        shares[rank] += 1;
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_quickstart_split() {
        assert_eq!(batch_shares(97, &[1.0, 1.0, 0.5, 2.0]), Ok(vec![22, 21, 11, 43]));
    }

    #[test]
    fn speeds_that_are_none_are_refused() {
        assert_eq!(batch_shares(9, &[]), Err(BatchError::NoRank));
        for bad in [0.0, -1.0, f64::INFINITY, f64::NAN] {
            assert!(matches!(batch_shares(9, &[1.0, bad]), Err(BatchError::BadSpeed(_, 1))));
        }
    }

    proptest! {
        #[test]
        fn shares_sum_exactly_and_stay_within_one_of_the_quota(
            batch in 0u32..100_000,
            speeds in proptest::collection::vec(0.01f64..100.0, 1..40),
        ) {
            let shares = batch_shares(batch, &speeds).expect("good speeds");
            prop_assert_eq!(shares.iter().sum::<u64>(), u64::from(batch));
            let total: f64 = speeds.iter().sum();
            for (share, speed) in shares.iter().zip(&speeds) {
                let quota = f64::from(batch) * speed / total;
                prop_assert!((*share as f64 - quota).abs() <= 1.0 + 1e-9);
            }
        }
    }
}
