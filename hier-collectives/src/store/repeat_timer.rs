//! When a store repeats messages that were not answered.

use units::{Span, TimeNs};

/// 1 s: unanswered messages between gateways about a store are first repeated after 1 s, for those
/// that are lost although nobody noticed. The time is chosen.
const REPEAT_AFTER_MIN: Span = Span::from_secs(1);
/// 128 s: the longest wait between two repeats of unanswered messages about a store; the wait
/// doubles from 1 s on with each repeat. 128 s is more than twice the longest round trip of a
/// fabric, 60 s.
const REPEAT_AFTER_MAX: Span = Span::from_secs(128);

/// The time at which messages without an answer are repeated.
#[derive(Debug, Default)]
pub(super) struct StoreRepeatTimer {
    due: Option<TimeNs>,
    /// The time that was waited before the last repeat.
    waited: Span,
}

impl StoreRepeatTimer {
    /// Returns when messages are to be repeated; `None` while no answer is awaited.
    pub fn due(&self) -> Option<TimeNs> {
        self.due
    }

    /// Starts the timer at `now` if `is_waiting` and it does not run yet. Resets it if nothing is
    /// awaited.
    pub fn run_while(&mut self, is_waiting: bool, now: TimeNs) {
        if !is_waiting {
            *self = Self::default();
        } else if self.due.is_none() {
            self.begin(now);
        }
    }

    /// Returns whether unanswered messages are due; if so, it also begins the next wait, which is
    /// twice as long.
    pub fn is_over(&mut self, now: TimeNs) -> bool {
        let is_over = self.due.is_some_and(|due| due <= now);
        if is_over {
            self.begin(now);
        }
        is_over
    }

    /// Sets the next due time after a wait twice as long as the last one, from [`REPEAT_AFTER_MIN`]
    /// to [`REPEAT_AFTER_MAX`].
    fn begin(&mut self, now: TimeNs) {
        self.waited = (self.waited + self.waited).clamp(REPEAT_AFTER_MIN, REPEAT_AFTER_MAX);
        self.due = Some(now + self.waited);
    }
}
