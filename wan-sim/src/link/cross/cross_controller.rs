//! The congestion controllers of cross traffic, of which each flow has one.

use super::ack_sample::AckSample;
use super::bbr::Bbr;
use super::cubic::Cubic;
use super::new_reno::NewReno;

/// The congestion controller of one flow.
#[derive(Debug)]
pub(super) enum CrossController {
    Cubic(Cubic),
    NewReno(NewReno),
    Bbr(Bbr),
}

impl CrossController {
    /// Updates window and rate of the flow by an acknowledged packet.
    pub(super) fn on_ack(&mut self, ack: &AckSample) {
        match self {
            Self::Cubic(cubic) => cubic.on_ack(ack),
            Self::NewReno(reno) => reno.on_ack(ack),
            Self::Bbr(bbr) => bbr.on_ack(ack),
        }
    }

    /// Reduces the window at the first loss of a round trip. `in_flight` is the number of packets
    /// still in flight, without the lost one.
    pub(super) fn on_congestion(&mut self, in_flight: u64) {
        match self {
            Self::Cubic(cubic) => cubic.on_congestion(),
            Self::NewReno(reno) => reno.on_congestion(),
            Self::Bbr(bbr) => bbr.on_congestion(in_flight),
        }
    }

    /// Ends the reduction after a loss, because everything sent before the loss is acknowledged or
    /// lost.
    pub(super) fn on_recovered(&mut self) {
        match self {
            Self::Cubic(_) | Self::NewReno(_) => {}
            Self::Bbr(bbr) => bbr.on_recovered(),
        }
    }

    /// Reduces the window to one packet, because no acknowledgement came within the timeout.
    pub(super) fn on_timeout(&mut self) {
        match self {
            Self::Cubic(cubic) => cubic.on_timeout(),
            Self::NewReno(reno) => reno.on_timeout(),
            Self::Bbr(bbr) => bbr.on_timeout(),
        }
    }

    /// Returns the packets that may be in flight, at most [`WINDOW_PACKETS_MAX`].
    pub(super) fn window(&self) -> u64 {
        let window = match self {
            Self::Cubic(cubic) => cubic.window(),
            Self::NewReno(reno) => reno.window(),
            Self::Bbr(bbr) => bbr.window(),
        };
        window.min(WINDOW_PACKETS_MAX) as u64
    }

    /// Returns the packets a second that may leave; `None` where the window alone decides.
    pub(super) fn pacing_rate(&self) -> Option<f64> {
        match self {
            Self::Cubic(_) | Self::NewReno(_) => None,
            Self::Bbr(bbr) => bbr.pacing_rate(),
        }
    }
}

/// 1,000,000 packets, 120 Gbit/s at an RTT of 100 ms: the largest window of a simulated flow. A
/// larger one of its controller is cut to it. So a flow takes no more memory where the link's queue
/// has no limit.
const WINDOW_PACKETS_MAX: f64 = 1_000_000.0;
