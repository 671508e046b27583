//! One job's group: its session, its memory, its attached ranks. Groups share peers and
//! lanes, and nothing else.

use super::peers::Peers;
use super::ranks::Ranks;
use super::status::awaited;
use super::stragglers::StragglerMonitor;
use super::{Event, EventSender, Placement};
use crate::host::{Host, TaskPanicked};
use crate::local::server::LocalEvent;
use crate::log_throttle::LogThrottle;
use crate::memory::arena::MemSlice;
use crate::memory::buffers::BufferTable;
use crate::observe::metrics::{JobMetrics, Outcome};
use crate::wan::stream::trace::trace_segment;
use hier_collectives::ids::{GatewayId, GroupId, RankId, SegmentIndex, Sequence};
use hier_collectives::plan;
use hier_collectives::post::{FailureCode, RankEvent};
use hier_collectives::session::{
    Action, Arrival, CollectiveStatus, JobId, LeaseId, Note, PeerError, Session,
};
use hier_collectives::topology::Fabric;
use hier_collectives::wire::{Message, SegmentHeader, SegmentKey};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use units::{Span, TimeNs};

/// What is computed at once: handing it to another thread and back takes longer.
const IN_PLACE_MAX_BYTES: u64 = 1 << 16;

/// See the module.
pub(super) struct Job {
    pub id: GroupId,
    /// The job's name.
    pub name: String,
    pub session: Session,
    pub metrics: JobMetrics,
    pub watch: StragglerMonitor,
    memory: BufferTable,
    ranks: Ranks,
    leases: BTreeMap<LeaseId, (Sequence, CancellationToken)>,
    /// Ranks shown as awaited.
    awaited: BTreeSet<RankId>,
    /// The collective whose waiting is being told, and when to tell of it next.
    waiting: Option<(Sequence, TimeNs)>,
    /// A job may fail as many collectives, and end as many epochs, as it likes.
    failures: LogThrottle,
    epochs: LogThrottle,
    comings: LogThrottle,
}

/// Lines of a kind that a job's ranks can cause as often as they like, in ten seconds.
const LINES_MAX: u64 = 1000;

/// A wait is logged once it is this long, and again each time it has doubled.
const TELL_WAIT_AFTER: Span = Span::from_secs(10);

/// What groups share.
pub(super) struct Shared {
    pub host: Arc<dyn Host>,
    pub peers: Peers,
    pub events: EventSender,
}

impl Job {
    pub fn new(
        name: String,
        session: Session,
        metrics: JobMetrics,
        watch: StragglerMonitor,
    ) -> Self {
        let memory = BufferTable::new(metrics.mapped.clone());
        Self {
            id: GroupId::of(&name),
            name,
            session,
            metrics,
            watch,
            memory,
            ranks: Ranks::default(),
            leases: BTreeMap::new(),
            awaited: BTreeSet::new(),
            waiting: None,
            failures: LogThrottle::default(),
            epochs: LogThrottle::lines(LINES_MAX),
            comings: LogThrottle::lines(LINES_MAX),
        }
    }

    pub fn handle_local(&mut self, event: LocalEvent, now: TimeNs) {
        match event {
            LocalEvent::Attach { rank, attachment, events, .. } => {
                if let Some(unsaid) = self.comings.permit(now) {
                    info!("job {}: rank {rank} attached{unsaid}", self.name);
                }
                self.ranks.attach(rank, attachment, events);
                self.session.handle_attach(rank, now);
            }
            LocalEvent::Post { rank, attachment, post, contribution, result, .. } => {
                if self.ranks.is_current(rank, attachment) {
                    self.memory.post(post.sequence, rank, contribution, result);
                    self.watch.pace.handle_post(rank, post.sequence, post.weight, now);
                    self.session.handle_post(rank, post, now);
                }
            }
            LocalEvent::Commit { rank, attachment, commit, .. } => {
                if self.ranks.is_current(rank, attachment) {
                    self.session.handle_commit(rank, commit, now);
                }
            }
            LocalEvent::Detach { rank, attachment, .. } => {
                if self.ranks.detach(rank, attachment) {
                    if let Some(unsaid) = self.comings.permit(now) {
                        info!("job {}: rank {rank} detached{unsaid}", self.name);
                    }
                    self.session.handle_detach(rank, now);
                }
            }
        }
    }

    /// Where an arriving segment goes.
    ///
    /// # Errors
    /// [`PeerError`]: end the job's epoch, or close the connection; see [`PeerError::is_of_ranks`].
    pub fn place(
        &mut self,
        from: GatewayId,
        header: &SegmentHeader,
    ) -> Result<Placement, PeerError> {
        let sequence = header.key.sequence;
        let cancel = CancellationToken::new();
        Ok(match self.session.handle_arrival(from, header)? {
            Arrival::Combine { lease, op, dtype, local, net_weight, net_first, out } => {
                self.leases.insert(lease, (sequence, cancel.clone()));
                let local = (self.memory.view(&local.view), local.weight);
                let out = self.memory.view(&out);
                Placement::Combine { lease, op, dtype, local, net_weight, net_first, out, cancel }
            }
            Arrival::Land { lease, into } => {
                self.leases.insert(lease, (sequence, cancel.clone()));
                Placement::Land { lease, into: self.memory.view(&into), cancel }
            }
            Arrival::Discard(why) => {
                debug!("job {}: segment {:?} discarded: {why:?}", self.name, header.key);
                Placement::Discard(why)
            }
        })
    }

    /// Hears a message of another gateway.
    ///
    /// # Errors
    /// [`PeerError`]: end the job's epoch, or close the connection; see [`PeerError::is_of_ranks`].
    pub fn hear(
        &mut self,
        from: GatewayId,
        message: Message,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        if let Message::Grant { sequence, tree, limit, .. } = &message {
            let (sequence, tree, segment) = (*sequence, *tree, SegmentIndex(*limit));
            let below = SegmentKey { sequence, tree, segment };
            trace_segment("granted", self.id, from, below, 0);
        }
        self.watch.heard(from, &message, now);
        self.session.handle_message(from, message, now)
    }

    pub fn end_lease(&mut self, lease: LeaseId, whole: bool, now: TimeNs) {
        self.leases.remove(&lease);
        self.session.handle_arrival_end(lease, whole, now);
    }

    /// Carries out everything the session asks for.
    pub fn act(&mut self, shared: &Shared) {
        loop {
            self.metrics.uses_scratch(self.memory.scratch_bytes());
            let Some(action) = self.session.poll_action() else { return };
            self.carry_out(action, shared);
        }
    }

    fn carry_out(&mut self, action: Action, shared: &Shared) {
        let peers = &shared.peers;
        match action {
            Action::Message { to, message } => peers.tell(to, self.id, &message),
            Action::Send { to, header, source, turn, tail } => {
                trace_segment("sent", self.id, to, header.key, u64::from(header.bytes));
                let payload = self.memory.view(&source);
                peers.push(to, self.id, (header, turn, tail), payload);
            }
            Action::Reduce { job, op, dtype, inputs, out } => {
                let memory = &mut self.memory;
                let inputs: Vec<(MemSlice, f64)> =
                    inputs.iter().map(|input| (memory.view(&input.view), input.weight)).collect();
                let out = memory.view(&out);
                let bytes = out.len() * inputs.len() as u64;
                let reduce = move || out.reduce(op, dtype, &inputs);
                self.compute(shared, job, bytes, Box::new(reduce));
            }
            Action::Copy { job, from, to } => {
                let from = self.memory.view(&from);
                let to: Vec<MemSlice> = to.iter().map(|view| self.memory.view(view)).collect();
                let bytes = from.len() * to.len() as u64;
                let copy = move || to.iter().for_each(|slice| from.copy_to_slice(slice));
                self.compute(shared, job, bytes, Box::new(copy));
            }
            Action::Release(scratch) => self.memory.release(scratch),
            Action::Receipted { from, key } => {
                trace_segment("receipted", self.id, from, key, 0);
                peers.receipted(from, self.id, key);
            }
            Action::Cancel(sequence) => {
                let of_it = self.leases.values().filter(|(other, _)| *other == sequence);
                of_it.for_each(|(_, cancel)| cancel.cancel());
                self.cancel(shared, sequence);
            }
            Action::CancelLease(lease) => {
                if let Some((_, cancel)) = self.leases.get(&lease) {
                    cancel.cancel();
                }
            }
            Action::Notify { rank, event } => {
                if let RankEvent::ContributionFree { sequence }
                | RankEvent::Failed { sequence, .. } = event
                {
                    self.memory.finish(sequence, rank);
                }
                self.ranks.notify(rank, event);
            }
            Action::Plan(as_found) => self.plan(shared, as_found),
            Action::Note(note) => {
                let another = matches!(note, Note::EpochBegan { .. } | Note::PlanChanged { .. });
                if let Some(plan) = self.session.plan().filter(|_| another) {
                    peers.divide(self.id, plan);
                }
                self.note(note, shared.host.now());
            }
        }
    }

    /// Stops what is being sent of a collective, and tells the session once it has stopped.
    fn cancel(&mut self, shared: &Shared, sequence: Sequence) {
        let writing = shared.peers.cancel(self.id, sequence);
        if writing.is_empty() {
            return self.session.handle_cancelled(sequence, shared.host.now());
        }
        let (group, events) = (self.id, shared.events.clone());
        shared.host.spawn(Box::pin(async move {
            for released in writing {
                released.cancelled().await;
            }
            let _ = events.send(Event::Cancelled(group, sequence)).await;
        }));
    }

    /// Plans where it holds up nobody.
    fn plan(&self, shared: &Shared, fabric: Arc<Fabric>) {
        let (group, events) = (self.id, shared.events.clone());
        let (done, planned) = oneshot::channel();
        let as_found = Arc::clone(&fabric);
        let planning = shared.host.run_blocking(Box::new(move || {
            let _ = done.send(plan::plan(&as_found).ok());
        }));
        shared.host.spawn(Box::pin(async move {
            let event = match planning.await {
                Ok(()) => Event::Planned(group, fabric, planned.await.ok().flatten()),
                Err(TaskPanicked) => Event::TaskPanicked,
            };
            let _ = events.send(event).await;
        }));
    }

    /// Shows who is awaited, and for how long.
    pub fn measure(&mut self, now: TimeNs) {
        let seen = self.session.status();
        if seen.plan.is_none() {
            self.metrics.epoch.set(0);
        }
        self.metrics.straggles(self.watch.tell(&self.name).as_ref());
        self.metrics.draining.set(i64::from(seen.draining.is_some()));
        self.metrics.waiting_commits.set(i64::try_from(seen.commits.len()).unwrap_or(i64::MAX));
        let oldest = seen.commits.iter().map(|commit| commit.begun).min();
        let waited = oldest.map_or(0.0, |begun| now.since(begun).as_secs_f64());
        self.metrics.commit_awaited_seconds.set(waited);
        let posting = |c: &&CollectiveStatus| c.state != "failed";
        // Ranks post in order, so whoever is late is late for the oldest.
        let oldest = seen.collectives.iter().filter(posting).find_map(|c| {
            let ranks = awaited(c);
            (!ranks.is_empty()).then_some((c, ranks))
        });
        let awaited = oldest.as_ref().map(|(_, ranks)| ranks.clone()).unwrap_or_default();
        for rank in self.awaited.difference(&awaited) {
            self.metrics.awaits(*rank, None);
        }
        if let Some((collective, ranks)) = oldest {
            let waited = now.since(collective.begun);
            ranks.iter().for_each(|rank| self.metrics.awaits(*rank, Some(waited.as_secs_f64())));
            self.tell_wait(collective.sequence, collective.begun, &ranks, now);
        }
        self.awaited = awaited;
    }

    fn tell_wait(
        &mut self,
        sequence: Sequence,
        begun: TimeNs,
        ranks: &BTreeSet<RankId>,
        now: TimeNs,
    ) {
        let due = match self.waiting {
            Some((told, due)) if told == sequence => due,
            _ => begun + TELL_WAIT_AFTER,
        };
        self.waiting = Some((sequence, due));
        if now >= due {
            let waited = now.since(begun);
            self.waiting = Some((sequence, now + waited));
            let ranks: Vec<String> = ranks.iter().map(RankId::to_string).collect();
            let seconds = waited.as_secs_f64();
            let (name, ranks) = (&self.name, ranks.join(", "));
            warn!("job {name}: collective {sequence} has awaited ranks {ranks} for {seconds:.0} s");
        }
    }

    /// `bytes` are what it reads.
    fn compute(&mut self, shared: &Shared, job: JobId, bytes: u64, work: crate::host::Task) {
        if bytes <= IN_PLACE_MAX_BYTES {
            work();
            return self.session.handle_job_done(job, shared.host.now());
        }
        let done = shared.host.compute(work);
        let (group, events) = (self.id, shared.events.clone());
        shared.host.spawn(Box::pin(async move {
            let event = match done.await {
                Ok(()) => Event::TaskDone(group, job),
                Err(TaskPanicked) => Event::TaskPanicked,
            };
            let _ = events.send(event).await;
        }));
    }

    fn note(&mut self, note: Note, now: TimeNs) {
        match &note {
            Note::EpochBegan { next, .. } => self.watch.epoch_began(*next),
            Note::Completed { sequence, bytes, .. } => {
                self.watch.completed(*sequence, self.session.plan(), *bytes, now);
            }
            Note::Failed { sequence, .. } => self.watch.pace.handle_failure(*sequence),
            Note::PlanChanged { .. } => self.watch.plan_changed(),
            Note::EpochEnded { .. } => {}
        }
        let name = &self.name;
        match note {
            Note::EpochBegan { epoch, next: _, algorithm, reason, plan_hash } => {
                self.metrics.epoch.set(i64::try_from(epoch.0).unwrap_or(i64::MAX));
                if let Some(unsaid) = self.epochs.permit(now) {
                    info!(
                        "job {name}: epoch {epoch} began: {algorithm} ({reason}); plan \
                         {plan_hash:016x}{unsaid}"
                    );
                }
            }
            Note::PlanChanged { from, algorithm, reason, plan_hash } => {
                info!(
                    "job {name}: another plan from collective {from} on: {algorithm} ({reason}); \
                     plan {plan_hash:016x}"
                );
            }
            Note::EpochEnded { epoch, failure } => {
                if let Some(unsaid) = self.epochs.permit(now) {
                    warn!("job {name}: epoch {epoch} ended: {failure}{unsaid}");
                }
            }
            Note::Completed { sequence, op, bytes, took } => {
                self.metrics.seconds(op).observe(took.as_secs_f64());
                self.metrics.collectives(op, Outcome::Completed).inc();
                debug!("job {name}: collective {sequence} completed: {op}, {bytes} bytes");
            }
            Note::Failed { sequence, op, failure } => {
                let disagreed = failure.code == FailureCode::Disagreement;
                let outcome = if disagreed { Outcome::Disagreed } else { Outcome::Failed };
                self.metrics.collectives(op.unwrap_or("unknown"), outcome).inc();
                if let Some(unsaid) = self.failures.permit(now) {
                    warn!("job {name}: collective {sequence} failed: {failure}{unsaid}");
                } else {
                    debug!("job {name}: collective {sequence} failed: {failure}");
                }
            }
        }
    }
}
