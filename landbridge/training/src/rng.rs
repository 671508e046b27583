//! Seeded random numbers, the same on every machine.

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct Rng(u64);

impl Rng {
    /// Starts the sequence of random numbers that belongs to `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number of the sequence, uniform over all 64 bits.
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number uniform in [-1, 1), in steps of 2^-23, which f32 holds exactly.
    pub(crate) fn signed_unit(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Puts `items` in random order, after Fisher and Yates.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            // The high half of the product is below `last + 1`, with a bias under 2^-32 here.
            let pick = (u128::from(self.next_u64()) * (last as u128 + 1)) >> 64;
            items.swap(last, pick as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn a_shuffle_keeps_and_mixes_all_items() {
        let mut items: Vec<u32> = (0..1000).collect();
        Rng::new(7).shuffle(&mut items);
        let fixed = items.iter().enumerate().filter(|(i, v)| *i == **v as usize);
        assert!(fixed.count() < 10);
        items.sort_unstable();
        assert!(items.iter().copied().eq(0..1000));
    }

    #[test]
    fn numbers_are_centred_and_in_range() {
        let mut rng = Rng::new(3);
        let draws: Vec<f32> = (0..10_000).map(|_| rng.signed_unit()).collect();
        assert!(draws.iter().all(|d| (-1.0..1.0).contains(d)));
        assert!(draws.iter().sum::<f32>().abs() / 10_000.0 < 0.03);
    }
}
