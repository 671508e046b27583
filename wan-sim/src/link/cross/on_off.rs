//! A sender that bursts at a rate and pauses, whatever happens to its packets.

use super::cross_report::SEGMENT_BYTES;
use crate::random_stream::RandomStream;
use units::{BitRate, Span, TimeNs};

/// The sender of on-off traffic.
#[derive(Debug)]
pub(super) struct OnOffFlow {
    /// The time of a packet at the rate of a burst.
    gap: Span,
    on: Span,
    off: Span,
    next_send: TimeNs,
    burst_end: TimeNs,
    sent: u64,
    stream: RandomStream,
}

impl OnOffFlow {
    /// Makes a sender that begins its first burst at `start`.
    pub(super) fn new(
        (rate, on, off): (BitRate, Span, Span),
        start: TimeNs,
        mut stream: RandomStream,
    ) -> Self {
        let gap_ns = SEGMENT_BITS * NS_PER_SECOND / rate.bits_per_second().max(1);
        let burst_end = start + draw_on_off_span(&mut stream, on);
        let gap = Span::from_ns(gap_ns.max(1));
        Self { gap, on, off, next_send: start, burst_end, sent: 0, stream }
    }

    /// Returns when the next packet leaves.
    pub(super) fn next_wake(&self) -> TimeNs {
        self.next_send
    }

    /// Sends the packets that are due at `now`, and returns their numbers.
    pub(super) fn take_sends(&mut self, now: TimeNs) -> Vec<u64> {
        let mut sends = Vec::new();
        while self.next_send <= now {
            sends.push(self.sent);
            self.sent += 1;
            self.next_send = self.next_send + self.gap;
            if self.next_send >= self.burst_end {
                self.next_send = self.burst_end + draw_on_off_span(&mut self.stream, self.off);
                self.burst_end = self.next_send + draw_on_off_span(&mut self.stream, self.on);
            }
        }
        sends
    }
}

/// Draws an exponentially distributed time with this mean, of at least 1 ns.
fn draw_on_off_span(stream: &mut RandomStream, mean: Span) -> Span {
    Span::from_ns((stream.exponential(mean.ns() as f64) as u64).max(1))
}

/// 12,000 bits: the length of a packet of cross traffic, [`SEGMENT_BYTES`] in bits.
const SEGMENT_BITS: u64 = SEGMENT_BYTES as u64 * 8;
/// 1,000,000,000 nanoseconds in a second.
const NS_PER_SECOND: u64 = 1_000_000_000;
