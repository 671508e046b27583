//! What a link carries, as its lanes see it.
//!
//! As long as no more is lost than expected, a link carries at least what is sent; how much more,
//! nobody knows. When more is lost, what arrives is what it carries.

use units::{BitRate, Span};

/// Loss beyond the fabric's expectation that counts as congestion, as the lanes' windows take it.
const CONGESTION_LOSS: f64 = 0.03;
/// The part of its rate that a link must have been asked for, to say anything.
const ASKED_LEAST: f64 = 0.1;
/// The part of its rate that a link must have carried to be tried with more.
const FULL: f64 = 0.8;
/// Full samples without congestion after which more is tried,
const CALM_SAMPLES: u32 = 10;
/// by this factor.
const GROWTH: f64 = 1.25;
/// A change by less than this part is none.
const NOTICEABLE: f64 = 0.05;

/// What passed between two looks at all lanes of a link.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Bytes sent, IP headers included.
    pub sent_bytes: u64,
    /// Of these, given up as lost.
    pub lost_bytes: u64,
    /// The time between.
    pub span: Span,
}

/// The estimate for one direction of a link.
#[derive(Debug, Clone)]
pub struct Estimate {
    configured: f64,
    expected_loss: f64,
    /// In IP bytes per second, at most what is configured.
    rate: f64,
    /// What was last told.
    told: f64,
    calm: u32,
}

impl Estimate {
    /// At first what the fabric says.
    pub fn new(configured: BitRate, expected_loss: f64) -> Self {
        let rate = configured.bytes_per_second();
        Self { configured: rate, expected_loss, rate, told: rate, calm: 0 }
    }

    /// The part of the configured rate that the link carries, when that has changed noticeably.
    pub fn take(&mut self, sample: Sample) -> Option<f64> {
        let seconds = sample.span.as_secs_f64().max(1e-3);
        let sent = sample.sent_bytes as f64;
        let lost = (sample.lost_bytes as f64).min(sent);
        if sent < ASKED_LEAST * self.rate * seconds {
            return None;
        }
        if lost > (self.expected_loss + CONGESTION_LOSS) * sent {
            self.calm = 0;
            self.rate = ((sent - lost) / seconds).clamp(self.configured * 1e-3, self.rate);
        } else if self.rate < self.configured && sent > FULL * self.rate * seconds {
            self.calm += 1;
            if self.calm == CALM_SAMPLES {
                self.calm = 0;
                self.rate = (self.rate * GROWTH).min(self.configured);
            }
        }
        let change = (self.rate - self.told).abs();
        (change > NOTICEABLE * self.told || (change > 0.0 && self.rate == self.configured)).then(
            || {
                self.told = self.rate;
                self.rate / self.configured
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: BitRate = BitRate::from_bits_per_second(800_000_000);

    fn sample(sent: u64, lost: u64) -> Sample {
        Sample { sent_bytes: sent, lost_bytes: lost, span: Span::from_secs(1) }
    }

    #[test]
    fn a_halved_rate_is_seen_at_once_and_more_is_tried_later() {
        let mut estimate = Estimate::new(RATE, 0.001);
        assert_eq!(estimate.take(sample(98_000_000, 90_000)), None);
        assert_eq!(estimate.take(sample(98_000_000, 48_000_000)), Some(0.5));
        let grown = (0..40).filter_map(|_| estimate.take(sample(49_000_000, 10_000)));
        let grown: Vec<f64> = grown.collect();
        assert_eq!(grown.first(), Some(&0.625));
    }

    #[test]
    fn random_loss_and_silence_say_nothing() {
        let mut estimate = Estimate::new(RATE, 0.01);
        for _ in 0..50 {
            assert_eq!(estimate.take(sample(90_000_000, 2_000_000)), None);
            assert_eq!(estimate.take(sample(1_000_000, 900_000)), None);
        }
    }

    #[test]
    fn what_is_configured_is_reached_again_and_not_passed() {
        let mut estimate = Estimate::new(RATE, 0.0);
        assert_eq!(estimate.take(sample(100_000_000, 70_000_000)), Some(0.3));
        let mut last = 0.3;
        for _ in 0..200 {
            let sent = (100e6 * last * 0.98) as u64;
            last = estimate.take(sample(sent, 0)).unwrap_or(last);
        }
        assert_eq!(last, 1.0);
    }
}
