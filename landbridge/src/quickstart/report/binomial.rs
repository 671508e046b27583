//! The binomial distribution, which the random drops of a correct link follow.

use std::ops::RangeInclusive;

/// Returns the central interval of a binomial distribution of `trials` draws of probability
/// `chance`. A count lies below it, or above it, with a probability of at most `tail` each. The sum
/// is exact, so the interval holds for small counts as well.
pub(crate) fn central_binomial_interval(
    trials: u64,
    chance: f64,
    tail: f64,
) -> RangeInclusive<u64> {
    assert!((0.0..=1.0).contains(&chance), "chance {chance}");
    if trials == 0 || chance == 0.0 {
        return 0..=0;
    }
    if chance == 1.0 {
        return trials..=trials;
    }
    let odds = (chance / (1.0 - chance)).ln();
    let mut log_probability = trials as f64 * (-chance).ln_1p();
    let mut below_or_at = 0.0;
    let mut low = None;
    for count in 0..trials {
        below_or_at += log_probability.exp();
        if low.is_none() && below_or_at > tail {
            low = Some(count);
        }
        if below_or_at >= 1.0 - tail {
            return low.unwrap_or(count)..=count;
        }
        log_probability += ((trials - count) as f64 / (count + 1) as f64).ln() + odds;
    }
    low.unwrap_or(trials)..=trials
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_cases_follow_the_exact_distribution() {
        // Ten fair coins: P(0) = 1/1024 > 0.0005, so every count may happen.
        assert_eq!(central_binomial_interval(10, 0.5, 0.0005), 0..=10);
        // P(0) = 0.098 %, P(<= 1) = 1.07 %, P(<= 2) = 5.5 %.
        assert_eq!(central_binomial_interval(10, 0.5, 0.005), 1..=9);
        assert_eq!(central_binomial_interval(10, 0.5, 0.05), 2..=8);
    }

    #[test]
    fn certain_outcomes_have_an_interval_of_one_count() {
        assert_eq!(central_binomial_interval(1_000_000, 0.0, 0.0005), 0..=0);
        assert_eq!(central_binomial_interval(7, 1.0, 0.0005), 7..=7);
        assert_eq!(central_binomial_interval(0, 0.3, 0.0005), 0..=0);
    }

    #[test]
    fn large_cases_are_near_the_normal_approximation() {
        for (trials, chance) in [(250_000, 0.001), (5_000_000, 0.01), (40_000, 0.3)] {
            let interval = central_binomial_interval(trials, chance, 0.0005);
            let mean = trials as f64 * chance;
            let reach = 3.2905 * (mean * (1.0 - chance)).sqrt();
            // Skew shifts both ends by (z^2 - 1) / 6, under 2 counts.
            let low_error = *interval.start() as f64 - (mean - reach);
            let high_error = *interval.end() as f64 - (mean + reach);
            assert!(low_error.abs() < 3.0, "{trials} {chance}: {low_error}");
            assert!(high_error.abs() < 3.0, "{trials} {chance}: {high_error}");
        }
    }

    proptest! {
        #[test]
        fn the_interval_holds_the_mean_within_the_trials(
            trials in 0_u64..20_000,
            chance in 0.0..=1.0_f64,
        ) {
            let interval = central_binomial_interval(trials, chance, 0.0005);
            let mean = trials as f64 * chance;
            prop_assert!(*interval.start() as f64 <= mean.ceil());
            prop_assert!(*interval.end() as f64 >= mean.floor());
            prop_assert!(*interval.end() <= trials);
        }
    }
}
