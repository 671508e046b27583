//! The long haul: lanes of mutually authenticated QUIC between gateways.

pub mod assemble;
mod capped;
mod connection;
mod lane;
pub mod link_share;
pub mod outbox;
mod parity;
pub mod probe;
pub mod rate;
mod segment;
mod silence;
pub mod tls;
mod transport;

pub use connection::{LaneHandle, PeerSeen};
pub use lane::{LaneError, LaneSpec, PeerLink, start};

/// Application error codes on streams and connections; docs/protocol.md section 4.
const CANCELLED: u32 = 1;
const DISCARDED: u32 = 2;
const REFUSED: u32 = 3;
const PROTOCOL: u32 = 4;
const CLOSING: u32 = 5;
