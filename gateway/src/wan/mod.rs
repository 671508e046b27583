//! The WAN plane: lanes of mutually authenticated QUIC connections between gateways.
//!
//! A *lane* is a UDP socket with a QUIC endpoint and a thread of its own. The first lane runs on the
//! engine's thread. All gateways of a fabric have the same number of lanes. Lane `i` has one connection
//! to lane `i` of each peer while the two use it: they begin with few, and `link/lane_number/` decides
//! how many pay. The thread of a lane that is not in use waits without cost.
//!
//! | module | subject |
//! |---|---|
//! | `connect/` | endpoints, dialling, handshake, control stream, TLS, packet sizes, liveness |
//! | `stream/` | segments as QUIC streams: send queue, sender, receiver, FEC |
//! | `congestion/` | the control loops: delivery rate, min RTT, congestion window; **start here** |
//! | `pacing/` | the rate limit of a pair of gateways |
//! | `link/` | capacity, rate limits and loss of a link, and messages about it |
//! | `lane_spec.rs` | `LaneSpec`: the state that all lanes share |
//! | `peer_link.rs` | `PeerLink`: the state that all lanes to one peer share |
//! | `link_trace.rs` | `LinkTrace`: records of lanes and links for a file |
//! | `lane_handle.rs` | `LaneHandle`: the engine's handle to an established lane |
//!
//! The daemon starts the lanes. They report to the engine over its event queue; the engine answers
//! over the send queues, the pacers and the handles of the lanes. Tasks of one connection, all on the
//! thread of its lane (`connect/lane_connection.rs`):
//!
//! ```text
//!                     +- control reader  -> engine events
//!                     +- control writer  <- LaneHandle (bounded queue)
//!  lane thread        +- liveness monitor
//!   endpoint ---------+- tuner           -> windows
//!                     +- receiver        -> a task for each stream -> engine events
//!                     +- sender (small)  <- SendQueue
//!                     +- sender (bulk)   <- SendQueue
//! ```

pub mod congestion;
pub mod connect;
mod error_code;
mod lane_handle;
mod lane_spec;
pub mod link;
pub mod link_trace;
pub mod pacing;
pub(crate) mod peer_link;
pub mod stream;

pub use connect::lane_endpoint::{LANE_QUIC_BYTES, LaneError, start_lane_endpoints};
pub use connect::liveness::PeerLiveness;
pub use lane_handle::{LaneHandle, LaneMeasurement, LanePeerSeen};
pub use lane_spec::{LaneSpec, LaneThreads};
pub use peer_link::PeerLink;
