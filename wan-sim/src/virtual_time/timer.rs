//! Waiting for a virtual time.

use super::{VirtualTime, lock};
use std::pin::Pin;
use std::task::{Context, Poll};
use units::TimeNs;

/// A wait that ends at its time; made by [`VirtualTime::sleep_until`].
#[derive(Debug)]
#[must_use = "a wait does nothing unless it is polled"]
pub struct Sleep {
    time: VirtualTime,
    at: TimeNs,
    /// Its place among the timers, while it waits.
    place: Option<(TimeNs, u64)>,
}

impl Sleep {
    pub(super) fn new(time: VirtualTime, at: TimeNs) -> Self {
        Self { time, at, place: None }
    }

    pub(super) fn time(&self) -> &VirtualTime {
        &self.time
    }

    /// Ends at `at` instead.
    pub fn move_to(&mut self, at: TimeNs) {
        if self.at != at {
            self.leave();
            self.at = at;
        }
    }

    fn leave(&mut self) {
        if let Some(place) = self.place.take() {
            lock(&self.time.shared.clock).timers.remove(&place);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let mut clock = lock(&this.time.shared.clock);
        if clock.now >= this.at {
            drop(clock);
            this.leave();
            return Poll::Ready(());
        }
        let place = this.place.unwrap_or_else(|| {
            clock.timers_set += 1;
            (this.at, clock.timers_set)
        });
        match clock.timers.get_mut(&place) {
            Some(waker) => waker.clone_from(cx.waker()),
            None => drop(clock.timers.insert(place, cx.waker().clone())),
        }
        this.place = Some(place);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.leave();
    }
}
