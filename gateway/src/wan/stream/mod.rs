//! Segments as QUIC streams: one unidirectional stream each, on the lane that pulled the segment.
//!
//! | file | type | subject |
//! |---|---|---|
//! | `segment_queue/` | `SendQueue` | segments to one peer: the engine pushes, the lanes' senders pull |
//! | `segment_sender.rs` | `SegmentSender` | two sender tasks for each connection: pulls, paces, writes |
//! | `segment_receiver.rs` | | a task for each stream that arrives |
//! | `chunk_reader.rs` | `ChunkReader` | reads a stream: in order, then as its packets arrive |
//! | `preamble.rs` | `Preamble` | the group and header before the payload, sent twice |
//! | `reassembly.rs` | `Reassembly` | writes or reduces payload bytes in any order |
//! | `packet_train/` | `PacketTrains` | the capacity of a shared link, measured before there is data |
//! | `fec_shards.rs` | `FecShards` | Reed-Solomon parity behind the payload |
//!
//! All tasks run on the lane's thread; parity is computed on the compute pool of the host.

mod chunk_reader;
pub mod fec_shards;
pub mod packet_train;
mod preamble;
pub(crate) mod reassembly;
pub mod segment_queue;
pub(crate) mod segment_receiver;
pub(crate) mod segment_sender;
pub(crate) mod segment_trace;
