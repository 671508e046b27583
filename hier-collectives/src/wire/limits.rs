//! The version of the wire and the limits of its messages.

/// The version of everything in this module; peers of another one are refused.
pub const WIRE_VERSION: u16 = 1;

/// Longest control message, in bytes, without its length prefix.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
