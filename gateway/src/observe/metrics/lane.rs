//! The metrics of one lane.

use prometheus_client::metrics::counter::Counter;

/// The counters of a lane's UDP socket. Clones share them; only the lane's thread counts.
#[derive(Debug, Clone, Default)]
pub struct LaneMetrics {
    /// Calls that handed packets to the system.
    pub send_calls: Counter,
    /// Packets handed to the system.
    pub sent_packets: Counter,
}
