//! Notices that the gateway did not run when it was due: it was stopped, other programs had its
//! processors, or its machine stood still.
//!
//! The event loop notes when it sleeps and when it goes on. What peers sent meanwhile is still to be
//! handled then, so that nobody may take the time for one in which nothing came.

use units::{Span, TimeNs};

/// 1 s: an event loop that goes on so much later than it was due did not run. A stall counts no time
/// before that moment. The time is chosen: a tenth of the stall deadline of the usual patience, 10 s.
/// Tested by `time_in_which_no_gateway_runs_is_no_stall`.
const SCHEDULING_DELAY_MIN: Span = Span::from_secs(1);
/// 5 s: a gateway that did not run for this time is worth a warning, half of the stall deadline of the
/// usual patience, 10 s. A busy machine makes shorter times, which are log lines. The part is chosen.
pub(in crate::engine) const SCHEDULING_DELAY_WARNED_MIN: Span = Span::from_secs(5);

/// When the event loop was last due.
#[derive(Debug)]
pub(in crate::engine) struct SchedulingDelay {
    /// The time at which it ran last, or at which it is to run again if nothing comes before.
    due: TimeNs,
}

impl SchedulingDelay {
    /// Begins to watch an event loop that runs at `now`.
    pub fn new(now: TimeNs) -> Self {
        Self { due: now }
    }

    /// Notes that the event loop sleeps until `wake_up`, or until something comes before.
    pub fn note_sleep(&mut self, wake_up: TimeNs) {
        self.due = self.due.max(wake_up);
    }

    /// Notes that the event loop runs at `now`. Returns how much later than it was due, if that is
    /// 1 s or more.
    pub fn note_run(&mut self, now: TimeNs) -> Option<Span> {
        let delay = now.since(self.due);
        self.due = now;
        (delay >= SCHEDULING_DELAY_MIN).then_some(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the time of a millisecond.
    fn at(ms: u64) -> TimeNs {
        TimeNs::from_ns(ms * 1_000_000)
    }

    #[test]
    fn only_time_after_the_wake_up_counts() {
        let mut delay = SchedulingDelay::new(at(5));
        delay.note_sleep(at(1005));
        assert_eq!(delay.note_run(at(300)), None, "an event came");
        assert_eq!(delay.note_run(at(1299)), None, "events are handled");
        assert_eq!(delay.note_run(at(2300)), Some(Span::from_ms(1001)), "so is one for a second");
        delay.note_sleep(at(3300));
        assert_eq!(delay.note_run(at(4299)), None, "a busy machine");
        delay.note_sleep(at(5299));
        assert_eq!(delay.note_run(at(17_299)), Some(Span::from_secs(12)));
        delay.note_sleep(at(17_000));
        assert_eq!(delay.note_run(at(17_300)), None, "it went on");
    }
}
