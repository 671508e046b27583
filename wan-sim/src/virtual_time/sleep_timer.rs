//! The timer of one wait, for futures and for quinn.

use super::virtual_clock::{TimerKey, VirtualClock};
use quinn::AsyncTimer;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use units::TimeNs;

/// A wait that ends at its time; made by
/// [`VirtualExecutor::sleep_until`](crate::VirtualExecutor::sleep_until).
#[derive(Debug)]
#[must_use = "a wait does nothing unless it is polled"]
pub struct SleepTimer {
    clock: Arc<VirtualClock>,
    at: TimeNs,
    /// The key among the clock's timers, while it waits.
    key: Option<TimerKey>,
}

impl SleepTimer {
    /// Makes a wait until `at` on `clock`.
    pub(super) fn new(clock: Arc<VirtualClock>, at: TimeNs) -> Self {
        Self { clock, at, key: None }
    }

    /// Makes the wait end at `at` instead.
    pub fn move_deadline(&mut self, at: TimeNs) {
        if self.at != at {
            self.unregister_timer();
            self.at = at;
        }
    }

    /// Removes the timer from the clock, if it waits there.
    fn unregister_timer(&mut self) {
        if let Some(key) = self.key.take() {
            self.clock.unregister_timer(&key);
        }
    }
}

impl Future for SleepTimer {
    type Output = ();

    /// Ends when the clock has reached the time of the wait; until then, registers the waker with
    /// the clock.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        match this.clock.register_timer(this.at, this.key, cx.waker()) {
            Some(key) => {
                this.key = Some(key);
                Poll::Pending
            }
            None => {
                this.unregister_timer();
                Poll::Ready(())
            }
        }
    }
}

impl AsyncTimer for SleepTimer {
    /// Makes the wait end at the instant `at` instead.
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        let at = self.clock.time_of(at);
        self.move_deadline(at);
    }

    /// Polls for the end of the wait.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Future::poll(self, cx)
    }
}

impl Drop for SleepTimer {
    /// Removes the timer from the clock, if it waits there.
    fn drop(&mut self) {
        self.unregister_timer();
    }
}
