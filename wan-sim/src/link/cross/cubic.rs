//! A window that is a cubic function of the time since the last loss: RFC 9438.

use super::ack_sample::AckSample;
use super::new_reno::{WINDOW_PACKETS_INITIAL, WINDOW_PACKETS_MIN};
use crate::portable_math::portable_cube_root;
use units::{Span, TimeNs};

/// The window of a CUBIC-like flow, in packets and seconds.
#[derive(Debug)]
pub(super) struct Cubic {
    window: f64,
    threshold: f64,
    /// The window before the last loss, to which the curve leads back.
    window_max: f64,
    /// The window before the last loss, up to which a NewReno flow would be slower.
    window_prior: f64,
    epoch: Option<Epoch>,
}

/// A period of growth between two losses.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    began: TimeNs,
    /// Seconds until the curve reaches `window_max`.
    time_to_max: f64,
    /// The window that a NewReno flow would have.
    window_friendly: f64,
}

impl Cubic {
    /// Makes the window of a new flow, in slow start.
    pub(super) fn new() -> Self {
        Self {
            window: WINDOW_PACKETS_INITIAL,
            threshold: f64::INFINITY,
            window_max: 0.0,
            window_prior: 0.0,
            epoch: None,
        }
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
        if self.window < self.threshold {
            self.window += 1.0;
            return;
        }
        let mut epoch = self.epoch.unwrap_or_else(|| self.begin_epoch(ack.now));
        let faster = epoch.window_friendly >= self.window_prior;
        let slope = if faster { 1.0 } else { FRIENDLY_SLOPE };
        epoch.window_friendly += slope / self.window;
        self.epoch = Some(epoch);
        let since = ack.now.since(epoch.began);
        if self.curve(&epoch, since) < epoch.window_friendly {
            self.window = self.window.max(epoch.window_friendly);
            return;
        }
        let ahead = self.curve(&epoch, since + ack.rtt);
        let target = ahead.clamp(self.window, 1.5 * self.window);
        self.window += (target - self.window) / self.window;
    }

    /// Shrinks the window to 0.7 of itself, but not below 2 packets, at the first loss of a round
    /// trip.
    pub(super) fn on_congestion(&mut self) {
        // Fast convergence: a flow whose window shrinks makes room for a new one.
        self.window_max = if self.window < self.window_max {
            self.window * (1.0 + LOSS_WINDOW_FACTOR) / 2.0
        } else {
            self.window
        };
        self.window_prior = self.window;
        self.threshold = (self.window * LOSS_WINDOW_FACTOR).max(WINDOW_PACKETS_MIN);
        self.window = self.threshold;
        self.epoch = None;
    }

    /// Begins anew with one packet after a timeout.
    pub(super) fn on_timeout(&mut self) {
        self.on_congestion();
        self.window = 1.0;
    }

    /// Begins a period of growth at `now`.
    fn begin_epoch(&mut self, now: TimeNs) -> Epoch {
        self.window_max = self.window_max.max(self.window);
        let time_to_max = portable_cube_root((self.window_max - self.window) / SCALE);
        Epoch { began: now, time_to_max, window_friendly: self.window }
    }

    /// Returns the window of the curve this long after the epoch began.
    fn curve(&self, epoch: &Epoch, since: Span) -> f64 {
        let from_max = since.as_secs_f64() - epoch.time_to_max;
        SCALE * from_max * from_max * from_max + self.window_max
    }
}

/// 0.4 packets a cubed second: the scale of the cubic curve along which the window of simulated
/// CUBIC grows, C in RFC 9438.
const SCALE: f64 = 0.4;
/// 0.7: the factor on the window of simulated CUBIC at a loss, beta in RFC 9438.
const LOSS_WINDOW_FACTOR: f64 = 0.7;
/// 0.53 packets a round trip: with this growth, and 0.7 of its window at a loss, a flow has
/// NewReno's mean window (RFC 9438). Simulated CUBIC grows at least as fast.
const FRIENDLY_SLOPE: f64 = 3.0 * (1.0 - LOSS_WINDOW_FACTOR) / (1.0 + LOSS_WINDOW_FACTOR);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_follows_the_curve_of_the_rfc() {
        let mut cubic = Cubic::new();
        let rtt = Span::from_ms(100);
        let mut now_s = 0.0;
        let mut ack = |cubic: &mut Cubic| {
            // A window of acknowledgements in each round trip.
            now_s += rtt.as_secs_f64() / cubic.window();
            let now = TimeNs::from_ns((now_s * 1e9) as u64);
            cubic.on_ack(&AckSample {
                now,
                rtt,
                in_flight: cubic.window() as u64,
                delivered: 0,
                delivered_before: 0,
                rate: None,
                found_losses: false,
                in_recovery: false,
            });
            now_s
        };
        while cubic.window() < 200.0 {
            ack(&mut cubic);
        }
        cubic.on_congestion();
        assert_eq!(cubic.window(), 140.0);
        let began = ack(&mut cubic);
        // K of the RFC: the cube root of 60 packets over C.
        let time_to_max = (60.0f64 / 0.4).cbrt();
        loop {
            let since = ack(&mut cubic) - began;
            if since > 9.0 {
                break;
            }
            let curve = 0.4 * (since - time_to_max).powi(3) + 200.0;
            assert!((cubic.window() - curve).abs() < 2.0, "{since}: {} {curve}", cubic.window());
        }
        // A second loss below the last one makes room for others.
        let window = cubic.window();
        cubic.on_congestion();
        cubic.on_congestion();
        assert!((cubic.window_max - 0.7 * window * 0.85).abs() < 1e-9);
    }

    #[test]
    fn the_cube_root_is_one() {
        for i in 0..1000 {
            let root = f64::from(i) / 7.0;
            let found = portable_cube_root(root * root * root);
            assert!((found - root).abs() <= 1e-12 * root, "{root} {found}");
        }
    }
}
