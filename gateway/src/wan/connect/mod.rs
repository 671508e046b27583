//! Connections of lanes: from the UDP socket to the tasks of an established connection.
//!
//! | file | subject |
//! |---|---|
//! | `lane_endpoint.rs` | a lane's thread and QUIC endpoints; accepts connections |
//! | `dialler.rs` | dials a peer, again after each failure |
//! | `lane_connection.rs` | the tasks of one connection, and the engine's handle to it |
//! | `handshake.rs` | hellos: both ends prove who they are |
//! | `control_stream.rs` | framed control messages |
//! | `liveness/` | keep-alives; probes on silence; closes dead paths |
//! | `quic_config.rs`, `packet_size.rs`, `packet_headers.rs` | settings of QUIC and packets |
//! | `packet_gathering/` | the UDP socket of a lane, which hands packets to the system in few calls |
//! | `lane_addresses.rs`, `peer_addresses.rs` | addresses of lanes, and host names that stand for them |
//! | `lane_connection_ids.rs` | connection ids, by which packets find their lane |
//! | `tls/` | mutual TLS |
//! | `path_probe/` | finds shut ports and narrow paths; measures a path for `landbridge doctor` |

mod control_stream;
mod dialler;
mod handshake;
pub mod lane_addresses;
pub mod lane_connection;
mod lane_connection_ids;
pub mod lane_endpoint;
pub mod liveness;
pub mod packet_gathering;
pub(super) mod packet_headers;
pub(super) mod packet_size;
pub mod path_probe;
pub mod peer_addresses;
mod quic_config;
pub mod tls;
