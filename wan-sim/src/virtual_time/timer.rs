//! The timer of one wait, for futures and for quinn.

use super::clock::{Clock, TimerKey};
use quinn::AsyncTimer;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use units::TimeNs;

/// A wait that ends at its time; made by [`VirtualTime::sleep_until`](crate::VirtualTime::sleep_until).
#[derive(Debug)]
#[must_use = "a wait does nothing unless it is polled"]
pub struct Sleep {
    clock: Arc<Clock>,
    at: TimeNs,
    /// The key among the clock's timers, while it waits.
    key: Option<TimerKey>,
}

impl Sleep {
    pub(super) fn new(clock: Arc<Clock>, at: TimeNs) -> Self {
        Self { clock, at, key: None }
    }

    /// Ends at `at` instead.
    pub fn move_to(&mut self, at: TimeNs) {
        if self.at != at {
            self.unregister();
            self.at = at;
        }
    }

    fn unregister(&mut self) {
        if let Some(key) = self.key.take() {
            self.clock.unregister(&key);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        match this.clock.register(this.at, this.key, cx.waker()) {
            Some(key) => {
                this.key = Some(key);
                Poll::Pending
            }
            None => {
                this.unregister();
                Poll::Ready(())
            }
        }
    }
}

impl AsyncTimer for Sleep {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        let at = self.clock.time_of(at);
        self.move_to(at);
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Future::poll(self, cx)
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.unregister();
    }
}
