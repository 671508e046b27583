//! Application error codes of QUIC streams and connections; docs/protocol.md section 4 defines them.

/// 1: QUIC error code of a reset or stopped stream whose collective was cancelled.
pub(crate) const SEGMENT_CANCELLED_CODE: u32 = 1;
/// 2: QUIC error code by which a receiver stops the stream of a segment that it does not need.
pub(crate) const SEGMENT_DISCARDED_CODE: u32 = 2;
/// 3: QUIC error code of a closed connection whose peer was refused in the exchange of hellos.
pub(crate) const PEER_REFUSED_CODE: u32 = 3;
/// 4: QUIC error code of a closed connection whose peer has violated the protocol between gateways.
pub(crate) const PROTOCOL_VIOLATION_CODE: u32 = 4;
/// 5: QUIC error code of a closed connection that ends without a fault, or that another connection
/// replaces.
pub(crate) const CONNECTION_CLOSING_CODE: u32 = 5;
/// 6: QUIC error code of a closed connection whose lane was taken away after both ends had sent all.
pub(crate) const LANE_RETIRED_CODE: u32 = 6;
