//! Jobs that come, go or change while the gateway runs.
//!
//! The event loop calls it when the daemon has read the region file again.

use super::event_loop::Engine;
use super::job::Job;
use crate::events::{JobSession, JobsUpdate};
use hier_collectives::ids::GroupId;
use std::collections::BTreeSet;
use std::sync::Arc;
use tracing::{info, warn};
use units::TimeNs;

impl Engine {
    /// Takes up the jobs of the region file. A new job gets a session, and those that stay get
    /// their new shares of memory and links. A removed job keeps its session without ranks.
    pub(super) fn update_jobs(&mut self, update: JobsUpdate, now: TimeNs) {
        let JobsUpdate { jobs, restart_needed } = update;
        if self.draining.is_some() {
            return warn!("the jobs of the region file are not taken up: the gateway shuts down");
        }
        let listed: BTreeSet<GroupId> = jobs.iter().map(|job| GroupId::of_job(&job.name)).collect();
        for job in self.jobs.values_mut() {
            job.removed = !listed.contains(&job.group);
        }
        for job in jobs {
            match self.jobs.get_mut(&GroupId::of_job(&job.name)) {
                Some(known) => known.session.set_share(job.config.partials, job.config.one_in),
                None => self.add_job(job, now),
            }
        }
        self.restart_needed = restart_needed;
    }

    /// Begins the session of a new job, which meets the gateways that are reached by now.
    fn add_job(&mut self, job: JobSession, now: TimeNs) {
        let mut job = Job::of_session(job, &self.fabric, self.me, &self.metrics);
        info!("job {}: added", job.name);
        job.session.handle_start(now);
        let graph = Arc::clone(self.shared.peers.graph());
        job.session.handle_late_start(&graph, now);
        job.stragglers.set_connections(&graph);
        job.perform_actions(&self.shared);
        self.jobs.insert(job.group, job);
    }
}
