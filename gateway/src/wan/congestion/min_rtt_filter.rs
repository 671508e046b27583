//! The min RTT of a lane's path: the round trip that its congestion window is for.
//!
//! A path that became longer leaves the link idle while the sender waits for window space. But a queue
//! that the lane fills looks the same, and a larger window would fill it further. So a window-limited
//! lane whose RTT has grown drains: it uses less of its window for two rounds. A queue shrinks then;
//! distance stays.
//!
//! The tuner task of a lane owns it and calls [`MinRttFilter::end_round`] once a round trip, and
//! [`MinRttFilter::end_rest`] after a time without traffic. The states below are implied by `drain_rounds`
//! and `pause_rounds`.
//!
//! ```text
//!            4 rounds, all > 1.05 x min RTT, and the lane is window-limited
//!   CRUISE ------------------------------------------------------------------> DRAIN
//!   (drain_rounds = 0)                                          (drain_rounds = 2, 1)
//!     ^   ^                                                               |
//!     |   |   RTT fell by 5 %, or is near the min RTT: it was a queue     |
//!     |   +---------------------------------------------------------------+
//!     |       then PAUSE: no drain for `pause` rounds (4, doubling to 64) |
//!     |                                                                   |
//!     |       RTT stayed for both rounds: adopt it, pause = 4             |
//!     +-------------------------------------------------------------------+
//!
//!   CRUISE: an RTT < 0.95 x min RTT is adopted at once.
//! ```
//!
//! With CUBIC and NewReno, which do not use this window, a longer RTT is adopted at once too.

use std::collections::VecDeque;
use units::Span;

/// 4 round trips (10 ms or more each), whose least RTT is compared with a lane's min RTT: only if
/// all four exceed the min RTT, a drain tests whether the path is longer. With four, a path that
/// became longer is filled within ten round trips.
/// Tested by `a_longer_path_is_full_within_ten_round_trips`.
const MIN_RTT_ROUNDS: usize = 4;
/// 0.05 of a lane's min RTT: a least RTT that differs by no more is jitter, and neither changes the
/// min RTT nor begins a drain. The fraction is chosen.
const RTT_JITTER_FRACTION: f64 = 0.05;
/// 2 round trips (10 ms or more each): the duration of a drain. The queue shrinks in the first, and
/// the RTT shows the change in the second. An RTT that is still long then becomes the min RTT.
const DRAIN_ROUNDS: u32 = 2;
/// 4 round trips (10 ms or more each) without a new drain: the first pause after a drain that found
/// a queue. Each next pause is twice as long, up to [`DRAIN_PAUSE_ROUNDS_MAX`] (64).
/// Tested by `a_queue_is_drained_less_and_less_often`.
const DRAIN_PAUSE_ROUNDS_FIRST: u32 = 4;
/// 64 round trips (10 ms or more each): the longest pause between two drains of a lane's queue, up
/// to which pauses double. A drain then takes two of 66 round trips.
const DRAIN_PAUSE_ROUNDS_MAX: u32 = 64;

/// The min RTT filter of one lane.
#[derive(Debug)]
pub(crate) struct MinRttFilter {
    /// The min RTT, without a queue of our own.
    rtt: Span,
    /// The RTT with a queue, if there is one.
    observed_rtt: Span,
    /// The longest RTT that is adopted.
    rtt_max: Span,
    /// Whether the controller uses the lane's congestion window, so that a queue can be drained.
    can_drain: bool,
    /// The least RTT of each of the last rounds.
    rounds: VecDeque<Option<Span>>,
    /// Rounds left of the drain.
    drain_rounds: u32,
    /// Rounds left until a drain may begin.
    pause_rounds: u32,
    /// The length of the next pause, in rounds.
    pause: u32,
}

impl MinRttFilter {
    /// Creates the filter of one lane. It begins with the configured RTT and adopts none above
    /// `rtt_max`. `can_drain`: the lane's controller uses the window that drains shrink.
    pub fn new(rtt: Span, rtt_max: Span, can_drain: bool) -> Self {
        Self {
            rtt,
            observed_rtt: rtt,
            rtt_max,
            can_drain,
            rounds: VecDeque::with_capacity(MIN_RTT_ROUNDS),
            drain_rounds: 0,
            pause_rounds: 0,
            pause: DRAIN_PAUSE_ROUNDS_FIRST,
        }
    }

    /// Returns the min RTT of the lane, in which no queue of our own is left.
    pub fn rtt(&self) -> Span {
        self.rtt
    }

    /// Returns whether the lane is to use less of its window now, so that its queue drains.
    pub fn is_draining(&self) -> bool {
        self.drain_rounds > 0
    }

    /// Returns the least RTT of the last rounds outside drains, which includes any queue.
    pub fn observed_rtt(&self) -> Span {
        self.observed_rtt
    }

    /// Ends a time of `idle_rounds` round trips without traffic, which show no RTT. At most
    /// [`MIN_RTT_ROUNDS`] of them count, for the history holds no more.
    pub fn end_rest(&mut self, idle_rounds: u64) {
        let counted = usize::try_from(idle_rounds).unwrap_or(usize::MAX).min(MIN_RTT_ROUNDS);
        (0..counted).for_each(|_| self.end_round(None, false));
    }

    /// Ends a round trip, and with it begins or ends a drain, or adopts another min RTT, where that
    /// is due. `least` is the least RTT of the round trip, `None` without an acknowledgement;
    /// `window_limited` says whether the lane waited for window space.
    pub fn end_round(&mut self, least: Option<Span>, window_limited: bool) {
        self.rounds.push_back(least.map(|least| least.min(self.rtt_max)));
        if self.rounds.len() > MIN_RTT_ROUNDS {
            self.rounds.pop_front();
        }
        let Some(least) = self.rounds.iter().flatten().min().copied() else { return };
        if !self.is_draining() {
            self.observed_rtt = least;
        }
        let longer = least.ns() as f64 > (1.0 + RTT_JITTER_FRACTION) * self.rtt.ns() as f64;
        let shorter = (least.ns() as f64) < (1.0 - RTT_JITTER_FRACTION) * self.rtt.ns() as f64;
        self.pause_rounds = self.pause_rounds.saturating_sub(1);
        if self.is_draining() {
            self.drain_rounds -= 1;
            // A queue that the peer's lanes fill stays, so the RTT may fall and still be longer.
            let observed = self.observed_rtt.ns() as f64;
            let fell = (least.ns() as f64) < (1.0 - RTT_JITTER_FRACTION) * observed;
            if !longer || fell {
                (self.drain_rounds, self.pause_rounds) = (0, self.pause);
                self.pause = (2 * self.pause).min(DRAIN_PAUSE_ROUNDS_MAX);
            } else if self.drain_rounds == 0 {
                (self.rtt, self.pause) = (least, DRAIN_PAUSE_ROUNDS_FIRST);
            }
        } else if shorter || longer && !self.can_drain {
            self.rtt = least;
        } else if longer
            && window_limited
            && self.rounds.len() == MIN_RTT_ROUNDS
            && self.pause_rounds == 0
        {
            self.drain_rounds = DRAIN_ROUNDS;
            self.rounds.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Span = Span::from_ms;

    fn at(rtt: u64) -> MinRttFilter {
        MinRttFilter::new(MS(rtt), MS(800), true)
    }

    /// The path of a lane that is window-limited: its round trip, and its queue while it is not drained.
    struct Path {
        rtt_ms: u64,
        queue_ms: u64,
    }

    /// Rounds over a path; returns in how many the lane drained.
    fn rounds(min_rtt: &mut MinRttFilter, count: u32, Path { rtt_ms, queue_ms }: Path) -> u32 {
        let mut drained = 0;
        for _ in 0..count {
            let queue_ms = if min_rtt.is_draining() { 0 } else { queue_ms };
            drained += u32::from(min_rtt.is_draining());
            min_rtt.end_round(Some(MS(rtt_ms + queue_ms)), true);
        }
        drained
    }

    #[test]
    fn a_longer_path_is_adopted_and_a_queue_is_not() {
        let mut longer = at(80);
        let drained = rounds(&mut longer, 6, Path { rtt_ms: 110, queue_ms: 0 });
        assert!(drained == 2 && longer.rtt() == MS(110));
        let mut queued = at(80);
        let drained = rounds(&mut queued, 5, Path { rtt_ms: 80, queue_ms: 60 });
        assert!(drained == 1 && queued.rtt() == MS(80));
        assert_eq!(queued.observed_rtt(), MS(140));
    }

    /// The peer's queue stays while ours drains: the path is no longer for it.
    #[test]
    fn the_peers_queue_beside_ours_is_no_distance() {
        let mut queued = at(80);
        let drained = rounds(&mut queued, 100, Path { rtt_ms: 110, queue_ms: 60 });
        assert!(drained > 1 && queued.rtt() == MS(80));
    }

    #[test]
    fn a_queue_is_drained_less_and_less_often() {
        let mut queued = at(80);
        let path = || Path { rtt_ms: 80, queue_ms: 60 };
        let drained = [10, 100, 100, 1000].map(|count| rounds(&mut queued, count, path()));
        assert_eq!(queued.rtt(), MS(80));
        assert!(drained[1] > drained[2] && drained[3] <= 16, "{drained:?}");
    }

    #[test]
    fn jitter_idle_windows_and_pauses_change_nothing() {
        let mut min_rtt = at(80);
        assert_eq!(rounds(&mut min_rtt, 20, Path { rtt_ms: 83, queue_ms: 0 }), 0);
        (0..20).for_each(|_| min_rtt.end_round(Some(MS(150)), false));
        assert_eq!(min_rtt.observed_rtt(), MS(150), "as the peer's windows have it");
        assert!(min_rtt.rtt() == MS(80) && !min_rtt.is_draining());
        (0..20).for_each(|_| min_rtt.end_round(None, true));
        assert_eq!(min_rtt.rtt(), MS(80));
    }

    #[test]
    fn a_lane_that_cannot_drain_adopts_the_observed_rtt() {
        let mut min_rtt = MinRttFilter::new(MS(80), MS(800), false);
        assert_eq!(rounds(&mut min_rtt, 5, Path { rtt_ms: 80, queue_ms: 60 }), 0);
        assert_eq!(min_rtt.rtt(), MS(140));
    }

    #[test]
    fn a_rest_counts_like_rounds_without_an_rtt() {
        let path = || Path { rtt_ms: 110, queue_ms: 0 };
        for before in 0..6 {
            let (mut rested, mut idle) = (at(80), at(80));
            rounds(&mut rested, before, path());
            rounds(&mut idle, before, path());
            rested.end_rest(1000);
            (0..1000).for_each(|_| idle.end_round(None, false));
            for after in 0..6 {
                assert_eq!(rested.rtt(), idle.rtt(), "{before} rounds before, {after} after");
                assert_eq!(rested.is_draining(), idle.is_draining(), "{before}, {after}");
                rounds(&mut rested, 1, path());
                rounds(&mut idle, 1, path());
            }
        }
    }

    #[test]
    fn a_shorter_path_is_adopted_at_once() {
        let mut min_rtt = at(80);
        rounds(&mut min_rtt, 1, Path { rtt_ms: 40, queue_ms: 0 });
        assert_eq!(min_rtt.rtt(), MS(40));
        rounds(&mut min_rtt, 20, Path { rtt_ms: 9000, queue_ms: 0 });
        assert_eq!(min_rtt.rtt(), MS(800), "none beyond the longest");
    }
}
