//! The UCI handwritten digits, and the order in which the training draws them.

use crate::rng::Rng;
use flate2::read::GzDecoder;
use std::io::Read;

/// 64 pixels: the size of an image of a digit, 8 by 8, and the number of inputs of the network.
pub const PIXELS: usize = 64;
/// 10 classes: the digits 0 to 9, and the number of outputs of the network.
pub const CLASSES: usize = 10;
/// 1,437 images of digits, four fifths of all, are trained on. An epoch of the data draws each of
/// them once.
pub const TRAIN_IMAGES: usize = 1_437;
/// 360 images of digits, a fifth of all, are not trained on. The test accuracy is measured on them.
pub const TEST_IMAGES: usize = 360;

/// All images of digits as gzipped CSV: each line has 64 pixels and a label.
const DIGITS_CSV_GZIP: &[u8] = include_bytes!("../../data/digits.csv.gz");
/// 16: the largest brightness of a pixel in the CSV file of digits, by which pixels are divided. A
/// brighter pixel means a damaged file and ends the program.
const BRIGHTNESS_MAX: u8 = 16;
/// 1998: the seed of the shuffle that splits the images of digits into those for training and those
/// for the test. Any number would do.
const SPLIT_SEED: u64 = 1998;

/// One image and its label.
#[derive(Debug, Clone, PartialEq)]
pub struct DigitSample {
    /// Brightness from 0 to 1, row by row.
    pub pixels: [f32; PIXELS],
    /// The digit, 0 to 9.
    pub label: u8,
}

/// All images, shuffled and split in the same way on every machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Digits {
    /// [`TRAIN_IMAGES`] images for the training.
    pub train: Vec<DigitSample>,
    /// [`TEST_IMAGES`] other images for the test.
    pub test: Vec<DigitSample>,
}

impl Digits {
    /// Unpacks the images, which are part of this program, and splits them.
    ///
    /// # Panics
    /// When the program was built with a damaged file.
    pub fn load() -> Self {
        let mut csv = String::new();
        GzDecoder::new(DIGITS_CSV_GZIP).read_to_string(&mut csv).expect("digits.csv.gz is whole");
        let mut train: Vec<DigitSample> = csv.lines().map(parse_digit_sample).collect();
        assert_eq!(train.len(), TRAIN_IMAGES + TEST_IMAGES, "images");
        Rng::new(SPLIT_SEED).shuffle(&mut train);
        let test = train.split_off(TRAIN_IMAGES);
        Self { train, test }
    }
}

/// Draws global batches of `N` training images without end. Each epoch of the data draws every
/// image once, in an order of its own. A batch may span two epochs.
pub struct DigitBatches<const N: usize> {
    rng: Rng,
    remaining: Vec<usize>,
}

impl<const N: usize> DigitBatches<N> {
    /// Starts the sequence of batches that belongs to `seed`.
    pub fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), remaining: Vec::new() }
    }

    /// Returns the next global batch as indices into [`Digits::train`].
    pub fn draw_batch(&mut self) -> [usize; N] {
        std::array::from_fn(|_| {
            if self.remaining.is_empty() {
                self.remaining.extend(0..TRAIN_IMAGES);
                self.rng.shuffle(&mut self.remaining);
            }
            self.remaining.pop().expect("just filled")
        })
    }
}

/// Parses a line of the CSV file: 64 pixels and a label.
///
/// # Panics
/// When the line is malformed.
fn parse_digit_sample(line: &str) -> DigitSample {
    let mut fields = line.split(',').map(|f| f.parse::<u8>().expect("a number"));
    let mut field = || fields.next().expect("64 pixels and a label");
    let pixels = std::array::from_fn(|_| {
        let pixel = field();
        assert!(pixel <= BRIGHTNESS_MAX, "pixel {pixel}");
        f32::from(pixel) / f32::from(BRIGHTNESS_MAX)
    });
    let label = field();
    assert!(usize::from(label) < CLASSES, "label {label}");
    DigitSample { pixels, label }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_parts_hold_every_digit() {
        let digits = Digits::load();
        assert_eq!((digits.train.len(), digits.test.len()), (1437, 360));
        for part in [&digits.train, &digits.test] {
            for label in 0..10 {
                let count = part.iter().filter(|s| s.label == label).count();
                let share = count as f64 / part.len() as f64;
                assert!((0.06..0.14).contains(&share), "{label}: {share}");
            }
        }
        // Column sums of the file: 561,718 in all, counted with awk.
        let all = digits.train.iter().chain(&digits.test);
        let sum: f32 = all.flat_map(|s| s.pixels).map(|p| p * 16.0).sum();
        assert_eq!(sum, 561_718.0);
    }

    #[test]
    fn the_split_is_deterministic() {
        assert_eq!(Digits::load(), Digits::load());
    }

    #[test]
    fn every_epoch_draws_every_image_once_in_new_order() {
        let mut batches = DigitBatches::<479>::new(5);
        let mut epoch = || -> Vec<usize> { (0..3).flat_map(|_| batches.draw_batch()).collect() };
        let (mut first, mut second) = (epoch(), epoch());
        assert_ne!(first, second);
        for order in [&mut first, &mut second] {
            order.sort_unstable();
            assert!(order.iter().copied().eq(0..TRAIN_IMAGES));
        }
    }

    #[test]
    fn the_order_follows_the_seed() {
        let batch = |seed| DigitBatches::<97>::new(seed).draw_batch();
        assert_eq!(batch(1), batch(1));
        assert_ne!(batch(1), batch(2));
    }
}
