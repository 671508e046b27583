//! The round trip that a lane's windows are for.
//!
//! A path that becomes longer leaves the link idle while the window is waited for; but a queue that
//! a lane fills looks just like that, and windows that followed it would fill it further. So a lane
//! that waits, on a path that seems longer, has less in flight for a while: a queue drains, distance
//! stays.

use std::collections::VecDeque;
use units::Span;

/// Round trips whose least one counts.
const ROUNDS: usize = 4;
/// A round trip has changed when it differs by more than this part of it.
const CHANGE: f64 = 0.05;
/// A queue drains in one round trip, and is seen to have in another.
const DRAIN: u32 = 2;
/// After a queue was found, so many rounds pass before it may be distance, twice as many each time
const WAIT: u32 = 4;
/// up to so many.
const WAIT_MAX: u32 = 64;

/// See the module.
#[derive(Debug)]
pub(crate) struct Distance {
    rtt: Span,
    seen: Span,
    longest: Span,
    /// Whether a queue drains when it is asked to.
    heeds: bool,
    rounds: VecDeque<Option<Span>>,
    /// While a queue, if it is one, drains: rounds left.
    draining: u32,
    /// Rounds to pass before the next time, and after that one.
    waiting: u32,
    wait: u32,
}

impl Distance {
    /// At first what the fabric says; never followed to more than `longest`. Of a lane that has
    /// less in flight when it is to drain a queue, or not: then the round trip is what is seen.
    pub fn new(rtt: Span, longest: Span, heeds: bool) -> Self {
        let rounds = VecDeque::with_capacity(ROUNDS);
        Self { rtt, seen: rtt, longest, heeds, rounds, draining: 0, waiting: 0, wait: WAIT }
    }

    /// The round trip, without our own queue.
    pub fn rtt(&self) -> Span {
        self.rtt
    }

    /// Whether a queue, if it is one, is to drain.
    pub fn drains(&self) -> bool {
        self.draining > 0
    }

    /// With a queue, if it is one.
    pub fn seen(&self) -> Span {
        self.seen
    }

    /// Another round is over, whose fastest packet took `least`; in which the lane waited, or not.
    pub fn round(&mut self, least: Option<Span>, waited: bool) {
        self.rounds.push_back(least.map(|least| least.min(self.longest)));
        if self.rounds.len() > ROUNDS {
            self.rounds.pop_front();
        }
        let Some(least) = self.rounds.iter().flatten().min().copied() else { return };
        if !self.drains() {
            self.seen = least;
        }
        let far = least.ns() as f64 > (1.0 + CHANGE) * self.rtt.ns() as f64;
        let near = (least.ns() as f64) < (1.0 - CHANGE) * self.rtt.ns() as f64;
        self.waiting = self.waiting.saturating_sub(1);
        if self.drains() {
            self.draining -= 1;
            // What the peer's lanes fill stays.
            let fell = (least.ns() as f64) < (1.0 - CHANGE) * self.seen.ns() as f64;
            if !far || fell {
                (self.draining, self.waiting) = (0, self.wait);
                self.wait = (2 * self.wait).min(WAIT_MAX);
            } else if self.draining == 0 {
                (self.rtt, self.wait) = (least, WAIT);
            }
        } else if near || far && !self.heeds {
            self.rtt = least;
        } else if far && waited && self.rounds.len() == ROUNDS && self.waiting == 0 {
            self.draining = DRAIN;
            self.rounds.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Span = Span::from_ms;

    fn at(rtt: u64) -> Distance {
        Distance::new(MS(rtt), MS(800), true)
    }

    /// Rounds of a lane that waits, on a path of so many ms, with a queue of so many that drains.
    /// Returns in how many it had less in flight.
    fn rounds(distance: &mut Distance, count: u32, (path, queue): (u64, u64)) -> u32 {
        let mut less = 0;
        for _ in 0..count {
            let queue = if distance.drains() { 0 } else { queue };
            less += u32::from(distance.drains());
            distance.round(Some(MS(path + queue)), true);
        }
        less
    }

    #[test]
    fn a_path_that_becomes_longer_is_followed_and_a_queue_is_not() {
        let mut longer = at(80);
        assert!(rounds(&mut longer, 6, (110, 0)) == 2 && longer.rtt() == MS(110));
        let mut queued = at(80);
        assert!(rounds(&mut queued, 5, (80, 60)) == 1 && queued.rtt() == MS(80));
        assert_eq!(queued.seen(), MS(140));
    }

    /// It stays while ours drains: the path is no longer for it.
    #[test]
    fn a_queue_of_the_peer_beside_our_own_is_no_distance() {
        let mut queued = at(80);
        assert!(rounds(&mut queued, 100, (110, 60)) > 1 && queued.rtt() == MS(80));
    }

    #[test]
    fn a_queue_is_looked_for_less_and_less_often() {
        let mut queued = at(80);
        let less = [10, 100, 100, 1000].map(|count| rounds(&mut queued, count, (80, 60)));
        assert_eq!(queued.rtt(), MS(80));
        assert!(less[1] > less[2] && less[3] <= 16, "{less:?}");
    }

    #[test]
    fn noise_what_nobody_waits_for_and_a_pause_change_nothing() {
        let mut distance = at(80);
        assert_eq!(rounds(&mut distance, 20, (83, 0)), 0);
        (0..20).for_each(|_| distance.round(Some(MS(150)), false));
        assert_eq!(distance.seen(), MS(150), "as the peer's windows have it");
        assert!(distance.rtt() == MS(80) && !distance.drains());
        (0..20).for_each(|_| distance.round(None, true));
        assert_eq!(distance.rtt(), MS(80));
    }

    #[test]
    fn who_drains_no_queue_follows_what_is_seen() {
        let mut distance = Distance::new(MS(80), MS(800), false);
        assert_eq!(rounds(&mut distance, 5, (80, 60)), 0);
        assert_eq!(distance.rtt(), MS(140));
    }

    #[test]
    fn a_shorter_path_is_followed_at_once_and_none_beyond_the_longest() {
        let mut distance = at(80);
        rounds(&mut distance, 1, (40, 0));
        assert_eq!(distance.rtt(), MS(40));
        rounds(&mut distance, 20, (9000, 0));
        assert_eq!(distance.rtt(), MS(800));
    }
}
