//! Random streams with a frozen algorithm: recorded hashes depend on every draw.

use crate::portable_math::portable_ln;
use units::Fraction;

/// A random stream by xoshiro256++, seeded through splitmix64.
#[derive(Debug, Clone)]
pub(crate) struct RandomStream {
    state: [u64; 4],
}

impl RandomStream {
    /// Makes the stream called `label` under `seed`. Streams with different labels are independent.
    pub(crate) fn new(seed: u64, label: &str) -> Self {
        let mut mixed =
            label.bytes().fold(seed, |hash, byte| random_splitmix64(&mut (hash ^ u64::from(byte))));
        Self { state: std::array::from_fn(|_| random_splitmix64(&mut mixed)) }
    }

    /// Returns the next 64 random bits, by xoshiro256++.
    pub(crate) fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Draws a number uniformly from `0..bound`; `bound` must not be zero. The bias is below
    /// `bound / 2^64`.
    pub(crate) fn random_below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Draws true with `probability`, else false.
    pub(crate) fn random_bool(&mut self, probability: Fraction) -> bool {
        self.random_below(ONE_PPB) < u64::from(probability.ppb())
    }

    /// Draws a number uniformly from 0..1, without 1, in steps of 2^-53.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws from the exponential distribution with this mean.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        // Above zero, so that the logarithm is finite.
        -mean * portable_ln(1.0 - self.uniform())
    }

    /// Draws from the standard normal distribution, again while the value is further than `reach`
    /// from zero.
    ///
    /// Marsaglia's polar method, in operations that IEEE 754 rounds alike everywhere.
    pub(crate) fn normal_within(&mut self, reach: f64) -> f64 {
        loop {
            let (x, y) = (self.uniform_symmetric(), self.uniform_symmetric());
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                let normal = x * (-2.0 * portable_ln(square) / square).sqrt();
                if normal.abs() <= reach {
                    return normal;
                }
            }
        }
    }

    /// Draws a number uniformly from -1..1, in steps of 2^-52.
    fn uniform_symmetric(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// Mixes the bits of `word`, so that words that differ little have results that differ much.
pub(crate) fn mix_random_bits(mut word: u64) -> u64 {
    random_splitmix64(&mut word)
}

/// 1,000,000,000 parts per billion, the probability 1: numbers are drawn below it and compared with
/// a probability in parts per billion.
const ONE_PPB: u64 = 1_000_000_000;

/// Advances `state` and returns the next 64 bits of the splitmix64 generator, which seeds streams.
fn random_splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xoshiro_matches_its_reference_vector() {
        // First outputs of the reference C code for the state 1, 2, 3, 4.
        let mut stream = RandomStream { state: [1, 2, 3, 4] };
        assert_eq!(stream.next_u64(), 41_943_041);
        assert_eq!(stream.next_u64(), 58_720_359);
        assert_eq!(stream.next_u64(), 3_588_806_011_781_223);
    }

    #[test]
    fn splitmix_matches_its_reference_vector() {
        let mut state = 1_234_567;
        assert_eq!(random_splitmix64(&mut state), 6_457_827_717_110_365_317);
        assert_eq!(random_splitmix64(&mut state), 3_203_168_211_198_807_973);
    }

    #[test]
    fn the_logarithm_is_one() {
        for i in 1..=10_000 {
            let x = f64::from(i) / 10_000.0;
            for x in [x, x / 1e6, x * 1e-15] {
                assert!((portable_ln(x) - x.ln()).abs() <= 4e-16 * x.ln().abs() + 1e-16, "{x}");
            }
        }
    }

    #[test]
    fn streams_differ_by_label_and_by_seed() {
        let first = |seed, label| RandomStream::new(seed, label).next_u64();
        assert_ne!(first(1, "loss"), first(1, "jitter"));
        assert_ne!(first(1, "loss"), first(2, "loss"));
        assert_eq!(first(1, "loss"), first(1, "loss"));
    }
}
