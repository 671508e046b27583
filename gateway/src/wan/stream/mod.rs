//! Segments as QUIC streams: one unidirectional stream each, on the lane that pulled the segment.
//!
//! | file | type | subject |
//! |---|---|---|
//! | `send_queue/` | `SendQueue` | segments to one peer: the engine pushes, the lanes' senders pull |
//! | `sender.rs` | `SegmentSender` | two sender tasks for each connection: pulls, paces, writes |
//! | `receiver.rs` | | a task for each stream that arrives |
//! | `preamble.rs` | `Preamble` | the group and header before the payload, sent twice |
//! | `reassembly.rs` | `Reassembly` | writes or reduces payload bytes in any order |
//! | `fec_codec.rs` | `FecShards` | Reed-Solomon parity behind the payload |
//!
//! All tasks run on the lane's thread; parity is computed on the compute pool of the host.

pub mod fec_codec;
mod preamble;
pub(crate) mod reassembly;
pub(crate) mod receiver;
pub mod send_queue;
pub(crate) mod sender;
pub(crate) mod trace;
