//! The session itself: its parts, and the events of ranks, peers and the gateway's engine.

use super::action::{Action, ArrivalPlace, Discard, LeaseId, PeerError, PostTransport, TaskId};
use super::action_queue::ActionQueue;
use super::collective::check_post::check_post;
use super::collective::collectives::Collectives;
use super::collective::commits::{Commits, HandledCommit};
use super::collective::deadlines::{Deadlines, PROGRESS_REPORT_INTERVAL};
use super::collective::live_collective::LiveCollective;
use super::collective::overreach;
use super::context::Context;
use super::epoch::drain;
use super::epoch::epoch_state::EpochState;
use super::in_doubt::InDoubtCommits;
use super::in_doubt::commit_steps::NamedStep;
use super::in_doubt::epoch_end::late_commit_failure;
use super::session_config::SessionConfig;
use super::session_progress::SessionProgress;
use super::transfer::transfer_state::Transfer;
use crate::ids::{GatewayId, RankId, RegionId, Sequence};
use crate::mesh::MeshGraph;
use crate::mutant::{self, Mutant};
use crate::plan::Plan;
use crate::post::{Commit, Failure, FailureCode, Post, RankEvent};
use crate::session::transfer::send::send_receipt;
use crate::topology::{Fabric, LinkState};
use crate::wire::SegmentHeader;
use std::num::NonZeroU64;
use std::sync::Arc;
use units::{Span, TimeNs};

/// One job on one gateway: its ranks, epoch, collectives and commits.
///
/// It has four kinds of methods:
///
/// * Getters: [`Session::plan`], [`Session::status`], [`Session::is_drained`]. They change nothing.
/// * `handle_*`: an event happened. Ranks attach, post, commit and detach; connections between
///   gateways come and go; peers send messages; segments arrive; tasks and streams end; time passes.
///   Each may queue actions and move the timeout.
/// * [`Session::poll_action`]: the next action for the engine, in an order that it must keep where
///   actions name the same peer, task, lease or scratch.
/// * [`Session::poll_timeout`]: the time of the next [`Session::handle_timeout`].
///
/// After any `handle_*` the engine drains `poll_action` until `None`, then asks `poll_timeout`,
/// waits until that time or the next event, and calls `handle_timeout` or the event's method. A
/// wait that ends late does no harm, and neither does a `handle_timeout` that comes early.
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
    /// Commits of an epoch that ended, which the next one answers.
    pub(super) in_doubt: InDoubtCommits,
    pub(super) leaves_doubt: bool,
    /// Segments, grants, receipts, and the memory and windows that they use.
    pub(super) transfer: Transfer,
    /// Progress elsewhere, and the deadlines of collectives.
    pub(super) deadlines: Deadlines,
    /// Actions of all parts that the engine has not taken yet.
    pub(super) actions: ActionQueue,
}

impl Session {
    /// Creates a session outside any epoch, with no peer up and no rank attached.
    pub fn new(config: SessionConfig) -> Self {
        let (partials, one_in) = (config.partials.clone(), config.one_in);
        let leaves_doubt = config.leaves_doubt;
        let epoch = EpochState::new(config);
        Self {
            collectives: Collectives::new(epoch.local()),
            commits: Commits::new(epoch.local()),
            in_doubt: InDoubtCommits::default(),
            leaves_doubt,
            transfer: Transfer::new(partials),
            deadlines: Deadlines::new(one_in),
            actions: ActionQueue::default(),
            epoch,
        }
    }

    /// Returns the oldest action that the engine has not taken; `None` when all are taken.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop()
    }

    /// Returns the time at which the engine must call [`Session::handle_timeout`] next; `None`
    /// without a deadline.
    pub fn poll_timeout(&self) -> Option<TimeNs> {
        let deadline = |(sequence, c)| {
            let moved = self.last_move_for(sequence);
            self.deadlines.deadline_of(c, moved, &self.epoch)
        };
        let live = self.collectives.iter().filter_map(deadline);
        let of_commits = self.commits.next_expiry().into_iter().chain(self.in_doubt.next_expiry());
        let report = self.next_contribution_report();
        live.chain(of_commits).chain(self.drain_deadline()).chain(report).min()
    }

    /// Starts the session when the gateway is up. A gateway without peers begins its first epoch
    /// immediately.
    pub fn handle_start(&mut self, now: TimeNs) {
        self.open_epoch_if_all_joined(now);
    }

    /// Sets the session's share of a link, 1 / `one_in`, since other jobs or groups came or went.
    pub fn set_link_share(&mut self, one_in: NonZeroU64) {
        self.deadlines.set_share(one_in);
    }

    /// Ends the epoch, since the gateway shuts down at once: collectives under way fail everywhere.
    pub fn handle_shutdown(&mut self, now: TimeNs) {
        let text = format!("gateway {} is shutting down", self.epoch.local().own_name());
        self.end_epoch(Failure::new(FailureCode::ShuttingDown, text), None, now);
        self.fail_commits_in_doubt();
    }

    /// Ends the group for good, since its ranks do not agree on it or it cannot be made. Attached
    /// ranks are told, and collectives under way fail.
    pub fn handle_disband(&mut self, failure: &Failure, now: TimeNs) {
        self.epoch.begin_drain(now);
        self.end_epoch(failure.clone(), None, now);
        self.collectives.notify_disbanded(failure, &mut self.actions);
    }

    /// Notes that a peer has left the group and made it again, so that it is in no epoch, and tells
    /// it all that it may lack.
    pub fn handle_peer_made_again(&mut self, peer: GatewayId, now: TimeNs) {
        let name = self.epoch.local().gateway_name(peer);
        let text = format!("gateway {name} left the group and made it again");
        self.end_epoch(Failure::new(FailureCode::EpochEnded, text), None, now);
        self.epoch.members_mut().reset_peer(peer);
        self.repeat_epoch_to(peer);
    }

    /// Begins an orderly shutdown (drain) that takes at most `bound`. Collectives that all local
    /// ranks have posted, and commits that wait, are finished; then the epoch ends for good. New
    /// posts fail at once. Collectives that some local rank has not posted fail everywhere. The
    /// drain is over when [`Session::is_drained`]. A further call can only shorten the time.
    pub fn handle_drain(&mut self, bound: Span, now: TimeNs) {
        if !self.epoch.begin_drain(now + bound) {
            return;
        }
        if !self.epoch.is_active() {
            return self.fail_commits_in_doubt();
        }
        let from = self.collectives.oldest_unposted();
        self.epoch.announce_drain(from, &mut self.actions);
        self.close_epoch_collectives_from(self.epoch.me(), from, now);
    }

    /// Ends the epoch, since a peer's ranks caused `error`, as [`PeerError::is_caused_by_ranks`]
    /// says.
    pub fn handle_overreach(&mut self, from: GatewayId, error: &PeerError, now: TimeNs) {
        let oldest = self.collectives.oldest_unposted();
        let failure = overreach::peer_overreach_failure(self.epoch.local(), from, error, oldest);
        self.end_epoch(failure, None, now);
    }

    /// Reports the measured state of the link to region `to` to the first gateway, which makes
    /// plans. The engine calls this when rate, RTT or loss changed noticeably.
    pub fn handle_link(&mut self, to: RegionId, state: LinkState) {
        self.epoch.replan_by_link(to, state, &mut self.actions);
    }

    /// Handles the answer to [`Action::Plan`], `None` if no plan could be made. In an epoch the
    /// plan is taken up if it uses a link that has come back, or is faster over the links
    /// `reported`. Outside an epoch it is the plan of the next one.
    pub fn handle_planned(&mut self, reported: &Fabric, plan: Option<Plan>, now: TimeNs) {
        if !self.epoch.is_active() {
            self.epoch.keep_plan_after_cut(reported, plan);
            return self.open_epoch_if_all_joined(now);
        }
        if let Some(plan) = self.epoch.judge_replanned(reported, plan) {
            self.handle_plan(plan, now);
        }
    }

    /// Proposes a better plan than the one in force; only the first gateway calls this. The plan
    /// takes effect once every member holds back the collectives that it has not started. Segments
    /// keep their size.
    pub fn handle_plan(&mut self, plan: Plan, now: TimeNs) {
        let oldest = self.collectives.oldest_unposted();
        if let Some(switch) = self.epoch.propose_replanning(plan, oldest, &mut self.actions) {
            self.switch_epoch_plan(switch, now);
        }
    }

    /// Attaches a local rank and notifies it of the epoch. A rank that posted in this epoch before
    /// ends the epoch.
    pub fn handle_attach(&mut self, rank: RankId, now: TimeNs) {
        if self.collectives.local_rank(rank).is_none() {
            return;
        }
        self.in_doubt.forget_rank(self.epoch.local().fabric().rank_number(rank));
        if self.collectives.attach_rank(rank) {
            self.end_epoch_of_rank(rank, now);
        } else if self.epoch.is_active() {
            let committed = self.commits.committed().map(|committed| committed.step);
            let epoch = self.epoch.number();
            self.collectives.notify_rank_of_epoch(rank, epoch, committed, &mut self.actions);
        }
    }

    /// Detaches a rank whose socket closed, and drops its commits. Collectives that the rank posted
    /// go on, unless bytes of its contribution are still to come. Those that wait for its post fail
    /// if it posted anything in this epoch.
    pub fn handle_detach(&mut self, rank: RankId, now: TimeNs) {
        self.commits.drop_commits_of_rank(rank);
        self.in_doubt.forget_rank(self.epoch.local().fabric().rank_number(rank));
        for sequence in self.collectives.detach_rank(rank) {
            self.fail_collective_if_rank_lost(sequence, now);
        }
        for sequence in self.transfer.awaited_contributions_of(rank) {
            self.fail_collective_of_cut_contribution(sequence, rank, now);
        }
    }

    /// Detaches a rank of a group made at run time, whose process has ended whether or not the rank
    /// had made the group. All collectives that wait for its post fail, until another process of it
    /// is expected.
    pub fn handle_rank_loss(&mut self, rank: RankId, now: TimeNs) {
        self.collectives.lose_rank(rank);
        self.handle_detach(rank, now);
    }

    /// Expects a lost rank again, since another process of it may make the group. If the lost
    /// process posted in this epoch, the epoch ends.
    pub fn handle_rank_return(&mut self, rank: RankId, now: TimeNs) {
        if self.collectives.expect_rank(rank) {
            self.end_epoch_of_rank(rank, now);
        }
    }

    /// Ends the epoch, since another process of a rank takes the place of one that posted in it.
    fn end_epoch_of_rank(&mut self, rank: RankId, now: TimeNs) {
        let text = format!("{} attached again", self.epoch.local().rank_name(rank));
        self.end_epoch(Failure::new(FailureCode::EpochEnded, text), None, now);
    }

    /// Begins a collective of a rank whose contribution is here, or refuses it. Every outcome reaches
    /// the rank as a [`RankEvent`].
    pub fn handle_post(&mut self, rank: RankId, post: Post, now: TimeNs) {
        self.handle_streamed_post(rank, post, PostTransport::default(), now);
    }

    /// Begins a collective as [`Session::handle_post`] does, of a rank that may share no memory. Bytes
    /// of its contribution may still come: [`Session::handle_contribution_bytes`].
    pub fn handle_streamed_post(
        &mut self,
        rank: RankId,
        post: Post,
        transport: PostTransport,
        now: TimeNs,
    ) {
        let Some(local) = self.collectives.local_rank(rank) else { return };
        let sequence = post.sequence;
        if let Err(failure) = self.collectives.check_post_order(local, &post, &self.epoch) {
            let number = self.epoch.local().fabric().rank_number(rank);
            self.in_doubt.forget_results(number, post.epoch);
            return self.actions.notify(rank, RankEvent::Failed { sequence, failure });
        }
        if let Some(overreach) = self.collectives.rank_overreach(rank, sequence) {
            let local = self.epoch.local();
            let failure = overreach::rank_overreach_failure(local, rank, sequence, overreach);
            self.end_epoch(failure.clone(), None, now);
            return self.actions.notify(rank, RankEvent::Failed { sequence, failure });
        }
        let (collectives, mut cx) = self.collectives_and_context(now);
        if collectives.record_post(rank, &post, &mut cx).is_some() {
            return self.forget_collective_if_notified(sequence);
        }
        if let Some(failure) = self.epoch.drain_failure(sequence) {
            return self.fail_collective(sequence, failure, None, now);
        }
        if let Some(failure) = self.boundary_failure(sequence) {
            return self.fail_collective(sequence, failure, None, now);
        }
        if let Err(failure) = check_post(rank, &post, transport, self.epoch.local()) {
            return self.refuse_collective_posts(sequence, failure, now);
        }
        if transport != PostTransport::default() {
            self.transfer.note_post_transport(sequence, rank, transport, now);
        }
        let all = self.collectives.record_post_timeout(sequence, now + post.timeout);
        if self.agree_on_collective_descriptor(sequence, rank, post.descriptor, now)
            && self.agree_on_collective_counts(sequence, rank, now)
        {
            let (collectives, mut cx) = self.collectives_and_context(now);
            collectives.announce_post(sequence, rank, post.descriptor, all, &mut cx);
            self.fail_collective_if_rank_lost(sequence, now);
            self.start_collective_if_posted(sequence, now);
        }
    }

    /// Notes that the bytes of a rank's contribution before `missing_from` have come, or all if it is
    /// `None`. They are read from now on. A collective that has failed ignores them.
    pub fn handle_contribution_bytes(
        &mut self,
        rank: RankId,
        sequence: Sequence,
        missing_from: Option<u64>,
        now: TimeNs,
    ) {
        let (transfer, mut cx) = self.transfer_and_context(now);
        if transfer.handle_contribution_bytes(sequence, rank, missing_from, &mut cx) {
            self.report_progress_if_slow(now);
            self.settle_collective(sequence, now);
        }
    }

    /// Begins a rank's commit of all collectives that the rank posted since its previous commit.
    /// The answer reaches the rank as [`RankEvent::Committed`] or [`RankEvent::CommitFailed`]. Ends
    /// the epoch if another rank commits the same collectives as another step.
    pub fn handle_commit(&mut self, rank: RankId, commit: Commit, now: TimeNs) {
        let is_current = self.epoch.is_current(commit.epoch);
        if !is_current {
            return self.handle_late_commit(rank, commit, now);
        }
        let cx = &mut Context { epoch: &self.epoch, now, actions: &mut self.actions };
        match self.commits.handle_commit(rank, commit, &self.collectives, cx) {
            HandledCommit::Disagrees(failure) => self.end_epoch(failure, None, now),
            HandledCommit::Accepted => self.decide_boundary_after_commit(rank, now),
            HandledCommit::Refused if mutant::is_mutant_active(Mutant::EndRefused) => {
                self.decide_boundary_after_commit(rank, now);
            }
            // The step is begun again, and its next commit may be the boundary.
            HandledCommit::Refused => {}
        }
    }

    /// Answers a commit in an epoch that is over, unless it is in doubt whether the step is complete.
    fn handle_late_commit(&mut self, rank: RankId, commit: Commit, now: TimeNs) {
        if self.collectives.local_rank(rank).is_none() {
            return;
        }
        let failure = late_commit_failure(commit.step, commit.epoch, &self.epoch);
        let local = self.epoch.local();
        let named =
            (local.fabric().rank_number(rank), NamedStep::of_rank(rank, commit.step, local));
        if let Some(answer) = self.in_doubt.answer_late_commit(named, commit, failure, now) {
            self.actions.notify(rank, answer);
        }
    }

    /// Judges the header of an arriving segment. Returns the place for the segment's bytes, or the
    /// reason to discard them.
    ///
    /// # Errors
    /// [`PeerError`]: end the job's epoch or close the connection, as
    /// [`PeerError::is_caused_by_ranks`] says.
    pub fn handle_arrival(
        &mut self,
        from: GatewayId,
        header: &SegmentHeader,
    ) -> Result<ArrivalPlace, PeerError> {
        let key = header.key;
        let Some(plans) = self.epoch.plans().filter(|_| self.epoch.is_current(header.epoch)) else {
            return Ok(ArrivalPlace::Discard(Discard::Epoch));
        };
        let segment_max = plans.plan_of(key.sequence).plan.segment.get();
        if !self.epoch.may_have_tree(key.sequence, key.tree)
            || !self.epoch.members().contains(from)
            || u64::from(header.bytes) > segment_max
        {
            return Err(PeerError::NoSuchSegment { key, bytes: header.bytes });
        }
        let admitted = self.collectives.admits_message(header.epoch, key.sequence, &self.epoch)?;
        if !admitted && self.collectives.failures().contains_key(&key.sequence) {
            // A receipt could tell the sender that all has arrived before it hears of the failure.
            return Ok(ArrivalPlace::Discard(Discard::Failed));
        }
        if !admitted {
            send_receipt(from, key, &self.epoch, &mut self.actions);
            return Ok(ArrivalPlace::Discard(Discard::Duplicate));
        }
        let epoch = self.epoch.number();
        let collective = self.collectives.collective_or_new(key.sequence, epoch);
        if collective.failure.is_some() {
            return Ok(ArrivalPlace::Discard(Discard::Failed));
        }
        if collective.descriptor.is_some_and(|(_, d)| d.digest() != header.digest) {
            return Ok(ArrivalPlace::Discard(Discard::Disagreement));
        }
        self.transfer.receive_header(from, header, &self.epoch, &mut self.actions)
    }

    /// Ends a segment's stream and its lease; `whole` says whether all bytes arrived. A whole
    /// segment shows that its sender has posted, or that all gateways have. Then takes the
    /// collective on.
    pub fn handle_arrival_end(&mut self, lease: LeaseId, whole: bool, now: TimeNs) {
        let (transfer, mut cx) = self.transfer_and_context(now);
        let Some(end) = transfer.handle_received_stream_end(lease, whole, &mut cx) else { return };
        if let Some(landed) = end.landed {
            // The sender has posted; and so have all gateways, if this is a result of all ranks.
            let all = self.epoch.members().peer_ids().filter(|_| landed.of_all_ranks);
            let posted: Vec<GatewayId> = all.chain([landed.from]).collect();
            let (collectives, cx) = self.collectives_and_context(now);
            collectives.note_gateways_posted(end.sequence, posted, &cx);
        }
        self.report_progress_if_slow(now);
        self.settle_collective(end.sequence, now);
    }

    /// Notes that bytes of a long segment still arrive, which defers stall deadlines here and on
    /// peers. The engine calls this every [`PROGRESS_REPORT_INTERVAL`] while the segment arrives.
    pub fn handle_arrival_progress(&mut self, lease: LeaseId, now: TimeNs) {
        if self.transfer.note_stream_progress(lease, now) {
            self.report_progress(now);
        }
    }

    /// Continues the collective whose task, begun by [`Action::Reduce`] or [`Action::Copy`], has
    /// ended.
    pub fn handle_task_done(&mut self, task: TaskId, now: TimeNs) {
        let (transfer, mut cx) = self.transfer_and_context(now);
        let Some(sequence) = transfer.handle_task_done(task, &mut cx) else { return };
        self.report_progress_if_slow(now);
        self.settle_collective(sequence, now);
    }

    /// Notes that all streams of a collective have stopped, as [`Action::Cancel`] asked.
    pub fn handle_streams_cancelled(&mut self, sequence: Sequence, now: TimeNs) {
        self.transfer.handle_streams_cancelled(sequence);
        if !mutant::is_mutant_active(Mutant::WakeNobody) {
            self.settle_collective(sequence, now);
        }
    }

    /// Notes that this gateway did not run until `now`: it was stopped, or other programs had its
    /// processors. What peers sent meanwhile is still to be handled, so no stall is counted from before.
    pub fn handle_scheduling_delay(&mut self, now: TimeNs) {
        self.deadlines.note_scheduling_delay(now);
    }

    /// Notes how long a peer has acknowledged nothing, zero if it is heard. The error of a stall names a
    /// peer that is silent. The engine calls this before [`Session::handle_timeout`].
    pub fn note_peer_silence(&mut self, peer: GatewayId, silence: Span) {
        self.deadlines.note_silence(peer, silence);
    }

    /// Ends the epoch when a drain is finished or its time is over. Otherwise fails commits and
    /// collectives past their deadline. A late collective with a ready result ends the epoch
    /// instead.
    pub fn handle_timeout(&mut self, now: TimeNs) {
        if self.drain_deadline().is_some_and(|at| now >= at) {
            let unfinished = self.collectives.unfinished().count();
            let failure = drain::drain_end_failure(self.epoch.local().own_name(), unfinished);
            return self.end_epoch(failure, None, now);
        }
        if self.next_contribution_report().is_some_and(|at| now >= at) {
            self.report_progress(now);
        }
        let cx = &mut Context { epoch: &self.epoch, now, actions: &mut self.actions };
        self.commits.fail_expired(cx);
        let expired = self.in_doubt.fail_expired(now);
        self.notify_of_commits_in_doubt(expired);
        let late = |(sequence, c): &(Sequence, &LiveCollective)| {
            let moved = self.last_move_for(*sequence);
            self.deadlines.deadline_of(c, moved, &self.epoch).is_some_and(|at| now >= at)
        };
        let late: Vec<Sequence> = self.collectives.iter().filter(late).map(|(s, _)| s).collect();
        for sequence in late {
            self.handle_late_collective(sequence, now);
        }
    }

    /// Returns when peers are told again that bytes of a local contribution came, while others are missing.
    fn next_contribution_report(&self) -> Option<TimeNs> {
        let due = |(sequence, collective): (Sequence, &LiveCollective)| {
            let (posted, deadlines) = (collective.all_posted_at?, &self.deadlines);
            let awaited = self.transfer.contribution_awaited_since(sequence)?;
            deadlines.deadline_of(collective, awaited, &self.epoch)?;
            deadlines.repeated_report(posted.max(awaited), &self.epoch)
        };
        self.collectives.iter().filter_map(due).min()
    }

    /// Returns the time from which a collective counts as stalled: that of the last progress anywhere,
    /// or while it awaits bytes of a local contribution, that of the last of these bytes.
    fn last_move_for(&self, sequence: Sequence) -> TimeNs {
        let awaited = self.transfer.contribution_awaited_since(sequence);
        awaited.unwrap_or_else(|| self.deadlines.last_progress(self.transfer.last_progress()))
    }

    /// Reports progress to all peers if something moved just now and the oldest collective is
    /// slower than [`PROGRESS_REPORT_INTERVAL`]. So peers that wait for this gateway do not take it
    /// for stalled.
    pub(super) fn report_progress_if_slow(&mut self, now: TimeNs) {
        let oldest = self.collectives.iter().find_map(|(_, collective)| collective.all_posted_at);
        let is_slow = oldest.is_some_and(|since| now >= since + PROGRESS_REPORT_INTERVAL);
        if self.transfer.last_progress() == now && is_slow {
            self.report_progress(now);
        }
    }

    /// Sends a progress report to all peers, at most once per interval.
    fn report_progress(&mut self, now: TimeNs) {
        let cx = &mut Context { epoch: &self.epoch, now, actions: &mut self.actions };
        self.deadlines.report_progress(cx);
    }

    /// Borrows the collectives, and the `Context` that their methods take at time `now`.
    pub(super) fn collectives_and_context(
        &mut self,
        now: TimeNs,
    ) -> (&mut Collectives, Context<'_>) {
        let cx = Context { epoch: &self.epoch, now, actions: &mut self.actions };
        (&mut self.collectives, cx)
    }

    /// Borrows the transfer, and the `Context` that its methods take at time `now`.
    pub(super) fn transfer_and_context(&mut self, now: TimeNs) -> (&mut Transfer, Context<'_>) {
        let cx = Context { epoch: &self.epoch, now, actions: &mut self.actions };
        (&mut self.transfer, cx)
    }

    /// Borrows the commits, and the `Context` that their methods take at time `now`.
    pub(super) fn commits_and_context(&mut self, now: TimeNs) -> (&mut Commits, Context<'_>) {
        let cx = Context { epoch: &self.epoch, now, actions: &mut self.actions };
        (&mut self.commits, cx)
    }

    /// Enters no epoch from now on, until the session takes over again. The epoch under way ends with
    /// `failure`.
    pub fn handle_suspend(&mut self, failure: Failure, now: TimeNs) {
        self.epoch.suspend();
        self.end_epoch(failure, None, now);
    }

    /// Enters no epoch, since the job has begun with no world yet.
    pub fn suspend_before_start(&mut self) {
        self.epoch.suspend();
    }

    /// Removes and returns the commits of an epoch that ended, which the next one answers.
    pub fn take_commits_in_doubt(&mut self) -> InDoubtCommits {
        std::mem::take(&mut self.in_doubt)
    }

    /// Replaces the fabric of a suspended session by one with other rates, round trips or losses, and its
    /// plan by one for that fabric. Segments keep their size, as memory is divided by it.
    pub fn replace_fabric(&mut self, fabric: Arc<Fabric>, plan: Plan) {
        self.epoch.replace_fabric(fabric, plan);
    }

    /// Takes over in the term of this number, 0 where there are none, from the session that has come so
    /// far, over the connections that are up. All gateways of the session repeat their messages, since earlier ones may have met nobody.
    pub fn handle_resume(
        &mut self,
        term: u64,
        progress: SessionProgress,
        in_doubt: InDoubtCommits,
        graph: &Arc<MeshGraph>,
        now: TimeNs,
    ) {
        let SessionProgress { epoch, next, committed, prepared, ended } = progress;
        self.epoch.resume(term, epoch, ended);
        self.collectives.raise_next_sequence(next);
        self.commits.raise_progress(committed, prepared);
        self.in_doubt = in_doubt;
        self.handle_connections_before_start(graph, now);
    }
}
