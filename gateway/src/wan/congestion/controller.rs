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

use crate::wan::congestion::in_flight::Limits;
use quinn_proto::RttEstimator;
use quinn_proto::congestion::Controller;
use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

/// The least window for what is sent again, in packets: as QUIC begins with.
const REPAIR_PACKETS_MIN: u64 = 10;
/// What may be sent again at once, as a part of the window for it.
const REPAIR_BURST_DIVISOR: u64 = 4;
/// Losses come in bursts: so much of what was expected may come at once.
const ALLOWANCE_BYTES_MAX: f64 = (1 << 20) as f64;

/// The controller of one lane.
#[derive(Debug, Clone)]
pub(crate) struct LinkShare {
    limits: Arc<Limits>,
    expected_loss: f64,
    /// Bytes of a packet.
    mtu: u64,
    /// Bytes that may be lost before any is owed: what was expected and has not happened.
    allowance: f64,
}

impl LinkShare {
    /// For a link that loses `expected_loss` of its packets at random.
    pub fn new(limits: Arc<Limits>, expected_loss: f64, mtu: u16) -> Self {
        Self { limits, expected_loss, mtu: mtu.into(), allowance: 0.0 }
    }
}

impl Controller for LinkShare {
    fn on_ack(&mut self, _: Instant, _: Instant, bytes: u64, _: bool, _: &RttEstimator) {
        let allowance = self.allowance + bytes as f64 * self.expected_loss;
        self.allowance = allowance.min(ALLOWANCE_BYTES_MAX);
    }

    fn on_congestion_event(&mut self, _: Instant, _: Instant, _persistent: bool, lost_bytes: u64) {
        self.allowance -= lost_bytes as f64;
        if self.allowance < 0.0 {
            self.limits.owe(-self.allowance as u64);
            self.allowance = 0.0;
        }
        if lost_bytes == 0 {
            self.limits.mark();
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu.into();
    }

    fn window(&self) -> u64 {
        let in_flight = self.limits.in_flight();
        let repair_window = self.limits.repair().max(REPAIR_PACKETS_MIN * self.mtu);
        if self.limits.lost() > repair_window / REPAIR_BURST_DIVISOR {
            repair_window
        } else if in_flight < self.limits.flight() {
            u64::MAX
        } else {
            in_flight
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
        let limits = Limits::default();
        limits.allow(1 << 20, 256 << 10);
        LinkShare::new(Arc::new(limits), 0.001, 1472)
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
        let state = controller();
        for (sent, lost, window) in [
            (800 << 10, 60 << 10, u64::MAX),
            (0, 700 << 10, 256 << 10),
            (640 << 10, 0, 256 << 10),
            (60 << 10, 0, u64::MAX),
        ] {
            state.limits.sent(sent);
            state.limits.lose(lost);
            assert_eq!(state.window(), window, "{sent} {lost}");
        }
    }

    #[test]
    fn what_is_sent_again_has_room_for_some_packets_however_large() {
        let mut state = controller();
        state.on_mtu_update(65_479);
        state.limits.lose(150 << 10);
        assert_eq!(state.window(), u64::MAX, "two packets");
        state.limits.lose(150 << 10);
        assert_eq!(state.window(), 654_790);
    }

    #[test]
    fn the_window_is_unlimited_below_the_limit_and_shut_above() {
        let state = controller();
        assert_eq!(state.window(), u64::MAX);
        state.limits.sent(2 << 20);
        assert_eq!(state.window(), 2 << 20);
    }
}
