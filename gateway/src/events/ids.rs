//! Numbers that name connections.

/// Number of one trainer's connection, never reused in a process.
pub type AttachmentId = u64;

/// 4,096 groups that one job, and so one rank, may have at a gateway at the same time. Making one
/// more is refused. All of their records stay within a few dozen MiB.
pub const GROUPS_MAX: usize = 4096;

/// Number by which a trainer and its gateway know a group: 0 is the job itself, the others are drawn
/// by the trainer and never reused on its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GroupNumber(pub u64);

impl GroupNumber {
    /// The number 0, which stands for the job itself, the group of all its ranks.
    pub const JOB: Self = Self(0);
}

/// Number of one QUIC connection of a lane, never reused in a process.
pub type ConnectionId = u64;
