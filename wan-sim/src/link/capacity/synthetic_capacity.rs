//! A generator of recordings with the traits of cellular, satellite and cloud links.

use super::capacity_recording::{CapacityRecording, DELIVERY_BYTES};
use crate::random_stream::RandomStream;
use std::str::FromStr;

/// The kind of a generated recording. The numbers are chosen, not measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyntheticCapacity {
    /// A rate that wanders between 1 and 40 Mbit/s within seconds, with short outages.
    Cellular,
    /// Rates of 40 to 160 Mbit/s that change every 15 s, with a gap of up to 200 ms at each change.
    Satellite,
    /// 1 Gbit/s less what neighbours take, which changes every 500 ms; now and then throttled to a
    /// quarter for seconds.
    Cloud,
}

impl SyntheticCapacity {
    /// All kinds of capacity recordings that can be generated, each for links with other traits.
    pub const ALL: [Self; 3] = [Self::Cellular, Self::Satellite, Self::Cloud];

    /// Returns the word by which files and flags name the kind.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Cellular => "cellular",
            Self::Satellite => "satellite",
            Self::Cloud => "cloud",
        }
    }

    /// Generates a recording of 60 s; equal seeds give equal recordings.
    pub fn generate(self, seed: u64) -> CapacityRecording {
        let mut stream = RandomStream::new(seed, self.word());
        let mut rates = SyntheticRateWalk::new(self);
        let (mut times_ms, mut owed_bytes) = (Vec::new(), 0);
        for ms in 1..=LENGTH_MS {
            owed_bytes += rates.kbits_at(ms, &mut stream) / 8;
            for _ in 0..owed_bytes / DELIVERY_BYTES {
                times_ms.push(ms);
            }
            owed_bytes %= DELIVERY_BYTES;
        }
        // The last delivery sets the length.
        times_ms.push(LENGTH_MS);
        CapacityRecording::new(times_ms).expect("ascending times that end above zero")
    }
}

impl FromStr for SyntheticCapacity {
    type Err = ();
    /// Parses the word of a kind.
    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|kind| kind.word() == text).ok_or(())
    }
}

/// The rate of a generated link, which changes at steps.
struct SyntheticRateWalk {
    kind: SyntheticCapacity,
    /// Kilobits a second, that is bits a millisecond.
    kbits: u64,
    /// Until this millisecond nothing passes.
    silent_until_ms: u64,
    /// Until this millisecond a cloud link is throttled.
    throttled_until_ms: u64,
}

impl SyntheticRateWalk {
    /// Starts a link of this kind at 10 Mbit/s, which the step of the first millisecond changes.
    fn new(kind: SyntheticCapacity) -> Self {
        Self { kind, kbits: 10_000, silent_until_ms: 0, throttled_until_ms: 0 }
    }

    /// Advances the walk to millisecond `ms` and returns its rate in kbit/s, which is the bits in
    /// that millisecond. Callers pass each millisecond in turn.
    fn kbits_at(&mut self, ms: u64, stream: &mut RandomStream) -> u64 {
        match self.kind {
            SyntheticCapacity::Cellular if ms % 100 == 1 => {
                // Up or down by at most a quarter; once in 10 s nothing for up to a second.
                let factor_permille = 800 + stream.random_below(451);
                self.kbits = (self.kbits * factor_permille / 1000).clamp(1_000, 40_000);
                if stream.random_below(100) == 0 {
                    self.silent_until_ms = ms + 100 + stream.random_below(900);
                }
            }
            SyntheticCapacity::Satellite if ms % 15_000 == 1 => {
                self.kbits = 40_000 + stream.random_below(120_001);
                self.silent_until_ms = ms + 50 + stream.random_below(151);
            }
            SyntheticCapacity::Cloud if ms % 500 == 1 => {
                self.kbits = 1_000_000 - stream.random_below(300_001);
                if stream.random_below(40) == 0 {
                    self.throttled_until_ms = ms + 2_000 + stream.random_below(3_000);
                }
            }
            _ => {}
        }
        match ms {
            _ if ms < self.silent_until_ms => 0,
            _ if ms < self.throttled_until_ms => self.kbits / 4,
            _ => self.kbits,
        }
    }
}

/// 60,000 ms: the length of a generated capacity recording, after which it begins anew. The length
/// is chosen, enough for several changes of each kind.
const LENGTH_MS: u64 = 60_000;
