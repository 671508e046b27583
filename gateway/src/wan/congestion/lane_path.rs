//! The path of a lane, as configured and limited, and the windows that it gives the lane.
//!
//! `lane_windows.rs` has the formulas.

use super::delivery_rate::{DeliveryRate, WINDOW_GAIN};
use super::lane_windows::{
    CONGESTION_WINDOW_BYTES_MIN, DRAIN_WINDOW_FRACTION, LaneWindows, PACKET_PAYLOAD_BYTES,
    RECEIVE_RTT_FACTOR, SEND_WINDOW_GAP_ROUNDS, lane_window_of_stream, lane_window_slack,
    lane_window_varint,
};
use super::min_rtt_filter::MinRttFilter;
use super::path_memory::PathMemory;
use hier_collectives::plan::SEGMENT_BYTES_MAX;
use hier_collectives::topology::Link;
use std::sync::Arc;
use units::{BitRate, Span};

/// The path of a lane, as configured and limited.
#[derive(Debug, Clone)]
pub(crate) struct LanePath {
    /// The link, at its present rate limit.
    pub link: Link,
    /// The rate at which the peer may send, whatever our limit is.
    pub inbound: BitRate,
    /// Lanes that share the link.
    pub lanes: u64,
    /// Bytes of the plan's segments.
    pub segment_bytes: u64,
    /// The most bytes that the receive window grows to when the RTT is over
    /// `RECEIVE_RTT_FACTOR` times the configured one.
    pub receive_window_max: u64,
    /// The findings of lanes about the path, on a shared link.
    pub memory: Arc<PathMemory>,
    /// The seed of probes of a shared link, another one at each end.
    pub probe_seed: u64,
}

impl LanePath {
    /// Returns whether round trip, loss or whole rate of the link are others than those of an earlier path:
    /// another fabric is in force.
    pub fn has_other_terms_than(&self, before: &Self) -> bool {
        let terms = |path: &Self| (path.link.rtt, path.link.loss, path.inbound);
        terms(self) != terms(before)
    }

    /// Returns the receive, send and congestion windows of a lane before anything is measured.
    pub fn initial_windows(&self) -> LaneWindows {
        let rtt = self.link.rtt;
        self.windows(&self.initial_delivery_rate(), &MinRttFilter::new(rtt, rtt, false))
    }

    /// Creates the delivery rate filter of a lane before anything is measured.
    pub fn initial_delivery_rate(&self) -> DeliveryRate {
        DeliveryRate::new(self.lane_rate(), self.link.loss.as_f64())
    }

    /// Returns the rate of one lane in bytes per second: an equal share of the link.
    pub fn lane_rate(&self) -> f64 {
        self.link.rate.bytes_per_second() / self.lanes as f64
    }

    /// Returns the BDP in bytes of what the peer may send, at this RTT.
    fn inbound_window_bdp(&self, rtt: Span) -> u64 {
        Link { rate: self.inbound, rtt, ..self.link.clone() }.bdp().get()
    }

    /// Computes the windows of a lane from its delivery rate and min RTT.
    pub fn windows(&self, delivery: &DeliveryRate, min_rtt: &MinRttFilter) -> LaneWindows {
        let longest_rtt = min_rtt.observed_rtt().max(min_rtt.rtt());
        let bdp = self.inbound_window_bdp(longest_rtt);
        let stream = lane_window_of_stream(self.segment_bytes);
        let receive = |bdp: u64| 3 * bdp + 8 * stream;
        // A busy processor looks like a longer path. Bytes that wait for it would fill the window.
        let rtt_max = Span::from_ns(self.link.rtt.ns().saturating_mul(RECEIVE_RTT_FACTOR));
        let receive_max = receive(self.inbound_window_bdp(rtt_max)).max(self.receive_window_max);
        let receive = receive(bdp).min(receive_max);
        // The plan is the first gateway's, whose fabric file may differ.
        let longest_stream = lane_window_of_stream(self.segment_bytes.max(SEGMENT_BYTES_MAX));
        let (rate, rtt) = (delivery.rate(), min_rtt.rtt().as_secs_f64());
        let slack = lane_window_slack(min_rtt.rtt()).as_secs_f64();
        let flight = |gain: f64| rate * (gain * rtt + slack);
        let drain = if min_rtt.is_draining() { DRAIN_WINDOW_FRACTION } else { 1.0 };
        let fraction = delivery.window_fraction() * drain;
        let congestion =
            flight(delivery.window_gain()).max(CONGESTION_WINDOW_BYTES_MIN as f64) * fraction;
        let congestion = congestion as u64;
        let packets = self.segment_bytes as f64 / PACKET_PAYLOAD_BYTES;
        let holes = 1.0 - (1.0 - delivery.loss()).powf(packets);
        let send = (flight(WINDOW_GAIN) + SEND_WINDOW_GAP_ROUNDS * holes * rate * rtt) as u64;
        LaneWindows {
            // Streams are always read, so the receive windows only stop a peer that breaks the rules:
            // grants are the back-pressure.
            stream: lane_window_varint(longest_stream),
            receive: lane_window_varint(receive),
            // quinn holds a record of each stream that the peer may open.
            streams: lane_window_varint(
                64 + 4 * receive.saturating_sub(8 * stream) / 3 / self.segment_bytes.min(4096),
            ),
            // More than the congestion window, so that only that one limits the sender.
            send: send.max(congestion) + 2 * stream,
            congestion,
            retransmission_rate: rate as u64,
        }
    }
}
