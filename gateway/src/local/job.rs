//! The jobs whose trainers a gateway serves.

use super::protocol::Token;
use hier_collectives::ids::GroupId;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::watch;
use units::ByteCount;

/// A job whose trainers this gateway serves.
#[derive(Debug, Clone)]
pub struct JobSpec {
    /// The job's name.
    pub name: String,
    /// The token that its trainers must present.
    pub token: Token,
    /// Limit on the sum of its trainers' arenas.
    pub memory: ByteCount,
    /// Its share of a link, relative to the weights of the other jobs.
    pub weight: NonZeroU32,
}

impl JobSpec {
    /// Returns the group that stands for this job on the wire.
    pub fn group(&self) -> GroupId {
        GroupId::of_job(&self.name)
    }
}

/// Settings of the local plane.
#[derive(Debug, Clone)]
pub struct LocalSpec {
    /// Ranks that this gateway serves.
    pub ranks: Range<u32>,
    /// Number of ranks in the fabric.
    pub world_size: u32,
    /// The fabric's name.
    pub fabric: String,
    /// The jobs now, which the daemon replaces when it reads the region file again.
    pub jobs: watch::Receiver<Arc<Vec<JobSpec>>>,
}
