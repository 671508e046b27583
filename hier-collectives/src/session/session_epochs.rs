//! Epochs begin and end, plans change, peers are brought up to date: changes of the session that concern
//! several of its parts.

use super::action::{Action, SessionNote};
use super::collective::live_collective::Phase;
use super::context::Context;
use super::epoch::epoch_boundary::EpochBoundary;
use super::epoch::epoch_membership::{EpochStart, FIRST_GATEWAY, RouteChange};
use super::epoch::plan_schedule::PlanSwitch;
use super::in_doubt::InDoubtCommits;
use super::in_doubt::epoch_end::take_commits_in_doubt;
use super::session_events::Session;
use crate::ids::{GatewayId, RankId, Sequence};
use crate::post::{Failure, RankEvent};
use crate::wire::Message;
use units::TimeNs;

/// Epochs.
impl Session {
    /// Asks the first gateway for the next epoch (Join) if all peers can be reached now.
    pub(super) fn request_epoch_entry(&mut self) {
        let (next, committed) = (self.collectives.next_sequence(), self.commits.committed());
        self.epoch.request_entry(next, committed, self.commits.prepared(), &mut self.actions);
    }

    /// Begins the next epoch, on the first gateway, once all peers have asked for it and there is a
    /// plan for the links that are up.
    pub(super) fn open_epoch_if_all_joined(&mut self, now: TimeNs) {
        let (next, committed) = (self.collectives.next_sequence(), self.commits.committed());
        let prepared = self.commits.prepared();
        let start = self.epoch.next_epoch_start(next, committed, prepared, &mut self.actions);
        if let Some(start) = start {
            self.enter_epoch(start, now);
        }
    }

    /// Enters an epoch: resets commits, collectives and transfer, and notifies peers and attached
    /// ranks.
    pub(super) fn enter_epoch(&mut self, start: EpochStart, now: TimeNs) {
        let (epoch, next) = (start.epoch, start.next);
        self.commits.begin_epoch(self.epoch.id_of(epoch), &start);
        self.collectives.begin_epoch(next);
        self.transfer.begin_epoch(now);
        let committed = self.commits.committed();
        self.epoch.enter_epoch(start, committed, &mut self.actions);
        let step = committed.map(|committed| committed.step);
        let ended = self.epoch.last_end_failure();
        self.collectives.notify_epoch(epoch, step, ended, &mut self.actions);
        // A connection may have been lost since the first gateway made the plan.
        self.end_epoch_if_connections_cut(&RouteChange::default(), "the new plan needs it", now);
        self.decide_commits_in_doubt();
    }

    /// Leaves the epoch under way: its collectives without a result fail, contributions intact.
    /// Sends End to all ready peers except the one that the failure came from. Does nothing outside
    /// an epoch.
    pub(super) fn end_epoch(&mut self, failure: Failure, except: Option<GatewayId>, now: TimeNs) {
        if !self.epoch.is_active() {
            return;
        }
        let epoch = self.epoch.number();
        self.epoch.announce_end(&failure, except, &mut self.actions);
        self.doubt_commits_at_end(&failure, now);
        self.epoch.leave_epoch();
        self.commits.end_epoch();
        self.transfer.end_epoch();
        for sequence in self.collectives.sequences() {
            self.end_collective_with_epoch(sequence, &failure, now);
        }
        self.collectives.end_epoch();
        self.epoch.keep_end_failure(failure.clone());
        self.actions.push(Action::Note(SessionNote::EpochEnded { epoch, failure }));
        self.request_epoch_entry();
        self.open_epoch_if_all_joined(now);
    }

    /// Fails the commits that wait, since the epoch ends, or leaves them in doubt. An epoch without
    /// results leaves those in doubt that were so before.
    fn doubt_commits_at_end(&mut self, failure: &Failure, now: TimeNs) {
        let is_draining = self.epoch.drain_end().is_some();
        let leaves_doubt = self.leaves_doubt && !is_draining && !failure.code.is_fault_of_posts();
        let has_results = self.commits.has_results();
        self.commits.record_prepared(&self.collectives, &self.epoch);
        let (commits, collectives) = (&mut self.commits, &self.collectives);
        let in_doubt = match leaves_doubt {
            true => take_commits_in_doubt(commits, failure, collectives, &self.epoch),
            false => InDoubtCommits::of_epoch(self.epoch.id()),
        };
        let cx = &mut Context { epoch: &self.epoch, now, actions: &mut self.actions };
        self.commits.fail_all(failure, cx);
        if has_results || is_draining {
            self.fail_commits_in_doubt();
            self.in_doubt = in_doubt;
        }
    }

    /// Answers the commits in doubt once all gateways are in the epoch that has begun: from then on
    /// every quorum knows with which step it began.
    pub(super) fn decide_commits_in_doubt(&mut self) {
        let (number, members) = (self.epoch.number(), self.epoch.members());
        let is_ready = |peer| members.sent_ready(peer, number);
        if self.epoch.is_active() && members.peer_ids().all(is_ready) {
            let answers = self.in_doubt.decide(self.commits.begun_with());
            self.notify_of_commits_in_doubt(answers);
        }
    }

    /// Fails all commits in doubt: no next epoch answers them here.
    pub(super) fn fail_commits_in_doubt(&mut self) {
        let answers = self.in_doubt.fail_all();
        self.notify_of_commits_in_doubt(answers);
    }

    /// Answers commits of ranks, by their numbers in the job.
    pub(super) fn notify_of_commits_in_doubt(&mut self, answers: Vec<(RankId, RankEvent)>) {
        for (number, answer) in answers {
            if let Some(rank) = self.epoch.local().fabric().rank_numbered(number) {
                self.actions.notify(rank, answer);
            }
        }
    }

    /// Ends one collective because its epoch ends. A ready result stays valid: only its receipts
    /// are missing, and none will come.
    fn end_collective_with_epoch(&mut self, sequence: Sequence, failure: &Failure, now: TimeNs) {
        match self.collectives.get(sequence).map(|collective| collective.phase) {
            Some(Phase::Ready) => {
                self.transfer.cancel_streams(sequence, &mut self.actions);
                self.transfer.set_abandoned(sequence);
                self.collectives.mark_leaving(sequence);
                self.settle_collective(sequence, now);
            }
            Some(Phase::Failed) => self.forget_collective_if_notified(sequence),
            Some(Phase::Leaving) | None => {}
            Some(Phase::Waiting | Phase::Running | Phase::Failing) => {
                let failure = self.collectives.proposed_failure_at_end(sequence, failure);
                self.fail_collective(sequence, failure, None, now);
            }
        }
    }

    /// Comes to a boundary, since a region leaves or joins: collectives from there on fail with
    /// `failure`, those before finish, and [`Session::is_at_boundary`] says when they have. The first
    /// gateway decides it. Does nothing outside an epoch.
    pub fn handle_boundary_request(&mut self, failure: Failure, now: TimeNs) {
        if !self.epoch.keep_boundary_request(failure) {
            return;
        }
        let is_anybody_there = self.collectives.local_ranks().any(|(_, rank)| rank.attached);
        if !(self.commits.has_steps() && is_anybody_there) {
            self.decide_boundary(self.collectives.oldest_unposted(), false, now);
        }
    }

    /// Decides the boundary if one is asked for: behind the collectives that a rank here has committed
    /// just now. No collective behind them is carried out anywhere, as the rank has not posted it.
    pub(super) fn decide_boundary_after_commit(&mut self, rank: RankId, now: TimeNs) {
        if let Some(posts) = self.collectives.local_rank(rank) {
            self.decide_boundary(posts.next, true, now);
        }
    }

    /// Decides the boundary here, if one is asked for.
    fn decide_boundary(&mut self, from: Sequence, ends_step: bool, now: TimeNs) {
        if let Some(failure) = self.epoch.boundary_request().cloned() {
            self.set_boundary(EpochBoundary { from, ends_step, failure }, now);
        }
    }

    /// Sets the boundary of the epoch, unless it has one, and fails what lies behind it.
    pub(super) fn set_boundary(&mut self, boundary: EpochBoundary, now: TimeNs) {
        let from = boundary.from;
        if !self.epoch.set_boundary(boundary, &mut self.actions) {
            return;
        }
        for sequence in self.collectives.sequences_from(from..) {
            let failure = self.boundary_failure(sequence);
            if let Some(failure) =
                failure.filter(|_| !self.collectives.has_undecided_proposal(sequence))
            {
                self.fail_collective(sequence, failure, None, now);
            }
        }
    }

    /// Returns the failure of a collective that lies behind the boundary; `None` for all others.
    pub(super) fn boundary_failure(&self, sequence: Sequence) -> Option<Failure> {
        let boundary = self.epoch.boundary().filter(|boundary| !boundary.admits(sequence))?;
        Some(boundary.failure.clone())
    }

    /// Fails all collectives from sequence `from` on that ranks of `gateway` have not posted, since
    /// they never will. A send that both ranks have posted goes on.
    pub(super) fn close_epoch_collectives_from(
        &mut self,
        gateway: GatewayId,
        from: Sequence,
        now: TimeNs,
    ) {
        let Some(failure) = self.epoch.close_from_drain(gateway, from) else { return };
        for sequence in self.collectives.sequences_from(from..) {
            let is_posted = sequence.series().is_some()
                && self.collectives.is_posted_by(gateway, sequence, &self.epoch);
            if !is_posted && !self.collectives.has_undecided_proposal(sequence) {
                self.fail_collective(sequence, failure.clone(), None, now);
            }
        }
    }

    /// Puts another plan in force, and starts the collectives that waited for it.
    pub(super) fn switch_epoch_plan(&mut self, switch: PlanSwitch, now: TimeNs) {
        let oldest = self.collectives.iter().next().map(|(sequence, _)| sequence);
        self.epoch.log_and_switch_replanned(switch, oldest, &mut self.actions);
        if self.end_epoch_if_connections_cut(&RouteChange::default(), "another plan needs it", now)
        {
            return;
        }
        let waiting = self.collectives.waiting().map(|(sequence, _)| sequence);
        for sequence in waiting.collect::<Vec<_>>() {
            self.start_collective_if_posted(sequence, now);
        }
    }

    /// Repeats to a peer all messages that bring it up to date, since some may have been lost.
    pub(super) fn repeat_epoch_to(&mut self, peer: GatewayId) {
        if !self.epoch.members().is_up(peer) {
            return;
        }
        self.actions.push(Action::Introduce { to: peer });
        let committed = self.commits.committed();
        self.epoch.repeat_entry(peer, committed, &mut self.actions);
        if self.epoch.is_active() {
            self.send_epoch_catch_up(peer);
        }
        if peer == FIRST_GATEWAY {
            self.request_epoch_entry();
        }
    }

    /// Sends a peer all posts, failures, grants, receipts, commits and plan changes of this epoch
    /// that it may lack.
    pub(super) fn send_epoch_catch_up(&mut self, peer: GatewayId) {
        let ranks = self.collectives.local_ranks().count();
        for (sequence, collective) in self.collectives.iter() {
            let has_undecided_proposal = self.collectives.has_undecided_proposal(sequence);
            if collective.failure.is_none() || !has_undecided_proposal {
                self.actions.push_messages(peer, collective.catch_up_messages(sequence, ranks));
            }
            if collective.failure.is_none() {
                let facts = self.transfer.catch_up_messages(peer, collective.epoch, sequence);
                self.actions.push_messages(peer, facts);
            }
        }
        let epoch = self.epoch.number();
        let proposals = self.collectives.proposals().iter().filter(|_| peer == FIRST_GATEWAY);
        for (sequence, failure) in self.collectives.failures().iter().chain(proposals) {
            let (sequence, failure) = (*sequence, failure.clone());
            self.actions.push_message(peer, Message::Fail { epoch, sequence, failure });
        }
        self.actions.push_messages(peer, self.commits.catch_up_messages(peer, &self.epoch));
        self.actions.push_messages(peer, self.epoch.catch_up_messages(peer));
    }
}
