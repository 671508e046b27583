//! The send queue of one peer: segments that wait for a lane, and those without a receipt yet.
//!
//! - **In:** the engine task pushes segments (`engine/peers/mod.rs`), on its own thread.
//! - **Out:** the sender tasks of all lanes pull them (`wan/stream/segment_sender.rs`), on the lanes' threads.
//!   A slow lane pulls fewer.
//! - **Bound:** none of its own. A push never fails or waits; the peer's grants bound what the session
//!   sends, and the memory is that of posted buffers.
//! - **After a pull** a segment stays here until its receipt. So a cancel can reset its stream, and a
//!   lost lane's segments can be requeued.
//!
//! `scheduler.rs` decides the order: jobs share the link by weight (`fair_queue.rs`), and small
//! segments go first as far as their job's share permits.

mod fair_queue;
mod queued_segment;
mod scheduler;
mod send_queue;
#[cfg(test)]
mod tests;

pub use queued_segment::{NewSegment, QueuedSegment, QueuedSegmentClass, SegmentId};
pub use send_queue::SendQueue;
