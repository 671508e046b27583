//! The version of the wire and the limits of its messages.

/// 11: the version of all messages between gateways, sent in the first message of each lane. A lane
/// of a peer with another version is refused, since its messages differ.
pub const WIRE_VERSION: u16 = 12;

/// 1 MiB: the longest control message between gateways, without its length prefix; a peer's longer
/// one ends the lane. The plan of a fabric with 256 regions fits.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
