//! Application error codes of QUIC streams and connections; docs/protocol.md section 4 defines them.

/// The collective of a stream's segment was cancelled.
pub(crate) const CANCELLED: u32 = 1;
/// The receiver does not need the stream's bytes.
pub(crate) const DISCARDED: u32 = 2;
/// The peer was refused in the handshake.
pub(crate) const REFUSED: u32 = 3;
/// The peer has violated the protocol.
pub(crate) const PROTOCOL_VIOLATION: u32 = 4;
/// The connection ends without a fault, or is replaced by another.
pub(crate) const CLOSING: u32 = 5;
