//! Application error codes of QUIC streams and connections; docs/protocol.md section 4 defines them.

/// 1: QUIC error code with which either end resets or stops the stream of a segment. Its collective
/// was cancelled, or the receiver has the segment by another way.
pub(crate) const SEGMENT_CANCELLED_CODE: u32 = 1;
/// 2: QUIC error code with which a receiver stops the stream of a segment of which it needs no more
/// bytes.
pub(crate) const SEGMENT_DISCARDED_CODE: u32 = 2;
/// 3: QUIC error code with which a gateway closes a connection whose peer it refuses in the
/// exchange of hellos.
pub(crate) const PEER_REFUSED_CODE: u32 = 3;
/// 4: QUIC error code with which a gateway closes a connection whose peer has violated the protocol
/// between gateways.
pub(crate) const PROTOCOL_VIOLATION_CODE: u32 = 4;
/// 5: QUIC error code with which a gateway closes a connection at shutdown, in favour of another
/// one, or when its tasks end, as after silence.
pub(crate) const CONNECTION_CLOSING_CODE: u32 = 5;
/// 6: QUIC error code with which the dialler closes the connection of a lane that was taken away,
/// after both ends have sent all.
pub(crate) const LANE_RETIRED_CODE: u32 = 6;
