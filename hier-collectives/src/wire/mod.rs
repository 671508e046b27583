//! Messages between gateways: hellos, envelopes, control messages and segment headers.
//!
//! All numbers are big-endian; docs/protocol.md lists the layouts. A control message states a fact
//! that only grows (an epoch, a limit, a receipt), so it may be repeated. All of them are
//! repeated after the loss of the lane that carried them. The session makes and reads control
//! messages; the gateway's WAN plane frames them.

mod envelope;
mod group_facts;
mod hello;
mod job_facts;
mod limits;
mod message;
mod message_encoding;
mod segment_header;
mod versions;

#[cfg(test)]
mod tests;

pub use envelope::Envelope;
pub use group_facts::{GroupFacts, read_group_facts_ranks, write_group_facts_ranks};
pub use hello::{Hello, HelloError};
pub use job_facts::JobFacts;
pub use limits::MESSAGE_BYTES_MAX;
pub use message::Message;
pub use segment_header::{SegmentHeader, SegmentKey};
pub use versions::{
    NoCommonWireVersion, WIRE_VERSION, WIRE_VERSION_OLDEST, WireVersion, WireVersions,
};
