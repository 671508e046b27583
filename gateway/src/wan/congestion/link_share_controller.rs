//! `dedicated`: the congestion controller of a link whose rate is known.
//!
//! The pacer keeps the link from filling, so random loss does not count as congestion. The congestion
//! window follows the lane's delivery rate instead (`delivery_rate.rs`). The own pacer of quinn-proto
//! 0.11 cannot be given a rate. A window above `u32::MAX` turns it off, so this controller reports an
//! unlimited window below its own, and the bytes in flight above.
//!
//! Retransmissions do not pass the pacer, which leaves room for the configured loss. Loss beyond it is
//! charged to the pacer afterwards. After an outage all bytes in flight are lost at once and would
//! overflow the queue once more. Until they are retransmitted, the window is one round trip of the
//! delivery rate, which quinn's pacer spreads. The smoothed RTT is read with each acknowledgement, as
//! quinn's pacer does: the first one after an outage may make it far longer.
//!
//! quinn calls it through `wan/congestion/lane_controller.rs`, on the lane's thread.

use super::in_flight::InFlight;
use hier_collectives::topology::Link;
use quinn_proto::RttEstimator;
use quinn_proto::congestion::Controller;
use std::any::Any;
use std::sync::Arc;
use std::time::Instant;
use units::Span;

/// 10 packets: the least window that QUIC gets while it retransmits much, however low the delivery
/// rate. It is as large as QUIC's initial window. With a window of one packet, QUIC would
/// send nothing.
/// Tested by `retransmissions_have_window_for_some_packets_of_any_size`.
const RETRANSMISSION_PACKETS_MIN: u64 = 10;
/// 4: once lost bytes that are not yet retransmitted exceed a quarter of the retransmission window,
/// that window replaces the congestion window. The retransmission window is one round trip at the
/// delivery rate. The number is chosen.
const RETRANSMISSION_BURST_DIVISOR: u64 = 4;
/// 1 MiB of lost bytes: the most that a lane saves up of the loss that the configured loss allows,
/// since losses come in bursts. Bytes lost beyond the saved ones are charged to the pacer as debt.
/// The size is chosen.
const LOSS_ALLOWANCE_BYTES_MAX: f64 = (1 << 20) as f64;

/// The controller of one lane.
#[derive(Debug, Clone)]
pub(crate) struct LinkShareController {
    in_flight: Arc<InFlight>,
    /// The configured loss, from 0 to 1.
    configured_loss: f64,
    /// Bytes of UDP payload in a packet.
    mtu: u64,
    /// The smoothed RTT that QUIC measures; at first the link's.
    smoothed_rtt: Span,
    /// Bytes that may be lost before the pacer is charged: configured loss that did not happen.
    loss_allowance: f64,
    gate: WindowGate,
}

/// Whether quinn keeps to the congestion window, or only the sender above it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowGate {
    /// It sends nothing above the window.
    Shut,
    /// It sends what it has. A window that shrinks each few round trips would else hold
    /// acknowledgements back, which the peer takes for a queue.
    Open,
}

impl LinkShareController {
    /// Creates the controller of one lane of `link`; `mtu` is the UDP payload of a packet in bytes.
    pub fn new(in_flight: Arc<InFlight>, link: &Link, mtu: u16, gate: WindowGate) -> Self {
        Self {
            in_flight,
            configured_loss: link.loss.as_f64(),
            mtu: mtu.into(),
            smoothed_rtt: link.rtt,
            loss_allowance: 0.0,
            gate,
        }
    }
}

impl Controller for LinkShareController {
    /// Adds the configured loss of `bytes` acknowledged bytes to the loss allowance, and notes the
    /// smoothed RTT.
    fn on_ack(&mut self, _: Instant, _: Instant, bytes: u64, _: bool, rtt: &RttEstimator) {
        self.smoothed_rtt = Span::from_ns(u64::try_from(rtt.get().as_nanos()).unwrap_or(u64::MAX));
        let allowance = self.loss_allowance + bytes as f64 * self.configured_loss;
        self.loss_allowance = allowance.min(LOSS_ALLOWANCE_BYTES_MAX);
    }

    /// Takes lost bytes off the loss allowance. Notes the bytes beyond it as excess loss, which the
    /// tuner charges to the pacer. Notes an event without lost bytes as an ECN CE mark.
    fn on_congestion_event(&mut self, _: Instant, _: Instant, _persistent: bool, lost_bytes: u64) {
        self.loss_allowance -= lost_bytes as f64;
        if self.loss_allowance < 0.0 {
            self.in_flight.note_excess_loss(-self.loss_allowance as u64);
            self.loss_allowance = 0.0;
        }
        // quinn reports an ECN CE mark as an event without loss.
        if lost_bytes == 0 {
            self.in_flight.note_ecn_mark();
        }
    }

    /// Changes the packet size, in bytes of UDP payload.
    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu.into();
    }

    /// Returns the window that quinn compares with the bytes in flight. After much loss it is the
    /// retransmission window. Else it is unlimited with an open gate or below the lane's congestion
    /// window, and equals the bytes in flight above that.
    fn window(&self) -> u64 {
        // quinn asks for each packet, and mostly nothing is lost.
        let lost_bytes = self.in_flight.lost_bytes();
        if lost_bytes > 0 {
            let least = RETRANSMISSION_PACKETS_MIN * self.mtu;
            let retransmission_window =
                self.in_flight.retransmission_window(self.smoothed_rtt).max(least);
            if lost_bytes > retransmission_window / RETRANSMISSION_BURST_DIVISOR {
                return retransmission_window;
            }
        }
        let in_flight = self.in_flight.bytes();
        if self.gate == WindowGate::Open || in_flight < self.in_flight.congestion_window() {
            u64::MAX
        } else {
            in_flight
        }
    }

    /// Copies the controller; the copy shares the bytes in flight of the lane.
    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    /// Returns the lane's congestion window in bytes.
    fn initial_window(&self) -> u64 {
        self.in_flight.congestion_window()
    }

    /// Gives the controller as `Any`, so that a caller can recover its type.
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hier_collectives::ids::RegionId;
    use std::task::{Context, Poll, Waker};
    use units::{BitRate, Fraction};

    fn controller() -> LinkShareController {
        let in_flight = InFlight::default();
        in_flight.set_window(1 << 20, 256 << 10);
        let link = Link {
            a: RegionId(0),
            b: RegionId(1),
            rate: BitRate::from_bits_per_second(8 * (256 << 10)),
            rtt: Span::from_secs(1),
            loss: Fraction::from_ppb(1_000_000).expect("below 1"),
        };
        LinkShareController::new(Arc::new(in_flight), &link, 1472, WindowGate::Shut)
    }

    #[test]
    fn only_loss_beyond_the_configured_loss_is_charged() {
        let (mut state, now) = (controller(), Instant::now());
        state.loss_allowance = 10_000.0;
        for (lost, charged) in [(4000, 0), (6000, 0), (3000, 3000), (500, 500)] {
            state.on_congestion_event(now, now, false, lost);
            let mut waiting = std::pin::pin!(state.in_flight.wait_for_excess_loss());
            let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(polled, if charged > 0 { Poll::Ready(charged) } else { Poll::Pending });
        }
    }

    #[test]
    fn much_loss_at_once_is_retransmitted_slowly() {
        let state = controller();
        for (sent, lost, window) in [
            (800 << 10, 60 << 10, u64::MAX),
            (0, 700 << 10, 256 << 10),
            (640 << 10, 0, 256 << 10),
            (60 << 10, 0, u64::MAX),
        ] {
            state.in_flight.note_sent(sent);
            state.in_flight.note_lost(lost);
            assert_eq!(state.window(), window, "{sent} {lost}");
        }
    }

    #[test]
    fn retransmissions_have_window_for_some_packets_of_any_size() {
        let mut state = controller();
        state.on_mtu_update(65_479);
        state.in_flight.note_lost(150 << 10);
        assert_eq!(state.window(), u64::MAX, "two packets");
        state.in_flight.note_lost(150 << 10);
        assert_eq!(state.window(), 654_790);
    }

    #[test]
    fn the_window_is_unlimited_below_the_limit_and_shut_above() {
        let state = controller();
        assert_eq!(state.window(), u64::MAX);
        state.in_flight.note_sent(2 << 20);
        assert_eq!(state.window(), 2 << 20);
    }
}
