//! The UDP socket of a lane, which hands packets to the system in few calls.
//!
//! | file | type | subject |
//! |---|---|---|
//! | `packet_batch.rs` | `PacketBatch` | the packets that wait to leave in one call; without I/O |
//! | `gathering_socket.rs` | `GatheringSocket` | the socket under quinn, and the task that ends its turns |
//!
//! quinn makes at most ten packets at a time, which cost a call of the system for each few. The
//! endpoint of a lane (`lane_endpoint.rs`) therefore puts this socket between quinn and the host's.
//! It runs on the lane's thread.

mod gathering_socket;
mod packet_batch;
#[cfg(test)]
mod tests;

pub use gathering_socket::make_gathering_socket;
