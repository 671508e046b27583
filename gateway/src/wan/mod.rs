//! The WAN plane: lanes of mutually authenticated QUIC connections between gateways.

pub mod congestion;
pub mod connect;
pub mod link;
pub mod pacing;
pub mod stream;

pub use connect::connection::{LaneHandle, PeerSeen};
pub use connect::endpoint::{LANE_BYTES, LaneError, LaneSpec, PeerLink, Threads, start};
pub use connect::liveness::Heard;

/// The least rate of a link, in bits per second; as for a fabric.
pub(crate) const RATE_MIN_BITS: u64 = 8_000;

/// Application error codes on streams and connections; docs/protocol.md section 4.
const CANCELLED: u32 = 1;
const DISCARDED: u32 = 2;
const REFUSED: u32 = 3;
const PROTOCOL: u32 = 4;
const CLOSING: u32 = 5;
