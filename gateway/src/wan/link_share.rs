//! `link-share`: congestion control for a link whose rate is known.
//!
//! The rate limit keeps the link from filling, so random loss is not taken for congestion:
//! only loss above 3 % more than expected, or ECN marks, narrow the window. quinn's own pacer
//! cannot be given a rate; a window above `u32::MAX` turns it off, so below its limit this
//! controller reports an unlimited window, and above it the bytes in flight.
//!
//! What is sent again does not pass the rate limit, which leaves room for the losses that the
//! fabric expects; what is lost beyond these is charged to it afterwards. After a cut all that
//! was in flight is lost at once, and would overflow the queue once more: until it has been sent
//! again the window is the lane's part of a BDP, which quinn's pacer spreads.

use super::windows::Windows;
use quinn_proto::RttEstimator;
use quinn_proto::congestion::Controller;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Loss beyond the fabric's expectation that counts as congestion.
const CONGESTION_LOSS: f64 = 0.03;
/// Bytes that a loss ratio is computed over, at least.
const SAMPLE_BYTES: u64 = 256 << 10;
/// What may be sent again at once, as a part of the window for it.
const REPAIR_BURST_DIVISOR: u64 = 4;
/// Losses come in bursts: so much of what was expected may come at once.
const ALLOWANCE_BYTES_MAX: f64 = (1 << 20) as f64;
/// The narrowest window, as a share of the widest.
const SHARE_MIN: f64 = 1.0 / 16.0;

/// How much one lane may have in flight; followed live, see [`super::windows`].
#[derive(Debug, Default)]
pub(super) struct Limits {
    /// Bytes that may be in flight.
    flight: AtomicU64,
    /// Bytes that may be in flight while much is sent again.
    repair: AtomicU64,
    /// The part of `flight` that is in use, in thousandths; 0 for all of it.
    share: AtomicU64,
    /// Bytes lost beyond expectation that nobody has been charged for.
    owed: AtomicU64,
}

impl Limits {
    pub fn set(&self, windows: &Windows) {
        self.flight.store(windows.flight, Ordering::Relaxed);
        self.repair.store(windows.repair, Ordering::Relaxed);
    }

    /// The part of the window that is in use, from 0 to 1: less on a path that loses much.
    pub fn share(&self) -> f64 {
        match self.share.load(Ordering::Relaxed) {
            0 => 1.0,
            thousandths => thousandths as f64 / 1000.0,
        }
    }

    /// Bytes lost beyond what the fabric expects, since they were last asked for.
    pub fn take_owed(&self) -> u64 {
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
    acked: u64,
    lost: u64,
    /// Lost bytes that have not been sent again.
    repair: u64,
    /// The part of the window in use, from [`SHARE_MIN`] to 1.
    share: f64,
}

impl LinkShare {
    /// For a link that loses `expected_loss` of its packets at random.
    pub fn new(limits: Arc<Limits>, expected_loss: f64, in_flight: u64) -> Self {
        let (acked, lost, repair) = (0, 0, 0);
        Self { limits, expected_loss, allowance: 0.0, in_flight, acked, lost, repair, share: 1.0 }
    }

    fn limit(&self) -> u64 {
        (self.limits.flight() as f64 * self.share) as u64
    }

    fn sample(&mut self) {
        let total = self.acked + self.lost;
        if total < SAMPLE_BYTES {
            return;
        }
        let loss = self.lost as f64 / total as f64;
        let factor = if loss > self.expected_loss + CONGESTION_LOSS { 0.8 } else { 1.1 };
        self.share = (self.share * factor).clamp(SHARE_MIN, 1.0);
        self.limits.share.store((self.share * 1000.0) as u64, Ordering::Relaxed);
        (self.acked, self.lost) = (0, 0);
    }
}

impl Controller for LinkShare {
    fn on_sent(&mut self, _now: Instant, bytes: u64, _last_packet_number: u64) {
        self.in_flight += bytes;
        self.repair = self.repair.saturating_sub(bytes);
    }

    fn on_ack(&mut self, _: Instant, _: Instant, bytes: u64, _: bool, _: &RttEstimator) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        self.acked += bytes;
        let allowance = self.allowance + bytes as f64 * self.expected_loss;
        self.allowance = allowance.min(ALLOWANCE_BYTES_MAX);
    }

    fn on_end_acks(&mut self, _: Instant, in_flight: u64, _: bool, _: Option<u64>) {
        self.in_flight = in_flight;
        self.sample();
    }

    fn on_congestion_event(&mut self, _: Instant, _: Instant, _persistent: bool, lost_bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(lost_bytes);
        self.lost += lost_bytes;
        self.repair += lost_bytes;
        self.allowance -= lost_bytes as f64;
        if self.allowance < 0.0 {
            self.limits.owed.fetch_add(-self.allowance as u64, Ordering::Relaxed);
            self.allowance = 0.0;
        }
        if lost_bytes == 0 {
            self.share = (self.share * 0.9).max(SHARE_MIN);
        }
        self.sample();
    }

    fn on_mtu_update(&mut self, _new_mtu: u16) {}

    fn window(&self) -> u64 {
        let repair_window = self.limits.repair.load(Ordering::Relaxed);
        if self.repair > repair_window / REPAIR_BURST_DIVISOR {
            repair_window
        } else if self.in_flight < self.limit() {
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

    fn controller() -> LinkShare {
        let (flight, repair) = ((1 << 20).into(), (256 << 10).into());
        let limits = Limits { flight, repair, ..Limits::default() };
        LinkShare::new(Arc::new(limits), 0.001, 0)
    }

    fn round(state: &mut LinkShare, acked: u64, lost: u64) {
        let now = Instant::now();
        state.on_sent(now, acked + lost, 0);
        state.acked += acked;
        state.on_congestion_event(now, now, false, lost);
        state.on_end_acks(now, 0, false, None);
    }

    #[test]
    fn random_loss_does_not_narrow_the_window_and_heavy_loss_does() {
        let mut state = controller();
        for _ in 0..100 {
            round(&mut state, 990_000, 10_000);
        }
        assert_eq!(state.limit(), 1 << 20);
        for _ in 0..100 {
            round(&mut state, 900_000, 100_000);
        }
        assert_eq!(state.limit(), (1 << 20) / 16);
        for _ in 0..100 {
            round(&mut state, 1_000_000, 1);
        }
        assert_eq!(state.limit(), 1 << 20);
    }

    #[test]
    fn only_what_is_lost_beyond_expectation_is_owed() {
        let (mut state, now) = (controller(), Instant::now());
        state.allowance = 10_000.0;
        for (lost, owed) in [(4000, 0), (6000, 0), (3000, 3000), (500, 500)] {
            state.on_congestion_event(now, now, false, lost);
            assert_eq!(state.limits.take_owed(), owed);
        }
        assert_eq!(state.limits.take_owed(), 0, "it is owed once");
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
