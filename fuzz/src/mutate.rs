//! Seeded mutations of inputs: the same seed gives the same bytes on every machine.

/// A source of mutations of a corpus.
#[derive(Debug)]
pub struct Mutator<'a> {
    seeds: &'a [Vec<u8>],
    state: u64,
}

impl<'a> Mutator<'a> {
    /// Makes a source of mutations of `seeds`, which is not empty; `seed` is the seed of the random
    /// numbers.
    pub fn new(seeds: &'a [Vec<u8>], seed: u64) -> Self {
        Self { seeds, state: seed }
    }

    /// Returns one of the seeds with one to eight changes, at most [`INPUT_BYTES_MAX`] long.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut bytes = self.pick(self.seeds).clone();
        for _ in 0..=self.below(8) {
            self.change_once(&mut bytes);
        }
        bytes.truncate(INPUT_BYTES_MAX);
        bytes
    }

    /// Makes one random change to `bytes`: flips, overwrites, removes, copies or inserts some of
    /// them.
    fn change_once(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len() + 1);
        let end = at + self.below((bytes.len() - at).min(32) + 1);
        match self.below(9) {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            1 if at < bytes.len() => bytes[at] = *self.pick(&EDGE_BYTES),
            2 => self.overwrite(bytes, at),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            5 => bytes.truncate(at),
            6 => {
                let other = self.pick(self.seeds);
                let from = self.below(other.len() + 1);
                bytes.splice(at.., other[from..].iter().copied());
            }
            7 => self.splice_pieces(bytes, b' '),
            _ => self.splice_pieces(bytes, b'\n'),
        }
    }

    /// Overwrites one, two, four or eight bytes by a number at the edge of its range.
    fn overwrite(&mut self, bytes: &mut [u8], at: usize) {
        let number = *self.pick(&EDGE_NUMBERS);
        let width = 1 << self.below(4);
        let kept = &number.to_be_bytes()[8 - width..];
        bytes[at..].iter_mut().zip(kept).for_each(|(byte, new)| *byte = *new);
    }

    /// Inserts a word or line of some seed into `bytes`, or replaces one by it; `between` separates
    /// the pieces.
    fn splice_pieces(&mut self, bytes: &mut Vec<u8>, between: u8) {
        let others: Vec<&[u8]> = self.pick(self.seeds).split(|byte| *byte == between).collect();
        let other = *self.pick(&others);
        let mut pieces: Vec<&[u8]> = bytes.split(|byte| *byte == between).collect();
        let at = self.below(pieces.len());
        let end = at + self.below(2);
        pieces.splice(at..end, [other]);
        *bytes = pieces.join(&between);
    }

    /// Returns a random element of `from`.
    fn pick<'b, T>(&mut self, from: &'b [T]) -> &'b T {
        &from[self.below(from.len())]
    }

    /// Returns a random number below `end`.
    fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).expect("64 bits");
        usize::try_from(self.next_u64() % end).expect("below a length")
    }

    /// Returns the next number of SplitMix64.
    fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// 4,096 bytes: the longest input of a fuzz target, as libFuzzer's default.
pub const INPUT_BYTES_MAX: usize = 4096;

/// 16 bytes that mutations write: values at the edge of a range, and separators of texts.
const EDGE_BYTES: [u8; 16] = *b"\x00\x01\x7f\x80\xff\n\r\" '=.[]9-";
/// 8 numbers at the edge of a range, which mutations write over 1, 2, 4 or 8 bytes of an input.
const EDGE_NUMBERS: [u64; 8] =
    [0, 1, 2, 0x7f, 0x7fff_ffff, 0x7ff0_0000_0000_0000, u64::MAX - 1, u64::MAX];
