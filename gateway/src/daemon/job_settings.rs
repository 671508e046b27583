//! The settings of the sessions of jobs, at the start and whenever jobs come or go.

use super::memory_budget::partials_memory_budget;
use super::spec::GatewaySpec;
use crate::events::JobSession;
use crate::local::job_spec::JobSpec;
use hier_collectives::ids::{BootId, Epoch, GatewayId};
use hier_collectives::plan::Plan;
use hier_collectives::session::{PartialsPool, SessionConfig};
use hier_collectives::topology::{Fabric, Quorum};
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use units::ByteCount;

/// The facts of a running gateway from which the settings of its jobs follow.
pub(super) struct JobSettings {
    /// The fabric of all jobs: without a witness.
    fabric: Arc<Fabric>,
    /// Whether some regions go on without the others.
    leaves_doubt: bool,
    me: GatewayId,
    boot: BootId,
    plan: Plan,
    /// Memory of the gateway.
    memory: ByteCount,
    /// Number of networks (WAN and LAN) on which the gateway has lanes.
    networks: usize,
}

impl JobSettings {
    /// Makes the settings that all jobs of a gateway have in common. The gateway has lanes on
    /// `networks` networks, WAN and LAN.
    pub(super) fn new(spec: &GatewaySpec, boot: BootId, networks: usize) -> Self {
        Self {
            fabric: Arc::new(spec.fabric.without_witness()),
            leaves_doubt: *spec.fabric.quorum() != Quorum::All,
            me: spec.me,
            boot,
            plan: spec.plan.clone(),
            memory: spec.memory,
            networks,
        }
    }

    /// Makes the settings of the session of each job. Memory and links are divided among all of
    /// them.
    pub(super) fn sessions(&self, jobs: &[JobSpec]) -> Vec<JobSession> {
        let of = (jobs.len(), self.networks);
        let partials = partials_memory_budget(self.memory, &self.plan, &self.fabric, self.me, of);
        let session = |job: &JobSpec| JobSession {
            name: job.name.clone(),
            facts: job.facts(),
            config: SessionConfig {
                leaves_doubt: self.leaves_doubt,
                fabric: Arc::clone(&self.fabric),
                me: self.me,
                gateways: self.fabric.gateway_ids().collect(),
                boot: self.boot,
                plan: self.plan.clone(),
                partials: PartialsPool::new(partials),
                one_in: job_settings_link_divisor(jobs, job.weight),
                last_epoch: Epoch(0),
                unsolicited_max: ByteCount::new(u64::MAX),
            },
        };
        jobs.iter().map(session).collect()
    }
}

/// Returns the divisor `n` by which a job of this weight gets one `n`th of each link. It is the sum
/// of all jobs' weights over `weight`, rounded up.
fn job_settings_link_divisor(jobs: &[JobSpec], weight: NonZeroU32) -> NonZeroU64 {
    let all: u64 = jobs.iter().map(|job| u64::from(job.weight.get())).sum();
    NonZeroU64::new(all.div_ceil(weight.get().into())).unwrap_or(NonZeroU64::MIN)
}
