//! Statistics for the tests, each at significance 1e-3.

/// Packets a seed.
pub const PACKETS: u64 = 1_000_000;

/// Two-sided normal quantile.
pub const Z: f64 = 3.2905;

/// Runs `check` with seeds 1 to 20.
pub fn at_most_one_fails(mut check: impl FnMut(u64) -> bool) {
    let failed: Vec<_> = (1..=20).filter(|seed| !check(*seed)).collect();
    assert!(failed.len() <= 1, "seeds {failed:?} fail");
}

/// Whether `k` of `n` may come of probability `p`.
pub fn binomial(k: u64, n: u64, p: f64) -> bool {
    let n = n as f64;
    (k as f64 - n * p).abs() <= Z * (n * p * (1.0 - p)).sqrt()
}

/// Wald and Wolfowitz: whether the number of runs is that of independent events.
pub fn runs(events: &[bool]) -> bool {
    let n = events.len() as f64;
    let yes = events.iter().filter(|event| **event).count() as f64;
    let runs = 1.0 + events.windows(2).filter(|pair| pair[0] != pair[1]).count() as f64;
    let mean = 1.0 + 2.0 * yes * (n - yes) / n;
    let variance = (mean - 1.0) * (mean - 2.0) / (n - 1.0);
    (runs - mean).abs() <= Z * variance.sqrt()
}

/// Pearson: whether `seen` may come of `expected`, by Wilson and Hilferty's approximation.
pub fn chi_squared(seen: &[u64], expected: impl Iterator<Item = f64>) -> bool {
    let statistic: f64 =
        seen.iter().zip(expected).map(|(seen, e)| (*seen as f64 - e).powi(2) / e).sum();
    let freedom = (seen.len() - 1) as f64;
    let spread = 2.0 / (9.0 * freedom);
    // One-sided quantile.
    statistic <= freedom * (1.0 - spread + 3.0902 * spread.sqrt()).powi(3)
}

/// Kolmogorov and Smirnov, at 8,000 places from -4 to 4, which hold all of the distribution.
pub fn ks(values: impl Iterator<Item = f64>, cdf: fn(f64) -> f64) -> bool {
    const PLACES: usize = 8000;
    let mut histogram = vec![0u64; PLACES];
    for value in values {
        let place = ((value + 4.0) * 1000.0).floor();
        assert!((0.0..=PLACES as f64).contains(&place), "{value}");
        histogram[(place as usize).min(PLACES - 1)] += 1;
    }
    let n = histogram.iter().sum::<u64>() as f64;
    let mut below = 0;
    let distance = histogram.iter().enumerate().fold(0.0f64, |distance, (place, seen)| {
        below += seen;
        let edge = (place + 1) as f64 / 1000.0 - 4.0;
        distance.max((below as f64 / n - cdf(edge)).abs())
    });
    distance * n.sqrt() <= 1.9495
}

/// Cumulative distribution of the uniform distribution over -1..1.
pub fn uniform_cdf(x: f64) -> f64 {
    ((x + 1.0) / 2.0).clamp(0.0, 1.0)
}

/// Cumulative distribution of the standard normal distribution cut at four standard deviations.
pub fn normal_cut_at_4_cdf(x: f64) -> f64 {
    // Marsaglia's series for the integral from 0.
    let from_zero = |x: f64| {
        let (mut term, mut sum) = (x, x);
        for k in 1..100 {
            term *= x * x / f64::from(2 * k + 1);
            sum += term;
        }
        sum * (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
    };
    (from_zero(x) / from_zero(4.0) + 1.0) / 2.0
}
