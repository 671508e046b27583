//! The RTT of a path without a queue, and whether a queue stands.

use units::{Span, TimeNs};

/// A windowed minimum of RTTs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MinRtt {
    least: Span,
    /// Whether an RTT was measured.
    is_measured: bool,
    /// When an RTT near the least was last seen.
    seen_at: TimeNs,
}

impl MinRtt {
    /// Creates the minimum, which begins with an `assumed` RTT that the first one replaces.
    pub fn new(assumed: Span, now: TimeNs) -> Self {
        Self { least: assumed, is_measured: false, seen_at: now }
    }

    /// Returns the least RTT in the window of time.
    pub fn get(&self) -> Span {
        self.least
    }

    /// Updates the least RTT by the RTT of a packet. An RTT above the least by up to half of what
    /// shows a queue confirms the least, since jitter seldom lets packets be as fast.
    pub fn note(&mut self, rtt: Span, now: TimeNs) {
        if !self.is_measured {
            self.replace(rtt, now);
        } else if rtt <= self.least + Span::from_ns(self.queue_threshold().ns() / 2) {
            (self.least, self.seen_at) = (self.least.min(rtt), now);
        }
    }

    /// Returns whether no RTT near the least was seen for more than 10 s, so that the least must be
    /// measured anew.
    pub fn is_unseen(&self, now: TimeNs) -> bool {
        now.since(self.seen_at) > MIN_RTT_LIFETIME
    }

    /// Leaves a time in which nothing was sent out of the age of the least RTT.
    pub fn exclude_idle_time(&mut self, idle: Span) {
        self.seen_at = self.seen_at + idle;
    }

    /// Replaces the least RTT by the least that was seen while the lane sent little.
    pub fn replace(&mut self, rtt: Span, now: TimeNs) {
        (self.least, self.is_measured, self.seen_at) = (rtt, true, now);
    }

    /// Returns whether an RTT exceeds the least by more than an eighth and 1 ms, which shows a
    /// queue.
    pub fn shows_queue(&self, rtt: Span) -> bool {
        rtt > self.least + self.queue_threshold()
    }

    /// Returns the time by which an RTT must exceed the least to show a queue.
    fn queue_threshold(&self) -> Span {
        Span::from_ns(self.least.ns() / QUEUE_RTT_SHARE_DIVISOR) + QUEUE_RTT_MARGIN
    }
}

/// 8: an RTT shows a queue where it exceeds the min RTT by more than an eighth of it, plus 1 ms. An
/// eighth is half of the shortest queue that is supported, a quarter of a BDP.
const QUEUE_RTT_SHARE_DIVISOR: u64 = 8;
/// 1 ms, added to an eighth of the min RTT: an RTT that exceeds the min RTT by more than this sum
/// shows a queue. Timers of sender and receiver have steps of 1 ms.
const QUEUE_RTT_MARGIN: Span = Span::from_ms(1);
/// 10 s: a lane that has seen no RTT near its min RTT for longer measures it anew with a small
/// window, since paths change. BBR has the same time.
const MIN_RTT_LIFETIME: Span = Span::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_least_round_trip_is_seen_again_despite_jitter() {
        let at = |ms: u64| TimeNs::from_ns(ms * MS);
        let mut least = MinRtt::new(Span::from_ms(200), at(0));
        least.note(Span::from_ms(240), at(0));
        least.note(Span::from_ms(80), at(0));
        least.note(Span::from_ms(84), at(5_000));
        assert!(!least.is_unseen(at(14_000)) && least.get() == Span::from_ms(80));
        least.note(Span::from_ms(90), at(15_500));
        assert!(least.is_unseen(at(15_500)));
        least.exclude_idle_time(Span::from_secs(3));
        assert!(!least.is_unseen(at(15_500)), "idle time does not count");
    }

    #[test]
    fn a_queue_is_longer_than_an_eighth_and_a_millisecond() {
        let least = MinRtt::new(Span::from_ms(80), TimeNs::default());
        assert!(!least.shows_queue(Span::from_ms(91)));
        assert!(least.shows_queue(Span::from_ms(92)));
    }
}
