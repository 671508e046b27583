//! Application error codes of QUIC streams and connections; docs/protocol.md section 4 defines them.

/// Code 1 of a reset or stopped stream: the collective of its segment was cancelled.
pub(crate) const SEGMENT_CANCELLED_CODE: u32 = 1;
/// Code 2 of a stopped stream: the receiver does not need its bytes.
pub(crate) const SEGMENT_DISCARDED_CODE: u32 = 2;
/// Code 3 of a closed connection: the peer was refused in the handshake.
pub(crate) const PEER_REFUSED_CODE: u32 = 3;
/// Code 4 of a closed connection: the peer has violated the protocol.
pub(crate) const PROTOCOL_VIOLATION_CODE: u32 = 4;
/// Code 5 of a closed connection: it ends without a fault, or another one replaces it.
pub(crate) const CONNECTION_CLOSING_CODE: u32 = 5;
