//! What gateways say to each other: segment headers and control messages.
//!
//! All numbers are big-endian. docs/protocol.md lists the layouts. Control messages state
//! facts that only grow (an epoch, a limit, a receipt), so that they may be repeated, and
//! after the loss of the lane that they went over all of them are.

mod envelope;
mod header;
mod hello;
mod limits;
mod message;
mod message_encoding;

#[cfg(test)]
mod tests;

pub use envelope::Envelope;
pub use header::{SegmentHeader, SegmentKey};
pub use hello::Hello;
pub use limits::{MAX_MESSAGE_BYTES, WIRE_VERSION};
pub use message::Message;
