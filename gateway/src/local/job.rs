//! The jobs that a gateway serves, as its region file gives them.

use super::protocol::Token;
use hier_collectives::ids::GroupId;
use std::num::NonZeroU32;
use std::ops::Range;
use units::ByteCount;

/// A job whose trainers this gateway serves.
#[derive(Debug, Clone)]
pub struct JobSpec {
    /// Its name.
    pub name: String,
    /// What its trainers must show.
    pub token: Token,
    /// ArenaHandle that its arenas may have in all.
    pub memory: ByteCount,
    /// Its share of a link against that of other jobs.
    pub weight: NonZeroU32,
}

impl JobSpec {
    /// Its group on the wire.
    pub fn group(&self) -> GroupId {
        GroupId::of(&self.name)
    }
}

/// What the local plane needs to know.
#[derive(Debug, Clone)]
pub struct LocalSpec {
    /// Ranks that this gateway serves.
    pub ranks: Range<u32>,
    /// Ranks in all.
    pub world_size: u32,
    /// The fabric's name.
    pub fabric: String,
    /// The jobs.
    pub jobs: Vec<JobSpec>,
}
