//! A recording of a link's capacity, in mahimahi's format.

use std::fmt;
use std::str::FromStr;
use units::{BitRate, TimeNs};

/// The capacity of a link over time: opportunities to deliver [`DELIVERY_BYTES`], again and again.
///
/// The text has one line for each opportunity: the time in milliseconds since the beginning. The
/// last one is the length of the recording, after which it begins anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapacityRecording {
    /// The times of the opportunities in ms, in ascending order; the last is above zero.
    times_ms: Vec<u64>,
}

/// A text or a list that is no recording of a capacity. The caller's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CapacityError {
    /// A line that is no time.
    #[error("line {line}: `{text}` is no whole number of milliseconds")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// The text found.
        text: String,
    },
    /// A time before the one ahead of it.
    #[error("line {line}: {time_ms} ms is before the {before_ms} ms of the line ahead of it")]
    Order {
        /// Line number, from 1.
        line: usize,
        /// The time of the line.
        time_ms: u64,
        /// The time of the line ahead.
        before_ms: u64,
    },
    /// No opportunity after the beginning, so that the recording has no length.
    #[error("the recording ends at 0 ms: give at least one later delivery")]
    Empty,
    /// A recording that is longer than [`CapacityRecording::LENGTH_MS_MAX`].
    #[error("the recording ends at {time_ms} ms, above the {most_ms} ms that one may have")]
    TooLong {
        /// The time of the last delivery.
        time_ms: u64,
        /// The longest length.
        most_ms: u64,
    },
}

impl CapacityRecording {
    /// 86,400,000 ms, a day: the longest recording of a capacity; a longer one is refused. The
    /// limit is chosen; a loop of so long a recording never overflows a time.
    pub const LENGTH_MS_MAX: u64 = 86_400_000;

    /// Makes a recording of deliveries at these times, in milliseconds and in ascending order.
    ///
    /// # Errors
    /// [`CapacityError`], which counts the times as lines.
    pub fn new(times_ms: Vec<u64>) -> Result<Self, CapacityError> {
        let mut pairs = times_ms.windows(2).zip(2..);
        if let Some((pair, line)) = pairs.find(|(pair, _)| pair[1] < pair[0]) {
            return Err(CapacityError::Order { line, time_ms: pair[1], before_ms: pair[0] });
        }
        match times_ms.last() {
            None | Some(0) => Err(CapacityError::Empty),
            Some(last) if *last > Self::LENGTH_MS_MAX => {
                Err(CapacityError::TooLong { time_ms: *last, most_ms: Self::LENGTH_MS_MAX })
            }
            Some(_) => Ok(Self { times_ms }),
        }
    }

    /// Returns the times of the deliveries in milliseconds, in ascending order.
    pub fn times_ms(&self) -> &[u64] {
        &self.times_ms
    }

    /// Returns the length of the recording in milliseconds, after which it begins anew.
    pub fn length_ms(&self) -> u64 {
        self.times_ms.last().copied().unwrap_or(1)
    }

    /// Returns the mean capacity, rounded down to bits a second.
    pub fn mean_rate(&self) -> BitRate {
        let bits = self.times_ms.len() as u128 * u128::from(DELIVERY_BYTES) * 8;
        let rate = bits * 1000 / u128::from(self.length_ms());
        BitRate::from_bits_per_second(u64::try_from(rate).unwrap_or(u64::MAX))
    }

    /// Returns the time of the opportunity numbered `index` from 0, over all repetitions.
    pub(super) fn time_of(&self, index: u64) -> TimeNs {
        let count = self.times_ms.len() as u64;
        let round = (index / count).saturating_mul(self.length_ms());
        let ms = round.saturating_add(self.times_ms[(index % count) as usize]);
        TimeNs::from_ns(ms.saturating_mul(NS_PER_MS))
    }

    /// Returns the number of the first opportunity at `time` or later, over all repetitions.
    pub(super) fn first_from(&self, time: TimeNs) -> u64 {
        let ms = time.ns().div_ceil(NS_PER_MS);
        let count = self.times_ms.len() as u64;
        // The end of one repetition is the beginning of the next, so look from the one before.
        let round =
            (ms / self.length_ms()).saturating_sub(u64::from(ms.is_multiple_of(self.length_ms())));
        let within = ms - round * self.length_ms();
        let before = self.times_ms.partition_point(|at| *at < within) as u64;
        round * count + before
    }
}

impl FromStr for CapacityRecording {
    type Err = CapacityError;
    /// Parses one whole number of milliseconds a line; empty lines are left out.
    fn from_str(text: &str) -> Result<Self, CapacityError> {
        let lines = (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty());
        let times = lines.map(|(line, text)| {
            let time = text.trim().parse();
            time.map_err(|_| CapacityError::Line { line, text: text.to_owned() })
        });
        Self::new(times.collect::<Result<_, _>>()?)
    }
}

impl fmt::Display for CapacityRecording {
    /// Writes one time in milliseconds a line, as mahimahi reads them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.times_ms.iter().try_for_each(|time| writeln!(f, "{time}"))
    }
}

/// 1,500 bytes: the bytes of packets that one delivery opportunity of a recorded capacity carries,
/// as in the recordings of mahimahi.
pub const DELIVERY_BYTES: u64 = 1500;

/// 1,000,000 nanoseconds in a millisecond.
const NS_PER_MS: u64 = 1_000_000;
