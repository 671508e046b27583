//! Jobs that come, go or change while the gateway runs, here and at other gateways.
//!
//! The event loop calls it when the daemon has read the region file again, and for messages of
//! other gateways about their jobs. Each gateway introduces its jobs to all others, so that each
//! knows in which jobs their files differ.

use super::engine_task::Engine;
use super::job::Job;
use super::job::engine_shared::EngineShared;
use super::job::group_session::GroupSession;
use super::peer_jobs::{DifferingJob, PeerJob};
use crate::events::{CheckedFabric, JobSession, JobsUpdate};
use crate::observe::status::JobDifference;
use hier_collectives::ids::{BootId, GatewayId, GroupId};
use hier_collectives::post::{Failure, FailureCode};
use hier_collectives::session::PeerError;
use hier_collectives::topology::Fabric;
use hier_collectives::wire::{JobFacts, Message};
use std::collections::BTreeSet;
use std::sync::Arc;
use tracing::info;
use units::TimeNs;

impl Engine {
    /// Replaces the jobs by those of the region file, unless the gateway drains. A new job gets a
    /// session, and those that stay get their new shares of memory and links. A removed job keeps
    /// its session, which ends its epoch and enters none until the job is back. Returns the keys of files that
    /// need a restart.
    pub(super) fn update_jobs(&mut self, update: JobsUpdate, now: TimeNs) -> Vec<String> {
        let JobsUpdate { jobs, restart_needed } = update;
        let count = jobs.len();
        let jobs = jobs.into_iter().map(|job| self.with_fabric_in_force(job, count));
        let jobs: Vec<JobSession> = jobs.collect();
        if self.draining.is_some() {
            info!("the jobs of the region file are not taken up: the gateway shuts down");
            return Vec::new();
        }
        let listed: BTreeSet<GroupId> = jobs.iter().map(|job| GroupId::of_job(&job.name)).collect();
        let is_changed = |job: &&mut Job| job.removed == listed.contains(&job.id());
        for job in self.jobs.values_mut().filter(is_changed) {
            let term = self.terms.as_ref().map(|terms| terms.term());
            let graph = Arc::clone(self.shared.peers.connection_graph());
            job.removed = !job.removed;
            match term {
                _ if job.removed => {
                    job.leave_term(&removed_job_failure(&job.name, &self.fabric, self.me), now);
                    self.shared.peers.forget_job_flows(job.id());
                }
                None => job.go_on_with_all_ranks(&graph, now),
                Some(Some(term)) => job.enter_term(term, &graph, &self.shared, now),
                Some(None) => {}
            }
            job.perform_actions(&self.shared);
        }
        for job in jobs {
            match self.jobs.get_mut(&GroupId::of_job(&job.name)) {
                Some(known) => {
                    known.facts = job.facts;
                    known.set_share(job.config.partials.total(), job.config.one_in);
                }
                None => self.add_job(job, now),
            }
        }
        self.restart_needed = restart_needed.with_fabric_in_force(self.fabrics.version);
        self.introduce_jobs();
        self.reconsider_fabrics(now);
        self.restart_needed.clone()
    }

    /// Returns the settings of a job, one of `count`, with the fabric that has come into force since the
    /// start, if one has.
    fn with_fabric_in_force(&self, mut job: JobSession, count: usize) -> JobSession {
        if let Some(CheckedFabric { fabric, plan, .. }) = &self.fabrics.in_force {
            let partials = self.fabrics.judge.partials_of_job(fabric, plan, count);
            job.config.fabric = Arc::new(fabric.without_witness());
            job.config.plan = plan.clone();
            job.config.partials.set_total(partials);
        }
        job
    }

    /// Records that another gateway serves a job, and answers if this one does not.
    ///
    /// # Errors
    /// [`PeerError::NotYours`]: the name is not that of the group.
    pub(super) fn handle_job_change(
        &mut self,
        from: GatewayId,
        boot: BootId,
        group: GroupId,
        facts: JobFacts,
    ) -> Result<(), PeerError> {
        if facts.group() != group {
            return Err(PeerError::NotYours("the name of another job"));
        }
        self.peer_jobs.note_job(from, boot, group, PeerJob::Served(facts));
        if self.jobs.get(&group).is_none_or(|job| job.removed) {
            let answer = Message::Unserved { boot: self.boot };
            self.shared.peers.send_job_message(from, group, &answer);
        }
        Ok(())
    }

    /// Returns the jobs in whose region files this gateway differs from others that it can reach,
    /// for the status.
    pub(super) fn job_differences(&self) -> Vec<JobDifference> {
        let served = self.jobs.values().filter(|job| !job.removed);
        let own = served.map(|job| (job.id(), &job.facts)).collect();
        let found = self.peer_jobs.differences(&own).into_iter();
        let found =
            found.filter(|differing| self.shared.peers.has_connection_route(differing.gateway));
        let named = found.map(|DifferingJob { gateway, job, kind }| {
            let gateway = self.fabric.gateway(gateway).name.clone();
            JobDifference { job, gateway, kind }
        });
        named.collect()
    }

    /// Tells all other gateways with ranks which jobs this one serves, and which it serves no more.
    fn introduce_jobs(&self) {
        let witness = self.fabric.witness();
        let others = self.fabric.gateway_ids().filter(|id| *id != self.me && Some(*id) != witness);
        for to in others {
            for job in self.jobs.values() {
                self.shared.peers.send_job_message(to, job.id(), &job.introduction());
            }
        }
    }

    /// Begins the session of a new job, which meets the gateways that are reached by now.
    fn add_job(&mut self, job: JobSession, now: TimeNs) {
        let mut job = Job::of_session(job, self.me, &self.metrics);
        info!(job = %job.name, "job {}: added", job.name);
        let graph = Arc::clone(self.shared.peers.connection_graph());
        match &self.terms {
            None => {
                job.world.session.handle_start(now);
                job.world.session.handle_connections_before_start(&graph, now);
            }
            Some(terms) => {
                job.await_first_term();
                if let Some(term) = terms.term() {
                    job.enter_term(term, &graph, &self.shared, now);
                }
            }
        }
        job.store.handle_connections(now);
        job.stragglers.set_connections(&self.connections_for_data(&graph));
        job.perform_actions(&self.shared);
        self.jobs.insert(job.id(), job);
    }

    /// Returns the earliest time at which a session or a store of any job wants to be called;
    /// `None` without one.
    pub(super) fn job_deadline(&self) -> Option<TimeNs> {
        self.jobs.values().filter_map(Job::deadline).min()
    }

    /// Calls `handle` with the job of a group, and performs the actions that follow; returns `None`
    /// if this gateway does not know the group.
    pub(super) fn with_job_of<T>(
        &mut self,
        id: GroupId,
        handle: impl FnOnce(&mut Job, &EngineShared) -> T,
    ) -> Option<T> {
        let is_job = self.jobs.contains_key(&id);
        let job = match is_job {
            true => self.jobs.get_mut(&id),
            false => self.jobs.values_mut().find(|job| job.has_group(id)),
        }?;
        let handled = handle(job, &self.shared);
        job.perform_actions(&self.shared);
        Some(handled)
    }

    /// Calls `handle` with a group, and performs the actions that follow; returns `None` if this
    /// gateway does not know the group.
    pub(super) fn with_job_group<T>(
        &mut self,
        id: GroupId,
        handle: impl FnOnce(&mut GroupSession) -> T,
    ) -> Option<T> {
        self.with_job_of(id, |job, _| job.group_mut(id).map(handle)).flatten()
    }

    /// Calls `handle` with every group of every job, and performs the actions that follow.
    pub(super) fn for_each_job_group(&mut self, mut handle: impl FnMut(&mut GroupSession, TimeNs)) {
        let now = self.shared.host.now();
        for job in self.jobs.values_mut() {
            job.for_each_group(|group| handle(group, now));
            job.perform_actions(&self.shared);
        }
    }
}

/// Returns the failure of what is under way in a job that the region file of gateway `me` has no
/// more.
fn removed_job_failure(job: &str, fabric: &Fabric, me: GatewayId) -> Failure {
    let gateway = &fabric.gateway(me).name;
    let text = format!(
        "job {job} was removed from the region file of gateway {gateway}; contributions intact, \
         the next epoch begins when it is back"
    );
    Failure::new(FailureCode::EpochEnded, text)
}
