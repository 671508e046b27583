//! The limits of messages between gateways.

/// 1 MiB: the longest control message between gateways, without its length prefix; a peer's longer
/// one ends the lane. The plan of a fabric with 256 regions fits.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
