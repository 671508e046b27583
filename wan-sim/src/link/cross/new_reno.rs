//! A window that grows by a packet each round trip and halves at a loss: RFC 5681.

use super::ack_sample::AckSample;

/// The window of a NewReno-like flow, in packets.
#[derive(Debug)]
pub(super) struct NewReno {
    window: f64,
    threshold: f64,
}

impl NewReno {
    /// Makes the window of a new flow, in slow start.
    pub(super) fn new() -> Self {
        Self { window: WINDOW_PACKETS_INITIAL, threshold: f64::INFINITY }
    }

    /// Returns the window in packets.
    pub(super) fn window(&self) -> f64 {
        self.window
    }

    /// Grows the window for an acknowledged packet, unless a loss is being repaired.
    pub(super) fn on_ack(&mut self, ack: &AckSample) {
        if ack.in_recovery {
            return;
        }
        self.window += if self.window < self.threshold { 1.0 } else { 1.0 / self.window };
    }

    /// Halves the window, but not below 2 packets, at the first loss of a round trip.
    pub(super) fn on_congestion(&mut self) {
        self.threshold = (self.window / 2.0).max(WINDOW_PACKETS_MIN);
        self.window = self.threshold;
    }

    /// Begins anew with one packet after a timeout.
    pub(super) fn on_timeout(&mut self) {
        self.on_congestion();
        self.window = 1.0;
    }
}

/// 10 packets: the first window of every simulated flow that has one, as RFC 6928 has it.
pub(super) const WINDOW_PACKETS_INITIAL: f64 = 10.0;

/// 2 packets: the least window of simulated NewReno and CUBIC after a loss, as RFC 5681 has it.
pub(super) const WINDOW_PACKETS_MIN: f64 = 2.0;
