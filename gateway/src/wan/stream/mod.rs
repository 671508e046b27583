//! Segments as QUIC streams: the send queue, the sender, the receiver and forward error correction.

pub mod fec;
pub(crate) mod preamble;
pub mod reassembly;
pub mod send_queue;
pub(crate) mod sender;
