//! One job: its session, its buffers and its attached ranks. Jobs share peers and lanes, and
//! nothing else.
//!
//! The event loop hands a job its events and then lets it perform the session's actions
//! (`actions`). `report` logs and counts what happens, `totals` sums what the job has done,
//! `awaited_epoch` knows which ranks have to hear what their job waits for.

pub(super) mod actions;
mod awaited_epoch;
pub(super) mod report;
mod totals;

use super::ranks::AttachedRanks;
use super::straggler_monitor::StragglerMonitor;
use crate::events::{JobSession, LocalEvent, SegmentPlacement};
use crate::log_throttle::LogThrottle;
use crate::memory::buffers::BufferTable;
use crate::observe::metrics::{JobMetrics, MetricsRegistry};
use crate::wan::stream::trace::trace_segment;
use crate::warnings::Warnings;
use awaited_epoch::AwaitedEpoch;
use hier_collectives::ids::{BootId, GatewayId, GroupId, RankId, SegmentIndex, Sequence};
use hier_collectives::post::{Failure, RankEvent};
use hier_collectives::session::{Arrival, LeaseId, PeerError, Session};
use hier_collectives::store::{JobStore, StoreCaller};
use hier_collectives::topology::Fabric;
use hier_collectives::wire::{JobFacts, Message, SegmentHeader, SegmentKey};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use totals::WorkTotals;
use tracing::{debug, info};
use units::TimeNs;

/// 1,000 log lines in ten seconds: the most that ranks of one job can cause about epochs, and as
/// many about attachments.
const LOG_LINES_MAX: u64 = 1000;

/// The state of one job.
pub(super) struct Job {
    /// The group that stands for the job on the wire.
    pub group: GroupId,
    /// The job's name.
    pub name: String,
    pub session: Session,
    /// The keys that the job's ranks share.
    pub store: JobStore,
    pub metrics: JobMetrics,
    pub stragglers: StragglerMonitor,
    /// The work that the job has done here since the gateway's start.
    pub totals: WorkTotals,
    /// Whether the region file has the job no more: its trainers are disconnected, and its session
    /// stays until the gateway ends, since segments of it may still arrive.
    pub removed: bool,
    /// The facts about the job that other gateways may know.
    pub facts: JobFacts,
    /// The random number of the gateway's start.
    boot: BootId,
    buffers: BufferTable,
    ranks: AttachedRanks,
    /// The ranks that were told what the job without an epoch waits for.
    awaited_epoch: AwaitedEpoch,
    /// Segments that are arriving, and the tokens that end their leases.
    leases: BTreeMap<LeaseId, SegmentLease>,
    /// Ranks that the gauges show as awaited.
    awaited: BTreeSet<RankId>,
    /// The wait that is logged next.
    wait: Option<LoggedWait>,
    /// Limits log lines about failed collectives, which a job's ranks can cause without bound.
    failure_lines: LogThrottle,
    /// Limits log lines about epochs that begin and end.
    epoch_lines: LogThrottle,
    /// Limits log lines about ranks that attach and detach.
    attach_lines: LogThrottle,
    /// Decides which of these lines are warnings.
    warnings: Warnings,
}

/// A permission to write an arriving segment into the buffers.
struct SegmentLease {
    sequence: Sequence,
    cancel: CancellationToken,
}

/// A collective that waits for ranks, and when the wait is logged next.
#[derive(Clone, Copy)]
struct LoggedWait {
    sequence: Sequence,
    due: TimeNs,
}

impl Job {
    /// Makes the job of a new session of gateway `me`, without attached ranks.
    pub fn of_session(
        job: JobSession,
        fabric: &Arc<Fabric>,
        me: GatewayId,
        metrics: &MetricsRegistry,
    ) -> Self {
        let JobSession { name, facts, config } = job;
        let warnings = metrics.warnings.clone();
        let metrics = metrics.job_metrics(&name);
        Self {
            group: GroupId::of_job(&name),
            name,
            facts,
            boot: config.boot,
            store: JobStore::new(Arc::clone(fabric), me, config.boot),
            session: Session::new(config),
            buffers: BufferTable::new(metrics.mapped.clone()),
            metrics,
            stragglers: StragglerMonitor::new(Arc::clone(fabric), me, warnings.clone()),
            totals: WorkTotals::default(),
            removed: false,
            ranks: AttachedRanks::default(),
            awaited_epoch: AwaitedEpoch::default(),
            leases: BTreeMap::new(),
            awaited: BTreeSet::new(),
            wait: None,
            failure_lines: LogThrottle::default(),
            epoch_lines: LogThrottle::with_lines_max(LOG_LINES_MAX),
            attach_lines: LogThrottle::with_lines_max(LOG_LINES_MAX),
            warnings,
        }
    }

    /// Returns the message that tells another gateway whether this one serves the job.
    pub fn introduction(&self) -> Message {
        let boot = self.boot;
        if self.removed {
            Message::Unserved { boot }
        } else {
            Message::Serves { boot, job: self.facts.clone() }
        }
    }

    /// Tells attached ranks why there is no epoch; `why` is `None` while there is one.
    pub fn tell_awaited_epoch(&mut self, why: Option<String>, now: TimeNs) {
        let Some(why) = why.map(Failure::truncate_text) else {
            self.awaited_epoch = AwaitedEpoch::default();
            return;
        };
        let ranks = self.awaited_epoch.ranks_to_tell(self.ranks.ids(), &why, now);
        for rank in ranks {
            self.ranks.notify(rank, RankEvent::EpochAwaited { why: why.clone() });
        }
    }

    /// Handles an event of a trainer's task. Posts and commits of an attachment that another has
    /// replaced are ignored.
    pub fn handle_trainer_event(&mut self, event: LocalEvent, now: TimeNs) {
        match event {
            LocalEvent::Attach { rank, attachment, events, .. } => {
                if let Some(suppressed) = self.attach_lines.permit(now) {
                    info!(
                        job = %self.name,
                        rank = rank.0,
                        "job {}: rank {rank} attached{suppressed}",
                        self.name
                    );
                }
                self.ranks.attach(rank, attachment, events);
                self.awaited_epoch.forget_rank(rank);
                self.stragglers.detection.handle_departure(rank);
                self.session.handle_attach(rank, now);
            }
            LocalEvent::Post { rank, attachment, post, contribution, result, .. } => {
                if self.ranks.is_current_attachment(rank, attachment) {
                    self.buffers.add_slots(post.sequence, rank, contribution, result);
                    self.stragglers.detection.handle_post(rank, post.sequence, post.weight, now);
                    self.session.handle_post(rank, *post, now);
                }
            }
            LocalEvent::Commit { rank, attachment, commit, .. } => {
                if self.ranks.is_current_attachment(rank, attachment) {
                    self.session.handle_commit(rank, commit, now);
                }
            }
            LocalEvent::Store { rank, attachment, number, timeout, request, .. } => {
                if self.ranks.is_current_attachment(rank, attachment) {
                    let caller = StoreCaller { attachment, number };
                    self.store.handle_request(caller, *request, timeout, now);
                }
            }
            LocalEvent::Detach { rank, attachment, .. } => {
                self.store.handle_detach(attachment, now);
                if self.ranks.detach(rank, attachment) {
                    if let Some(suppressed) = self.attach_lines.permit(now) {
                        info!(
                            job = %self.name,
                            rank = rank.0,
                            "job {}: rank {rank} detached{suppressed}",
                            self.name
                        );
                    }
                    self.stragglers.detection.handle_departure(rank);
                    self.session.handle_detach(rank, now);
                }
            }
        }
    }

    /// Decides where the payload of an arriving segment goes, and leases that memory.
    ///
    /// # Errors
    /// [`PeerError`]: end the job's epoch or close the connection; see
    /// [`PeerError::is_caused_by_ranks`].
    pub fn resolve_segment_destination(
        &mut self,
        from: GatewayId,
        header: &SegmentHeader,
    ) -> Result<SegmentPlacement, PeerError> {
        let sequence = header.key.sequence;
        let cancel = CancellationToken::new();
        Ok(match self.session.handle_arrival(from, header)? {
            Arrival::Combine { lease, op, dtype, local, net_weight, net_first, out } => {
                self.leases.insert(lease, SegmentLease { sequence, cancel: cancel.clone() });
                let local = (self.buffers.view_memory(&local.view), local.weight);
                let out = self.buffers.view_memory(&out);
                SegmentPlacement::Combine {
                    lease,
                    op,
                    dtype,
                    local,
                    net_weight,
                    net_first,
                    out,
                    cancel,
                }
            }
            Arrival::Land { lease, into } => {
                self.leases.insert(lease, SegmentLease { sequence, cancel: cancel.clone() });
                SegmentPlacement::Land { lease, into: self.buffers.view_memory(&into), cancel }
            }
            Arrival::Discard(why) => {
                debug!(
                    job = %self.name,
                    collective = sequence.0,
                    "job {}: segment {:?} discarded: {why:?}",
                    self.name,
                    header.key
                );
                SegmentPlacement::Discard(why)
            }
        })
    }

    /// Handles a control message of another gateway.
    ///
    /// # Errors
    /// [`PeerError`]: end the job's epoch or close the connection; see
    /// [`PeerError::is_caused_by_ranks`].
    pub fn handle_message(
        &mut self,
        from: GatewayId,
        message: Message,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        let message = match message {
            Message::Store(message) => {
                return Ok(self.store.handle_message(from, *message, now)?);
            }
            message => message,
        };
        if message == Message::Repeat {
            self.store.handle_connections(now);
        }
        if let Message::Grant { sequence, tree, limit, .. } = &message {
            let (sequence, tree, segment) = (*sequence, *tree, SegmentIndex(*limit));
            let below = SegmentKey { sequence, tree, segment };
            trace_segment("granted", self.group, from, below, 0);
        }
        self.stragglers.handle_message(from, &message, now);
        self.session.handle_message(from, message, now)
    }

    /// Ends the permission to write an arriving segment; `whole` says whether all of it is in
    /// place.
    pub fn end_lease(&mut self, lease: LeaseId, whole: bool, now: TimeNs) {
        self.leases.remove(&lease);
        self.session.handle_arrival_end(lease, whole, now);
    }
}
