//! The long haul: lanes of mutually authenticated QUIC between gateways.

pub mod addresses;
mod ahead;
pub mod assemble;
pub mod capped;
mod carried;
mod connection;
mod distance;
pub mod estimate;
mod lane;
mod limits;
pub mod link_share;
pub mod outbox;
mod packets;
pub mod parity;
pub mod policy;
pub mod probe;
pub mod rate;
mod segment;
mod silence;
pub mod tls;
mod transport;
mod windows;
pub mod word;

pub use connection::{LaneHandle, PeerSeen};
pub use lane::{LANE_BYTES, LaneError, LaneSpec, PeerLink, Threads, start};
pub use silence::Heard;

/// The least rate of a link, in bits per second; as for a fabric.
pub(crate) const RATE_MIN_BITS: u64 = 8_000;

/// Application error codes on streams and connections; docs/protocol.md section 4.
const CANCELLED: u32 = 1;
const DISCARDED: u32 = 2;
const REFUSED: u32 = 3;
const PROTOCOL: u32 = 4;
const CLOSING: u32 = 5;
