//! The path of a lane, as configured and limited.

use super::path_memory::PathMemory;
use hier_collectives::topology::Link;
use std::sync::Arc;
use units::BitRate;

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
