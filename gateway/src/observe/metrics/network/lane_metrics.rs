//! The metrics of one lane's UDP socket. Their number is that of the lanes of the region file.

use crate::observe::metrics::exposition::MetricsExposition;
use crate::observe::metrics::labels::LaneLabel;
use crate::observe::metrics::metric_description::MetricDescription;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use std::net::SocketAddr;

/// The counters of a lane's UDP socket. Clones share them; only the lane's thread counts.
#[derive(Debug, Clone, Default)]
pub struct LaneMetrics {
    /// Calls that handed packets to the system.
    pub send_calls: Counter,
    /// Packets handed to the system.
    pub sent_packets: Counter,
}

/// The metrics of all lanes.
#[derive(Debug, Default)]
pub(in crate::observe::metrics) struct LaneMetricFamilies {
    send_calls: Family<LaneLabel, Counter>,
    sent_packets: Family<LaneLabel, Counter>,
}

impl LaneMetricFamilies {
    /// Returns the counters of the UDP socket of a lane that listens on `address`.
    pub fn lane_metrics(&self, lane: u16, address: SocketAddr) -> LaneMetrics {
        let label = LaneLabel { lane, address: address.to_string() };
        LaneMetrics {
            send_calls: self.send_calls.get_or_create_owned(&label),
            sent_packets: self.sent_packets.get_or_create_owned(&label),
        }
    }

    /// Adds the metrics of lanes to the exposition.
    pub fn register(&self, exposition: &mut MetricsExposition) {
        let calls = lane_metric(
            "landbridge_udp_send_calls",
            "Calls by which a lane handed packets to the system",
            "Near `landbridge_udp_sent_packets_total` it tells of a network card without \
             segmentation offload, which costs processor time",
        );
        exposition.add(calls, self.send_calls.clone());
        let packets = lane_metric(
            "landbridge_udp_sent_packets",
            "Packets that a lane handed to the system, often several in one call",
            "Divide it by `landbridge_udp_send_calls_total` for the packets of one call",
        );
        exposition.add(packets, self.sent_packets.clone());
    }
}

/// Describes a metric that has one value for each lane.
const fn lane_metric(
    name: &'static str,
    meaning: &'static str,
    advice: &'static str,
) -> MetricDescription {
    MetricDescription { name, unit: "", labels: &["lane", "address"], meaning, advice }
}
