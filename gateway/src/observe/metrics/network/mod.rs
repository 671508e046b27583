//! The metrics of the network: peers, links, and lanes with their UDP sockets.

mod lane_metrics;
mod link_metrics;
mod peer_metrics;

pub use lane_metrics::LaneMetrics;
pub use peer_metrics::{PeerMetrics, PeerPlace, RealGauge};

pub(super) use lane_metrics::LaneMetricFamilies;
pub(super) use link_metrics::LinkMetricFamilies;
pub(super) use peer_metrics::{PeerMetricFamilies, RealCounter};
