//! One job: its groups, its store, its attached ranks and its records. Jobs share peers and lanes,
//! and nothing else.
//!
//! The job itself is the group of all its ranks; `groups` has those that ranks make at run time.
//! The event loop hands a job its events, and then lets it perform the actions of sessions and
//! store (`job_actions`). `report` logs and counts what happens, `work_totals` sums what the job
//! has done, `awaited_epoch` knows which ranks have to hear what their job waits for, `send_pairs`
//! counts the groups in which two ranks send to each other, `job_terms`
//! has the ranks that the job goes on with when regions are lost, and `worlds` the sessions over
//! them.

mod awaited_epoch;
mod counted_groups;
pub(super) mod engine_shared;
pub(super) mod group_membership;
mod group_plans;
pub(super) mod group_session;
mod groups;
mod job_actions;
pub(super) mod job_terms;
pub(super) mod report;
mod send_pairs;
mod worlds;

use super::attached_ranks::AttachedRanks;
use super::straggler_monitor::StragglerMonitor;
use super::terms::term_worlds::TermWorlds;
use crate::events::{JobSession, LocalEvent};
use crate::log_throttle::LogThrottle;
use crate::observe::metrics::{JobMetrics, MetricsRegistry};
use crate::warnings::Warnings;
use awaited_epoch::AwaitedEpoch;
use engine_shared::EngineShared;
use group_membership::GroupMaking;
use group_plans::GroupPlans;
use group_session::GroupSession;
use hier_collectives::ids::{BootId, Epoch, GatewayId, GroupId, RankId, Sequence};
use hier_collectives::post::{Failure, RankEvent};
use hier_collectives::session::{PartialsPool, PeerError};
use hier_collectives::store::{JobStore, StoreCaller, StoreViolation};
use hier_collectives::wire::{JobFacts, Message};
use report::flight_recorder::{FlightRecorder, FlightSlots, GroupFlightRecorder};
use report::incidents::Incidents;
use report::work_totals::WorkTotals;
use send_pairs::SendPairs;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;
use tracing::info;
use units::{ByteCount, TimeNs};

/// 1,000 log lines in ten seconds: the most about epochs of one job and its groups, and as many
/// about attachments. Further lines are dropped, and the next line has their number. The limit is
/// chosen; it bounds the log.
const LOG_LINES_MAX: u64 = 1000;

/// The state of one job.
pub(super) struct Job {
    /// The job's name.
    pub name: String,
    /// The keys that all its ranks share.
    pub store: JobStore,
    /// The group of all its ranks.
    pub world: GroupSession,
    /// The groups of the ranks that it goes on with when regions are lost.
    terms: TermWorlds,
    /// The groups that its ranks have made.
    groups: BTreeMap<GroupId, GroupSession>,
    /// Those of them in which two ranks send to each other.
    pairs: SendPairs,
    /// Groups whose sessions may ask for actions.
    touched: BTreeSet<GroupId>,
    /// When the sessions of groups want to be called.
    deadlines: BTreeSet<(TimeNs, GroupId)>,
    /// The last epoch of any group that was freed, which no later group repeats.
    last_epoch: Epoch,
    /// The last groups that ranks of this gateway have left, the latest last.
    lately_left: VecDeque<(RankId, GroupId)>,
    /// Plans of groups, by their gateways.
    plans: GroupPlans,
    /// Bytes of scratch that all groups use.
    scratch_bytes: u64,
    settings: GroupSettings,
    pub metrics: JobMetrics,
    pub stragglers: StragglerMonitor,
    /// The work that the job has done here since the gateway's start.
    pub totals: WorkTotals,
    /// The last failures of its collectives and ends of its epochs, groups included.
    pub incidents: Incidents,
    /// The last collectives of the job itself, with the posts of local ranks.
    pub flights: FlightRecorder,
    /// The last collectives of all its groups, with the posts of local ranks.
    pub group_flights: GroupFlightRecorder,
    /// Whether the region file has the job no more: its trainers are disconnected, and its session
    /// stays until the gateway ends, since segments of it may still arrive.
    pub removed: bool,
    /// The facts about the job that other gateways may know.
    pub facts: JobFacts,
    /// The random number of the gateway's start.
    boot: BootId,
    ranks: AttachedRanks,
    /// The ranks that were told what the job without an epoch waits for.
    awaited_epoch: AwaitedEpoch,
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

/// The settings of all groups of a job.
struct GroupSettings {
    me: GatewayId,
    /// The longest segment of any plan.
    segment: ByteCount,
    /// Memory for partials, of all groups together.
    partials: PartialsPool,
    /// The job's share of a link is 1 / `one_in`.
    one_in: NonZeroU64,
}

/// A collective that waits for ranks, and when the wait is logged next.
#[derive(Clone, Copy)]
struct LoggedWait {
    sequence: Sequence,
    due: TimeNs,
}

impl Job {
    /// Makes the job of a new session of gateway `me`, without attached ranks.
    pub fn of_session(job: JobSession, me: GatewayId, metrics: &MetricsRegistry) -> Self {
        let JobSession { name, facts, config } = job;
        let fabric = Arc::clone(&config.fabric);
        let warnings = metrics.warnings.clone();
        let metrics = metrics.job_metrics(&name);
        let (id, boot) = (GroupId::of_job(&name), config.boot);
        let settings = GroupSettings {
            me,
            segment: config.plan.segment,
            partials: config.partials.clone(),
            one_in: config.one_in,
        };
        Self {
            name,
            facts,
            boot,
            store: JobStore::new(Arc::clone(&fabric), me, boot),
            world: GroupSession::of_session(id, id, config, None, metrics.mapped.clone()),
            terms: TermWorlds::default(),
            groups: BTreeMap::new(),
            pairs: SendPairs::default(),
            touched: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            last_epoch: Epoch(0),
            lately_left: VecDeque::new(),
            plans: GroupPlans::default(),
            scratch_bytes: 0,
            settings,
            metrics,
            stragglers: StragglerMonitor::new(fabric, me, warnings.clone()),
            totals: WorkTotals::default(),
            incidents: Incidents::default(),
            flights: FlightRecorder::default(),
            group_flights: GroupFlightRecorder::default(),
            removed: false,
            ranks: AttachedRanks::default(),
            awaited_epoch: AwaitedEpoch::default(),
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

    /// Tells attached ranks why there is no epoch: those that were not told yet, and the others of
    /// a changed text once that is due. `why` is `None` while there is an epoch.
    pub fn tell_why_job_waits(&mut self, why: Option<String>, now: TimeNs) {
        let Some(why) = why.map(Failure::truncate_text) else {
            self.awaited_epoch = AwaitedEpoch::default();
            return;
        };
        let ranks = self.awaited_epoch.ranks_to_tell(self.ranks.ids(), &why, now);
        for rank in ranks {
            self.ranks.notify(rank, self.world.id, RankEvent::EpochAwaited { why: why.clone() });
        }
    }

    /// Returns the id of the group that stands for the job on the wire.
    pub fn id(&self) -> GroupId {
        self.world.id
    }

    /// Returns whether every session has finished its drain.
    pub fn is_drained(&self) -> bool {
        let mut groups = self.groups.values().chain(self.terms.parts.values()).chain([&self.world]);
        groups.all(|group| group.session.is_drained())
    }

    /// Sets the job's memory for partials, and its share of each link, one `one_in`th, since jobs
    /// came or went.
    pub fn set_share(&mut self, partials: ByteCount, one_in: NonZeroU64) {
        self.settings.partials.set_total(partials);
        self.settings.one_in = one_in;
    }

    /// Returns the earliest time at which a session or the store wants to be called; `None` if none
    /// does.
    pub fn deadline(&self) -> Option<TimeNs> {
        let of_groups = self.deadlines.first().map(|(at, _)| *at);
        let of_job = [self.world.session.poll_timeout(), self.store.poll_timeout()];
        of_groups.into_iter().chain(of_job.into_iter().flatten()).min()
    }

    /// Calls those sessions of the job, and its store, whose deadlines have passed by `now`.
    pub fn handle_timeout(&mut self, now: TimeNs) {
        if self.store.poll_timeout().is_some_and(|deadline| deadline <= now) {
            self.store.handle_timeout(now);
        }
        let share = self.link_share();
        self.world.session.set_link_share(share);
        self.world.session.handle_timeout(now);
        let due = self.deadlines.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| *id);
        for id in due.collect::<Vec<_>>() {
            if let Some(group) = self.group_mut(id) {
                group.session.handle_timeout(now);
            }
        }
    }

    /// Stores the time at which the session of a group wants to be called next.
    fn note_deadline(&mut self, id: GroupId) {
        let group = self.groups.get_mut(&id).or_else(|| self.terms.parts.get_mut(&id));
        let Some(group) = group else { return };
        let deadline = group.session.poll_timeout();
        if group.deadline == deadline {
            return;
        }
        if let Some(before) = std::mem::replace(&mut group.deadline, deadline) {
            self.deadlines.remove(&(before, id));
        }
        self.deadlines.extend(deadline.map(|deadline| (deadline, id)));
    }

    /// Handles an event of a trainer's task. Requests of an attachment that another has replaced
    /// are ignored.
    pub fn handle_trainer_event(&mut self, event: LocalEvent, shared: &EngineShared, now: TimeNs) {
        match event {
            LocalEvent::Attach { rank, attachment, events, .. } => {
                self.log_attachment(rank, "attached", now);
                // The job's own session ends its epoch when the rank attaches again.
                if self.ranks.is_attached(rank) {
                    self.remove_lost_rank(rank, shared, now);
                }
                self.expect_rank_in_groups(rank, now);
                self.ranks.attach(self.current_world().id, rank, attachment, events);
                self.awaited_epoch.forget_rank(rank);
                self.stragglers.detection.handle_departure(rank);
                if self.current_world().id != self.world.id {
                    self.tell_world(rank);
                }
                self.for_each_world_of_rank(rank, |world, rank| {
                    world.session.handle_attach(rank, now);
                });
            }
            event @ (LocalEvent::Post { .. }
            | LocalEvent::Contribution { .. }
            | LocalEvent::Commit { .. }) => self.handle_collective_event(event, now),
            LocalEvent::MakeGroup { rank, attachment, number, parent, place, ranks, .. } => {
                if self.ranks.is_current_attachment(rank, attachment) {
                    let making = GroupMaking { rank, number, parent, place, ranks };
                    self.make_group(making, shared, now);
                }
            }
            LocalEvent::LeaveGroup { rank, attachment, number, .. } => {
                if self.ranks.is_current_attachment(rank, attachment) {
                    self.leave_group(rank, number, shared, now);
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
                    self.log_attachment(rank, "detached", now);
                    self.stragglers.detection.handle_departure(rank);
                    self.for_each_world_of_rank(rank, |world, rank| {
                        world.session.handle_detach(rank, now);
                    });
                    self.remove_lost_rank(rank, shared, now);
                }
            }
        }
    }

    /// Handles a post, bytes of its contribution, or a commit of a rank in the world or one of its
    /// groups; ignores other events.
    fn handle_collective_event(&mut self, event: LocalEvent, now: TimeNs) {
        match event {
            LocalEvent::Post {
                rank,
                attachment,
                number,
                post,
                contribution,
                result,
                transport,
                ..
            } => {
                let Some(id) = self.group_of_request(rank, attachment, number) else { return };
                let slots = FlightSlots { contribution: contribution.len(), result: result.len() };
                self.record_flight_post(id, rank, &post, slots, now);
                if id == self.world.id {
                    let (sequence, weight) = (post.sequence, post.weight);
                    self.stragglers.detection.handle_post(rank, sequence, weight, now);
                }
                let Some(group) = self.group_mut(id) else { return };
                let Some(rank) = group.rank_in_session(rank) else { return };
                group.buffers.add_slots(post.sequence, rank, contribution, result);
                group.session.handle_streamed_post(rank, *post, transport, now);
            }
            LocalEvent::Contribution {
                rank, attachment, number, sequence, missing_from, ..
            } => {
                let Some(id) = self.group_of_request(rank, attachment, number) else { return };
                let Some(group) = self.group_mut(id) else { return };
                if let Some(rank) = group.rank_in_session(rank) {
                    group.session.handle_contribution_bytes(rank, sequence, missing_from, now);
                }
            }
            LocalEvent::Commit { rank, attachment, number, commit, .. } => {
                let Some(id) = self.group_of_request(rank, attachment, number) else { return };
                let Some(group) = self.group_mut(id) else { return };
                if let Some(rank) = group.rank_in_session(rank) {
                    group.session.handle_commit(rank, commit, now);
                }
            }
            _ => {}
        }
    }

    /// Handles a control message of another gateway about the job's store or one of its groups;
    /// `None` if the group is gone.
    ///
    /// # Errors
    /// [`PeerError`]: end the group's epoch or close the connection; see
    /// [`PeerError::is_caused_by_ranks`].
    pub fn handle_message(
        &mut self,
        from: GatewayId,
        id: GroupId,
        message: Message,
        now: TimeNs,
    ) -> Option<Result<(), PeerError>> {
        let is_of_job = id == self.world.id;
        let message = match message {
            Message::Store(message) if is_of_job => {
                return Some(self.store.handle_message(from, *message, now).map_err(Into::into));
            }
            Message::Store(_) => {
                return Some(Err(StoreViolation("a message of a store about a group").into()));
            }
            message => message,
        };
        if is_of_job {
            if message == Message::Repeat {
                self.store.handle_connections(now);
            }
            self.stragglers.handle_message(from, &message, now);
        }
        Some(self.group_mut(id)?.handle_message(from, message, now))
    }

    /// Logs that a rank attached or detached, as `what` says, unless the log throttle suppresses
    /// the line.
    fn log_attachment(&mut self, rank: RankId, what: &str, now: TimeNs) {
        if let Some(suppressed) = self.attach_lines.permit(now) {
            let name = &self.name;
            info!(job = %name, rank = rank.0, "job {name}: rank {rank} {what}{suppressed}");
        }
    }
}
