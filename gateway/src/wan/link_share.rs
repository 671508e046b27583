//! `link-share`: congestion control for a link whose rate is known.
//!
//! The rate limit keeps the link from filling, so random loss is not taken for congestion: the
//! window is for what the lane delivers (`wan/carried.rs`). quinn's own pacer
//! cannot be given a rate; a window above `u32::MAX` turns it off, so below its limit this
//! controller reports an unlimited window, and above it the bytes in flight.
//!
//! What is sent again does not pass the rate limit, which leaves room for the losses that the
//! fabric expects; what is lost beyond these is charged to it afterwards. After a cut all that
//! was in flight is lost at once, and would overflow the queue once more: until it has been sent
//! again the window is what the lane carries in a round trip, which quinn's pacer spreads.

use super::windows::Windows;
use quinn_proto::RttEstimator;
use quinn_proto::congestion::Controller;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::Notify;

/// What may be sent again at once, as a part of the window for it.
const REPAIR_BURST_DIVISOR: u64 = 4;
/// Losses come in bursts: so much of what was expected may come at once.
const ALLOWANCE_BYTES_MAX: f64 = (1 << 20) as f64;

/// How much one lane may have in flight; followed live, see [`super::windows`].
#[derive(Debug, Default)]
pub(super) struct Limits {
    /// Bytes that may be in flight.
    flight: AtomicU64,
    /// Bytes that may be in flight while much is sent again.
    repair: AtomicU64,
    /// Whether a mark of congestion came.
    marked: AtomicBool,
    /// Bytes lost beyond expectation that nobody has been charged for.
    owed: AtomicU64,
    owes: Notify,
}

impl Limits {
    pub fn set(&self, windows: &Windows) {
        self.flight.store(windows.flight, Ordering::Relaxed);
        self.repair.store(windows.repair, Ordering::Relaxed);
    }

    /// Whether a mark of congestion came since it was last asked.
    pub fn take_marked(&self) -> bool {
        self.marked.swap(false, Ordering::Relaxed)
    }

    /// Waits until bytes were lost beyond what the fabric expects, and says how many have been
    /// since it last did.
    pub async fn owed(&self) -> u64 {
        self.owes.notified().await;
        self.owed.swap(0, Ordering::Relaxed)
    }

    pub fn flight(&self) -> u64 {
        self.flight.load(Ordering::Relaxed)
    }
}

/// The controller of one lane.
#[derive(Debug, Clone)]
pub(super) struct LinkShare {
    limits: Arc<Limits>,
    expected_loss: f64,
    /// Bytes that may be lost before any is owed: what was expected and has not happened.
    allowance: f64,
    in_flight: u64,
    /// Lost bytes that have not been sent again.
    repair: u64,
}

impl LinkShare {
    /// For a link that loses `expected_loss` of its packets at random.
    pub fn new(limits: Arc<Limits>, expected_loss: f64, in_flight: u64) -> Self {
        Self { limits, expected_loss, allowance: 0.0, in_flight, repair: 0 }
    }
}

impl Controller for LinkShare {
    fn on_sent(&mut self, _now: Instant, bytes: u64, _last_packet_number: u64) {
        self.in_flight += bytes;
        self.repair = self.repair.saturating_sub(bytes);
    }

    fn on_ack(&mut self, _: Instant, _: Instant, bytes: u64, _: bool, _: &RttEstimator) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        let allowance = self.allowance + bytes as f64 * self.expected_loss;
        self.allowance = allowance.min(ALLOWANCE_BYTES_MAX);
    }

    fn on_end_acks(&mut self, _: Instant, in_flight: u64, _: bool, _: Option<u64>) {
        self.in_flight = in_flight;
    }

    fn on_congestion_event(&mut self, _: Instant, _: Instant, _persistent: bool, lost_bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(lost_bytes);
        self.repair += lost_bytes;
        self.allowance -= lost_bytes as f64;
        if self.allowance < 0.0 {
            self.limits.owed.fetch_add(-self.allowance as u64, Ordering::Relaxed);
            self.limits.owes.notify_one();
            self.allowance = 0.0;
        }
        if lost_bytes == 0 {
            self.limits.marked.store(true, Ordering::Relaxed);
        }
    }

    fn on_mtu_update(&mut self, _new_mtu: u16) {}

    fn window(&self) -> u64 {
        let repair_window = self.limits.repair.load(Ordering::Relaxed);
        if self.repair > repair_window / REPAIR_BURST_DIVISOR {
            repair_window
        } else if self.in_flight < self.limits.flight() {
            u64::MAX
        } else {
            self.in_flight
        }
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.limits.flight()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    fn controller() -> LinkShare {
        let (flight, repair) = ((1 << 20).into(), (256 << 10).into());
        let limits = Limits { flight, repair, ..Limits::default() };
        LinkShare::new(Arc::new(limits), 0.001, 0)
    }

    #[test]
    fn only_what_is_lost_beyond_expectation_is_owed() {
        let (mut state, now) = (controller(), Instant::now());
        state.allowance = 10_000.0;
        for (lost, owed) in [(4000, 0), (6000, 0), (3000, 3000), (500, 500)] {
            state.on_congestion_event(now, now, false, lost);
            let mut waiting = std::pin::pin!(state.limits.owed());
            let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(polled, if owed > 0 { Poll::Ready(owed) } else { Poll::Pending });
        }
    }

    #[test]
    fn much_that_is_lost_at_once_is_sent_again_slowly() {
        let (mut state, now) = (controller(), Instant::now());
        state.on_sent(now, 800 << 10, 0);
        state.on_congestion_event(now, now, false, 60 << 10);
        assert_eq!(state.window(), u64::MAX, "random loss");
        state.on_congestion_event(now, now, false, 700 << 10);
        assert_eq!(state.window(), 256 << 10);
        state.on_sent(now, 640 << 10, 0);
        assert_eq!(state.window(), 256 << 10);
        state.on_sent(now, 60 << 10, 0);
        assert_eq!(state.window(), u64::MAX, "nearly all of it is sent again");
    }

    #[test]
    fn the_window_is_unlimited_below_the_limit_and_shut_above() {
        let mut state = controller();
        assert_eq!(state.window(), u64::MAX);
        state.on_sent(Instant::now(), 2 << 20, 0);
        assert_eq!(state.window(), 2 << 20);
    }
}
