//! Connections of lanes: from the UDP socket to the tasks of an established connection.
//!
//! | file | subject |
//! |---|---|
//! | `lane_endpoint.rs` | a lane's thread and QUIC endpoint; accepts connections |
//! | `dial.rs` | dials a peer, again after each failure |
//! | `connection.rs` | the tasks of one connection, and the engine's handle to it |
//! | `handshake.rs` | hellos: both ends prove who they are |
//! | `control_stream.rs` | framed control messages |
//! | `liveness/` | keep-alives; probes on silence; closes dead paths |
//! | `quic_config.rs`, `packet_size.rs` | settings of QUIC and packets |
//! | `gathering_socket/` | the UDP socket of a lane, which hands packets to the system in few calls |
//! | `addresses.rs`, `tls/` | addresses of lanes; mutual TLS |
//! | `path_probe/` | finds shut ports and narrow paths; measures a path for `landbridge doctor` |

pub mod addresses;
pub mod connection;
mod control_stream;
mod dial;
pub mod gathering_socket;
mod handshake;
pub mod lane_endpoint;
pub mod liveness;
mod packet_size;
pub mod path_probe;
mod quic_config;
pub mod tls;
