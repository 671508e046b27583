//! The capacity of a link, as the lanes of one pair of gateways measure it.
//!
//! While no more is lost than configured, a link delivers at least what is sent; how much more it
//! could deliver is unknown. When more is lost and a queue stands before the link, the delivery rate
//! is its capacity. Lanes that follow it keep the queue and lose little, so queued spans after a
//! congested one count too, if together they lost more than configured. That capacity then limits
//! the pair, and plans are made for it. After a while a higher rate is probed until a queue shows,
//! since spare capacity shows only under load.
//!
//! The engine task feeds each estimator every 100 ms, each second while nothing passes, and applies its
//! limit (`engine/engine_links.rs`).
//! Samples are *spans* of at least 100 ms and two round trips. The states below are implied by the
//! fields of [`LinkCapacity`], whose names are in parentheses.
//!
//! ```text
//!            first congested span
//!  NOMINAL ------------------------> SUSPECT (evidence)
//!  (reduced = None)                    |  10 spans without congestion: back to where it was
//!     ^                                |  4 more queued spans with loss, capacity < 0.98 of the limit
//!     |                                v
//!     |  probed rate >= 0.97 of     REDUCED (reduced = Some) <--------------------------+
//!     |  the configured rate          |        |        ^                              |
//!     |                               |        |        | 4 queued spans with loss:    |
//!     |                               |        |        | lower by the mean            |
//!     |                               |        +--------+ (queued_spans)               |
//!     |                               | `probe_wait` spans of full use                 |
//!     |                               v                                                |
//!     +---------------------------- PROBING (probed = Some)                            |
//!     |                               |  10 spans at >= 95 %, no queue: adopt, gain x 2 |
//!     |                               |  a queue: give up, wait x 2, gain / 2           |
//!     |                               +------------------------------------------------+
//!     +--- 10 min without full use: forget
//!
//!  After each change 5 spans are ignored (settling): they still show the time before.
//! ```
//!
//! The correction by queued spans also leads from NOMINAL to REDUCED. A configured rate may be a few
//! percent too high, which loses too little for congestion.

mod link_capacity;
#[cfg(test)]
mod tests;

pub use link_capacity::{LinkCapacity, LinkObservation};
