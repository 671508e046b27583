//! The session itself: its parts, and the events of ranks, peers and the shell.

use super::action::{Action, Arrival, Discard, LeaseId, PeerError, TaskId};
use super::action_queue::ActionQueue;
use super::collective::commits::Commits;
use super::collective::deadline::{self, Deadlines, MOVING_EVERY};
use super::collective::state::{Collective, Phase};
use super::collective::table::Collectives;
use super::collective::{overreach, posts};
use super::context::Context;
use super::epoch::drain;
use super::epoch::state::EpochState;
use super::local_gateway::LocalGateway;
use super::transfer::state::{Transfer, send_receipt};
use crate::ids::{BootId, GatewayId, RankId, RegionId, Sequence};
use crate::mutant::{self, Mutant};
use crate::plan::Plan;
use crate::post::{Commit, Failure, FailureCode, Post, RankEvent};
use crate::topology::{Fabric, LinkState};
use crate::wire::{Message, SegmentHeader};
use std::num::NonZeroU64;
use std::sync::Arc;
use units::{ByteCount, Span, TimeNs};

/// The facts that a session is created with.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// The deployment.
    pub fabric: Arc<Fabric>,
    /// This gateway.
    pub me: GatewayId,
    /// A random number drawn at this start.
    pub boot: BootId,
    /// The plan of the epochs that this gateway opens, if it is the first by name.
    pub plan: Plan,
    /// Memory for partials of several local ranks; at least one segment is always used.
    pub partials: ByteCount,
    /// The job's share of a link while all jobs use it is 1 / `one_in`, rounded up.
    pub one_in: NonZeroU64,
}

/// One group on one gateway.
///
/// It has four kinds of methods:
///
/// * Getters: [`Session::plan`], [`Session::status`], [`Session::is_drained`]. They change nothing.
/// * `handle_*`: an event happened. Ranks attach, post, commit and detach; peers come up, go down
///   and send messages; segments arrive; tasks and streams end; time passes. Each may queue
///   actions and move the timeout.
/// * [`Session::poll_action`]: the next action for the shell, in an order that it must keep where
///   actions name the same peer, task, lease or scratch.
/// * [`Session::poll_timeout`]: the time of the next [`Session::handle_timeout`].
///
/// After any `handle_*` the shell drains `poll_action` until `None`, then asks `poll_timeout`, waits
/// until that time or the next event, and calls `handle_timeout` or the event's method. A wait that
/// ends late does no harm, and neither does a `handle_timeout` that comes early.
///
/// Times are those of one monotonic clock of the gateway: `now` never decreases from call to call.
#[derive(Debug)]
pub struct Session {
    /// Members, plan in force, links, drain.
    pub(super) epoch: EpochState,
    /// Posts and outcomes of collectives.
    pub(super) collectives: Collectives,
    /// Steps that ranks commit.
    pub(super) commits: Commits,
    /// Segments, grants, receipts, and the memory and windows that they use.
    pub(super) transfer: Transfer,
    /// Progress elsewhere, and the deadlines of collectives.
    pub(super) deadlines: Deadlines,
    /// Actions of all parts that the shell has not taken yet.
    pub(super) actions: ActionQueue,
}

impl Session {
    /// A session outside any epoch, with no peer up and no rank attached.
    pub fn new(config: SessionConfig) -> Self {
        let SessionConfig { fabric, me, boot, plan, partials, one_in } = config;
        let local = LocalGateway::new(fabric, me);
        Self {
            collectives: Collectives::new(&local),
            commits: Commits::new(&local),
            transfer: Transfer::new(partials),
            deadlines: Deadlines::new(one_in),
            actions: ActionQueue::default(),
            epoch: EpochState::new(local, boot, plan),
        }
    }

    /// The plan in force, while the epoch lives.
    pub fn plan(&self) -> Option<&Plan> {
        self.epoch.plan()
    }

    /// Whether nothing is left to do after [`Session::handle_drain`], so that the process may end.
    pub fn is_drained(&self) -> bool {
        let draining = self.epoch.draining().is_some();
        draining && !self.epoch.is_active() && self.collectives.is_empty()
    }

    /// The next action for the shell.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop()
    }

    /// The time of the next [`Session::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<TimeNs> {
        let moved = self.transfer.moved();
        let deadline = |(_, c)| self.deadlines.of(c, moved, &self.epoch);
        let live = self.collectives.iter().filter_map(deadline);
        live.chain(self.commits.expiry()).chain(self.drain_deadline()).min()
    }

    /// The gateway is up. Alone in its fabric, it waits for nobody.
    pub fn handle_start(&mut self, now: TimeNs) {
        self.open_epoch_if_all_joined(now);
    }

    /// A neighbour can be reached, since its first lane is up, and with it the peers behind it. The
    /// next epoch begins once all are up.
    pub fn handle_peer_up(&mut self, peer: GatewayId, now: TimeNs) {
        self.epoch.members_mut().mark_up(peer);
        self.epoch.members().ask_to_repeat(peer, &mut self.actions);
        self.request_entry();
        self.open_epoch_if_all_joined(now);
    }

    /// A neighbour cannot be reached any more, since its last lane is lost, nor can the peers
    /// behind it.
    pub fn handle_peer_down(&mut self, peer: GatewayId, why: &str, now: TimeNs) {
        if !self.epoch.members_mut().mark_down(peer) {
            return;
        }
        let text = format!(
            "gateway {} cannot be reached ({why}); contributions intact, the gateways go on \
             trying and the next epoch begins when it is back",
            self.epoch.local().gateway_name(peer)
        );
        self.end_epoch(Failure::new(FailureCode::RegionLost, text), Some(peer), now);
        self.epoch.members_mut().forget(peer);
    }

    /// A lane to a neighbour that carried messages of either side was lost while others live.
    /// Repeats everything that it may have lost: facts only grow, so repeating them is harmless.
    pub fn handle_lane_lost(&mut self, peer: GatewayId) {
        for id in self.epoch.members().through(peer) {
            self.repeat_to(id);
        }
        self.epoch.members().ask_to_repeat(peer, &mut self.actions);
        if self.epoch.members().is_partial() {
            // The lane may have lost a Repeat as well.
            self.actions.message(peer, Message::Repeat);
        }
    }

    /// The gateway shuts down at once: collectives under way fail everywhere.
    pub fn handle_shutdown(&mut self, now: TimeNs) {
        let text = format!("gateway {} is shutting down", self.epoch.local().own_name());
        self.end_epoch(Failure::new(FailureCode::ShuttingDown, text), None, now);
    }

    /// The gateway shuts down in order. It finishes the collectives that all local ranks have
    /// posted and the commits that wait, within `bound`, and leaves the epoch for good. New posts
    /// fail at once; those that no rank of this gateway has posted fail everywhere. The drain is
    /// done when [`Session::is_drained`].
    pub fn handle_drain(&mut self, bound: Span, now: TimeNs) {
        if !self.epoch.drain(now + bound) || !self.epoch.is_active() {
            return;
        }
        let from = self.collectives.oldest();
        self.epoch.tell_drain(from, &mut self.actions);
        self.close(self.epoch.me(), from, now);
    }

    /// A peer's ranks went too far, as [`PeerError::is_of_ranks`] says.
    pub fn handle_overreach(&mut self, from: GatewayId, error: &PeerError, now: TimeNs) {
        let oldest = self.collectives.oldest();
        let failure = overreach::of_peer(self.epoch.local(), from, error, oldest);
        self.end_epoch(failure, None, now);
    }

    /// The link to another region was measured. Call it when the state changed noticeably.
    pub fn handle_link(&mut self, to: RegionId, state: LinkState) {
        self.epoch.handle_link(to, state, &mut self.actions);
    }

    /// The answer to [`Action::Plan`]: `None` if there is no plan. The plan is taken up if it is
    /// faster than the one in force, over links as they were `reported`.
    pub fn handle_planned(&mut self, reported: &Fabric, plan: Option<Plan>, now: TimeNs) {
        if let Some(plan) = self.epoch.judge_plan(reported, plan) {
            self.handle_plan(plan, now);
        }
    }

    /// Proposes a better plan than the one in force; only the first gateway calls this. The plan takes
    /// effect once every member holds back the collectives that it has not started. Segments keep
    /// their size.
    pub fn handle_plan(&mut self, plan: Plan, now: TimeNs) {
        let oldest = self.collectives.oldest();
        if let Some(switch) = self.epoch.propose_plan(plan, oldest, &mut self.actions) {
            self.switch_plan(switch, now);
        }
    }

    /// A rank attached.
    pub fn handle_attach(&mut self, rank: RankId, now: TimeNs) {
        if self.collectives.rank(rank).is_none() {
            return;
        }
        if self.collectives.attach(rank) {
            let text = format!("{} attached again", self.epoch.local().rank_name(rank));
            self.end_epoch(Failure::new(FailureCode::EpochEnded, text), None, now);
        } else if self.epoch.is_active() {
            let committed = self.commits.committed().map(|committed| committed.step);
            let epoch = self.epoch.number();
            self.collectives.notify_rank_of_epoch(rank, epoch, committed, &mut self.actions);
        }
    }

    /// A rank's socket closed. Collectives that it posted go on; those that wait for it fail.
    pub fn handle_detach(&mut self, rank: RankId, now: TimeNs) {
        self.commits.detach(rank);
        for sequence in self.collectives.detach(rank) {
            self.fail_if_rank_lost(sequence, now);
        }
    }

    /// A rank posted. Every outcome reaches the rank as a [`RankEvent`].
    pub fn handle_post(&mut self, rank: RankId, post: Post, now: TimeNs) {
        let Some(local) = self.collectives.rank(rank) else { return };
        let sequence = post.sequence;
        if let Err(failure) = self.collectives.check_order(local, &post, &self.epoch) {
            return self.actions.notify(rank, RankEvent::Failed { sequence, failure });
        }
        let oldest = self.collectives.oldest();
        if let Some(failure) = overreach::of_rank(self.epoch.local(), rank, sequence, oldest) {
            self.end_epoch(failure.clone(), None, now);
            return self.actions.notify(rank, RankEvent::Failed { sequence, failure });
        }
        let (collectives, mut cx) = self.collectives_at(now);
        if collectives.record_post(rank, &post, &mut cx).is_some() {
            return self.forget_if_notified(sequence);
        }
        if let Some(failure) = self.refusal_of(rank, &post) {
            return self.fail(sequence, failure, None, now);
        }
        let all = self.collectives.extend_expiry(sequence, now + post.timeout);
        if self.agree(sequence, rank, post.descriptor, now) {
            let (collectives, mut cx) = self.collectives_at(now);
            collectives.announce(sequence, rank, post.descriptor, all, &mut cx);
            self.fail_if_rank_lost(sequence, now);
            self.start_if_posted(sequence, now);
        }
    }

    /// The failure that a post causes by itself, for all ranks.
    fn refusal_of(&self, rank: RankId, post: &Post) -> Option<Failure> {
        if let Some(failure) = self.epoch.closed_for(post.sequence) {
            return Some(failure);
        }
        let local = self.epoch.local();
        let text = posts::check(post, local.fabric().world_size()).err()?;
        let text = format!("{}: {text}", local.rank_name(rank));
        Some(Failure::new(FailureCode::BadPost, text))
    }

    /// A rank asks to hear when all that it posted since its last commit is complete in every
    /// region. The outcome reaches it as [`RankEvent::Committed`] or [`RankEvent::CommitFailed`].
    pub fn handle_commit(&mut self, rank: RankId, commit: Commit, now: TimeNs) {
        let cx = &mut Context { epoch: &self.epoch, now, actions: &mut self.actions };
        self.commits.handle_commit(rank, commit, &self.collectives, cx);
    }

    /// A segment's header arrived. Returns the place for its bytes.
    ///
    /// # Errors
    /// [`PeerError`]: end the job's epoch, or close the connection; see [`PeerError::is_of_ranks`].
    pub fn handle_arrival(
        &mut self,
        from: GatewayId,
        header: &SegmentHeader,
    ) -> Result<Arrival, PeerError> {
        let key = header.key;
        let Some(plans) = self.epoch.plans().filter(|_| self.epoch.is_current(header.epoch)) else {
            return Ok(Arrival::Discard(Discard::Epoch));
        };
        let segment_max = plans.plan_of(key.sequence).0.segment.get();
        if !self.epoch.may_have(key.sequence, key.tree)
            || !self.epoch.members().contains(from)
            || u64::from(header.bytes) > segment_max
        {
            return Err(PeerError::NoSuchSegment { key, bytes: header.bytes });
        }
        let admitted = self.collectives.admits(header.epoch, key.sequence, &self.epoch)?;
        if !admitted {
            send_receipt(from, key, &self.epoch, &mut self.actions);
            return Ok(Arrival::Discard(Discard::Duplicate));
        }
        let epoch = self.epoch.number();
        let collective = self.collectives.entry(key.sequence, epoch);
        if collective.failure.is_some() {
            return Ok(Arrival::Discard(Discard::Failed));
        }
        if collective.descriptor.is_some_and(|(_, d)| d.digest() != header.digest) {
            return Ok(Arrival::Discard(Discard::Disagreement));
        }
        self.transfer.handle_header(from, header, &self.epoch, &mut self.actions)
    }

    /// A stream ended: whole, or cut off.
    pub fn handle_arrival_end(&mut self, lease: LeaseId, whole: bool, now: TimeNs) {
        let (transfer, mut cx) = self.transfer_at(now);
        let Some(end) = transfer.handle_stream_end(lease, whole, &mut cx) else { return };
        if let Some(landed) = end.landed {
            // Its sender has posted; and so has everybody, if this is a result of all.
            let all = self.epoch.members().ids().filter(|_| landed.of_all_ranks);
            let posted: Vec<GatewayId> = all.chain([landed.from]).collect();
            let (collectives, cx) = self.collectives_at(now);
            collectives.note_posted(end.sequence, posted, &cx);
        }
        self.report_progress_if_slow(now);
        self.settle(end.sequence, now);
    }

    /// Bytes of a segment have arrived, [`MOVING_EVERY`] after it began or after the last report.
    /// On a link that became slow a segment may take longer than the stall deadline, here and
    /// wherever its bytes are awaited.
    pub fn handle_moving(&mut self, lease: LeaseId, now: TimeNs) {
        if self.transfer.note_moving(lease, now) {
            self.report_progress(now);
        }
    }

    /// A reduction or copy is done.
    pub fn handle_task_done(&mut self, task: TaskId, now: TimeNs) {
        let (transfer, mut cx) = self.transfer_at(now);
        let Some(sequence) = transfer.handle_task_done(task, &mut cx) else { return };
        self.report_progress_if_slow(now);
        self.settle(sequence, now);
    }

    /// The streams of a collective have stopped, as [`Action::Cancel`] asked.
    pub fn handle_cancelled(&mut self, sequence: Sequence, now: TimeNs) {
        self.transfer.handle_cancelled(sequence);
        if !mutant::is(Mutant::WakeNobody) {
            self.settle(sequence, now);
        }
    }

    /// Time passed: fails collectives and commits whose deadline is over, and ends a drain.
    pub fn handle_timeout(&mut self, now: TimeNs) {
        if self.drain_deadline().is_some_and(|at| now >= at) {
            let unfinished = self.collectives.unfinished().count();
            let failure = drain::end_of_drain(self.epoch.local().own_name(), unfinished);
            return self.end_epoch(failure, None, now);
        }
        let cx = &mut Context { epoch: &self.epoch, now, actions: &mut self.actions };
        self.commits.expire(cx);
        let moved = self.transfer.moved();
        let late = |(_, c): &(Sequence, &Collective)| {
            self.deadlines.of(c, moved, &self.epoch).is_some_and(|at| now >= at)
        };
        let late: Vec<Sequence> = self.collectives.iter().filter(late).map(|(s, _)| s).collect();
        for sequence in late {
            self.handle_late(sequence, now);
        }
    }

    /// A collective's deadline is over.
    fn handle_late(&mut self, sequence: Sequence, now: TimeNs) {
        let Some(collective) = self.collectives.get(sequence) else { return };
        let (epoch, phase) = (&self.epoch, collective.phase);
        let failure = if collective.complete.is_none() {
            let here = self.collectives.awaited_ranks(collective).into_iter();
            let ranks = here.chain(self.collectives.awaited_elsewhere(collective, epoch));
            let names: Vec<String> = ranks.map(|rank| epoch.local().rank_name(rank)).collect();
            deadline::expiry_failure(sequence, collective, &names)
        } else {
            let peers = epoch.members().ids();
            let missing = self.transfer.missing_from(peers, sequence, epoch.local());
            self.deadlines.stall_failure(sequence, collective, &missing, epoch)
        };
        match phase {
            Phase::Waiting | Phase::Running => self.fail(sequence, failure, None, now),
            // The result is here, so it cannot fail here any more.
            Phase::Ready => self.end_epoch(failure, None, now),
            Phase::Leaving | Phase::Failing | Phase::Failed => {}
        }
    }

    /// The time at which a drain ends: at once when everything is finished, else with its bound.
    fn drain_deadline(&self) -> Option<TimeNs> {
        let until = self.epoch.draining().filter(|_| self.epoch.is_active())?;
        let owes = |(rank, posts)| self.commits.owes(rank, posts, &self.collectives);
        let done = self.collectives.unfinished().next().is_none()
            && self.commits.is_idle()
            && !self.collectives.ranks().any(owes);
        Some(if done { TimeNs::default() } else { until })
    }

    /// Tells all peers that something moves here, if it just did and the oldest collective has taken
    /// longer than `MOVING_EVERY`. So peers do not take their wait for a stall.
    pub(super) fn report_progress_if_slow(&mut self, now: TimeNs) {
        let oldest = self.collectives.iter().find_map(|(_, collective)| collective.complete);
        let is_slow = oldest.is_some_and(|complete| now >= complete + MOVING_EVERY);
        if self.transfer.moved() == now && is_slow {
            self.report_progress(now);
        }
    }

    fn report_progress(&mut self, now: TimeNs) {
        let cx = &mut Context { epoch: &self.epoch, now, actions: &mut self.actions };
        self.deadlines.report(cx);
    }

    /// The collectives, with the `Context` that their methods take.
    pub(super) fn collectives_at(&mut self, now: TimeNs) -> (&mut Collectives, Context<'_>) {
        let cx = Context { epoch: &self.epoch, now, actions: &mut self.actions };
        (&mut self.collectives, cx)
    }

    /// The transfer, with the `Context` that its methods take.
    pub(super) fn transfer_at(&mut self, now: TimeNs) -> (&mut Transfer, Context<'_>) {
        let cx = Context { epoch: &self.epoch, now, actions: &mut self.actions };
        (&mut self.transfer, cx)
    }

    /// The commits, with the `Context` that their methods take.
    pub(super) fn commits_at(&mut self, now: TimeNs) -> (&mut Commits, Context<'_>) {
        let cx = Context { epoch: &self.epoch, now, actions: &mut self.actions };
        (&mut self.commits, cx)
    }
}
