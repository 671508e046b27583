//! The facts that a session is created with.

use super::transfer::partials_pool::PartialsPool;
use crate::ids::{BootId, Epoch, GatewayId};
use crate::plan::Plan;
use crate::topology::Fabric;
use std::num::NonZeroU64;
use std::sync::Arc;
use units::ByteCount;

/// The facts that a session is created with.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// The deployment.
    pub fabric: Arc<Fabric>,
    /// This gateway.
    pub me: GatewayId,
    /// The number of each gateway of `fabric` in the graph of connections that the session is told,
    /// ascending: its own number for a job, other numbers for a group of a job.
    pub gateways: Vec<GatewayId>,
    /// A random number drawn at this start.
    pub boot: BootId,
    /// The plan of the epochs that this gateway opens, if it is the first by name.
    pub plan: Plan,
    /// Memory for partials of several local ranks, which all sessions of a job share. A session
    /// always gets memory for one segment.
    pub partials: PartialsPool,
    /// The job's share of a link while all jobs use it is 1 / `one_in`, rounded up.
    pub one_in: NonZeroU64,
    /// A number that no epoch of earlier sessions of the same group exceeds; 0 for a job.
    pub last_epoch: Epoch,
    /// Whether a commit that lost gateways may know to be complete waits for the next epoch, since others
    /// may go on without them.
    pub leaves_doubt: bool,
    /// The most bytes that a peer may send beyond its grants, equal on all gateways.
    pub unsolicited_max: ByteCount,
}
