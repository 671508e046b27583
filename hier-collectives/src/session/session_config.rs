//! The facts that a session is created with.

use crate::ids::{BootId, Epoch, GatewayId};
use crate::plan::Plan;
use crate::topology::Fabric;
use std::num::NonZeroU64;
use std::sync::Arc;
use units::ByteCount;

/// The part of a job's memory and links that one of its groups may use. It changes as jobs come and
/// go, and as groups begin and end their work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionShare {
    /// Memory for partials of several local ranks; at least one segment is always used.
    pub partials: ByteCount,
    /// Memory for the windows of relays and results, of all peers together; a segment of each tree is
    /// always granted. `None` stands for the windows of the plan.
    pub windows: Option<ByteCount>,
    /// The share of a link is 1 / `one_in`, rounded up.
    pub one_in: NonZeroU64,
    /// The number of groups that share tails with parity, since their receiver holds them.
    pub tails: NonZeroU64,
}

impl SessionShare {
    /// Returns the share of a job whose ranks use no other groups.
    pub fn of_job_alone(partials: ByteCount, one_in: NonZeroU64) -> Self {
        Self { partials, windows: None, one_in, tails: NonZeroU64::MIN }
    }

    /// Returns the share of a group while nothing of it is under way.
    pub fn without_work(one_in: NonZeroU64) -> Self {
        let none = ByteCount::default();
        Self { partials: none, windows: Some(none), one_in, tails: NonZeroU64::MIN }
    }

    /// Returns the bytes of one window of the plan that may be used, of windows with `all` bytes.
    pub(super) fn window_bytes(&self, window: ByteCount, all: ByteCount) -> u64 {
        let part = |bytes: ByteCount| {
            let part = u128::from(window.get()) * u128::from(bytes.get());
            u64::try_from(part / u128::from(all.get().max(1))).unwrap_or(u64::MAX)
        };
        self.windows.filter(|bytes| *bytes < all).map_or(window.get(), part)
    }
}

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
    /// The plan of the epochs that this gateway opens, if it is the first by name; `None` until
    /// [`Session::handle_own_plan`](super::Session::handle_own_plan).
    pub plan: Option<Plan>,
    /// Memory for partials of several local ranks; at least one segment is always used.
    pub partials: ByteCount,
    /// The job's share of a link while all jobs use it is 1 / `one_in`, rounded up.
    pub one_in: NonZeroU64,
    /// A number that no epoch of earlier sessions of the same group exceeds; 0 for a job.
    pub last_epoch: Epoch,
    /// The most bytes that a peer may send beyond its grants, equal on all gateways.
    pub unsolicited_max: ByteCount,
}
