//! Random streams with a frozen algorithm: recorded hashes depend on every draw.

/// xoshiro256++, seeded through splitmix64.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    state: [u64; 4],
}

impl Stream {
    /// The stream called `label` under `seed`. Labels keep streams apart: a draw from one
    /// leaves the others alone.
    pub(crate) fn new(seed: u64, label: &str) -> Self {
        let mut mixed =
            label.bytes().fold(seed, |hash, byte| splitmix64(&mut (hash ^ u64::from(byte))));
        Self { state: std::array::from_fn(|_| splitmix64(&mut mixed)) }
    }

    pub(crate) fn next(&mut self) -> u64 {
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

    /// Uniform in `0..bound`; `bound` must not be zero. The bias is below `bound / 2^64`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

fn splitmix64(state: &mut u64) -> u64 {
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
        let mut stream = Stream { state: [1, 2, 3, 4] };
        assert_eq!(stream.next(), 41_943_041);
        assert_eq!(stream.next(), 58_720_359);
        assert_eq!(stream.next(), 3_588_806_011_781_223);
    }

    #[test]
    fn splitmix_matches_its_reference_vector() {
        let mut state = 1_234_567;
        assert_eq!(splitmix64(&mut state), 6_457_827_717_110_365_317);
        assert_eq!(splitmix64(&mut state), 3_203_168_211_198_807_973);
    }

    #[test]
    fn streams_differ_by_label_and_by_seed() {
        let first = |seed, label| Stream::new(seed, label).next();
        assert_ne!(first(1, "loss"), first(1, "jitter"));
        assert_ne!(first(1, "loss"), first(2, "loss"));
        assert_eq!(first(1, "loss"), first(1, "loss"));
    }
}
