//! The version of the wire and the limits of its messages.

/// 5: the version of all messages between gateways. Peers with another version are refused, since
/// their messages differ.
pub const WIRE_VERSION: u16 = 5;

/// 1 MiB: the longest control message without its length prefix; the plan of a fabric with 256
/// regions fits.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
