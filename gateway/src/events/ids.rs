//! Numbers that name connections.

/// Number of one trainer's connection, never reused in a process.
pub type AttachmentId = u64;

/// Number of one QUIC connection of a lane, never reused in a process.
pub type ConnectionId = u64;
