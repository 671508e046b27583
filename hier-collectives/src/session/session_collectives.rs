//! Collectives start, complete and fail: changes of the session that concern several of its parts.

use super::collective::collective_failures::cut_contribution_failure;
use super::collective::deadlines;
use super::collective::live_collective::Phase;
use super::epoch::epoch_membership::FIRST_GATEWAY;
use super::session_events::Session;
use super::transfer::transfer_flow::TransferFlowWork;
use crate::descriptor::Descriptor;
use crate::ids::{GatewayId, RankId, Sequence};
use crate::mutant::{self, Mutant};
use crate::post::{Failure, FailureCode};
use crate::wire::Message;
use units::TimeNs;

/// Collectives.
impl Session {
    /// Compares a rank's descriptor with the first one posted, and fails the collective if they
    /// differ. Returns false when the collective has failed.
    pub(super) fn agree_on_collective_descriptor(
        &mut self,
        sequence: Sequence,
        rank: RankId,
        descriptor: Descriptor,
        now: TimeNs,
    ) -> bool {
        match self.collectives.agree_on_descriptor(sequence, rank, descriptor, &self.epoch) {
            Ok(healthy) => healthy,
            Err(failure) => {
                self.refuse_collective_posts(sequence, failure, now);
                false
            }
        }
    }

    /// Compares the counts by pair that a rank posted with those of the ranks at the other ends, as
    /// far as they are known, and fails the collective if they differ. Returns false then.
    pub(super) fn agree_on_collective_counts(
        &mut self,
        sequence: Sequence,
        rank: RankId,
        now: TimeNs,
    ) -> bool {
        let failure = self.collectives.counts_failure(sequence, rank, self.epoch.local());
        let agreed = failure.is_none();
        if let Some(failure) = failure {
            self.refuse_collective_posts(sequence, failure, now);
        }
        agreed
    }

    /// Fails a collective that awaits a rank which is lost, or posted in this epoch and detached.
    pub(super) fn fail_collective_if_rank_lost(&mut self, sequence: Sequence, now: TimeNs) {
        if let Some(failure) = self.collectives.lost_rank_failure(sequence, self.epoch.local()) {
            self.fail_collective(sequence, failure, None, now);
        }
    }

    /// Fails a collective whose rank detached before all bytes of its contribution had come.
    pub(super) fn fail_collective_of_cut_contribution(
        &mut self,
        sequence: Sequence,
        rank: RankId,
        now: TimeNs,
    ) {
        let phase = self.collectives.get(sequence).map(|collective| collective.phase);
        if matches!(phase, Some(Phase::Waiting | Phase::Running)) {
            let failure = cut_contribution_failure(sequence, rank, self.epoch.local());
            self.fail_collective(sequence, failure, None, now);
        }
    }

    /// Starts a collective that every local rank has posted, unless it failed or waits for a plan
    /// or counts. It fails if a peer has sent segments of another shape.
    pub(super) fn start_collective_if_posted(&mut self, sequence: Sequence, now: TimeNs) {
        let (collectives, cx) = self.collectives_and_context(now);
        let Some((descriptor, counts, weights)) = collectives.begin_collective(sequence, &cx)
        else {
            return;
        };
        let work = TransferFlowWork { descriptor, counts, weights };
        let (transfer, mut cx) = self.transfer_and_context(now);
        if let Err(from) = transfer.start_collective(sequence, work, &mut cx) {
            let name = self.epoch.local().gateway_name(from);
            let text =
                format!("collective {sequence}: gateway {name} sent segments of another shape");
            let failure = Failure::new(FailureCode::Disagreement, text);
            return self.refuse_collective_posts(sequence, failure, now);
        }
        self.settle_collective(sequence, now);
    }

    /// Fails a collective since its posts are at fault. The first gateway decides, so that all
    /// ranks of all regions hear one text; other gateways propose the failure to it. Where the
    /// result is ready, as on the root of a broadcast, the epoch ends with the failure.
    pub(super) fn refuse_collective_posts(
        &mut self,
        sequence: Sequence,
        failure: Failure,
        now: TimeNs,
    ) {
        let is_complete = self.collectives.has_result(sequence);
        if self.epoch.me() == FIRST_GATEWAY {
            if is_complete {
                self.end_epoch(failure, None, now);
            } else {
                self.fail_collective(sequence, failure, None, now);
            }
            return;
        }
        let epoch = self.epoch.number();
        if !self.collectives.propose_failure(sequence, &failure, epoch) {
            return;
        }
        // A first gateway that is not ready yet gets the proposal once it is.
        if self.epoch.ready_peers().contains(&FIRST_GATEWAY) {
            let message = Message::Fail { epoch, sequence, failure };
            self.actions.push_message(FIRST_GATEWAY, message);
        }
        if !is_complete {
            self.stop_collective_transfer(sequence, true, now);
        }
    }

    /// Fails a collective here and, except where the failure came from, everywhere. Ranks are
    /// notified once nothing touches their memory any more.
    pub(super) fn fail_collective(
        &mut self,
        sequence: Sequence,
        failure: Failure,
        except: Option<GatewayId>,
        now: TimeNs,
    ) {
        let number = self.epoch.number();
        let is_stopped = self.collectives.has_undecided_proposal(sequence);
        let Some(epoch) = self.collectives.begin_failure(sequence, &failure, number) else {
            return;
        };
        let is_current = self.epoch.is_current(epoch);
        if is_current {
            let (collectives, mut cx) = self.collectives_and_context(now);
            collectives.announce_failure(sequence, &failure, except, &mut cx);
        }
        if !is_stopped {
            self.stop_collective_transfer(sequence, is_current, now);
        }
        let (commits, mut cx) = self.commits_and_context(now);
        commits.fail_commits_covering(sequence, &failure, &mut cx);
        let (collectives, mut cx) = self.collectives_and_context(now);
        collectives.log_failure(sequence, failure, &mut cx);
        self.settle_collective(sequence, now);
    }

    /// Stops the transfer of a collective that fails, and gives its memory to others if its epoch
    /// is current.
    fn stop_collective_transfer(&mut self, sequence: Sequence, is_current: bool, now: TimeNs) {
        self.transfer.set_failed(sequence);
        self.transfer.cancel_streams(sequence, &mut self.actions);
        self.transfer.release_memory(sequence, &mut self.actions);
        if is_current {
            let (transfer, mut cx) = self.transfer_and_context(now);
            transfer.start_local_reductions(&mut cx);
            transfer.send_to_all_peers(&mut cx);
        }
    }

    /// Takes a collective to its next phase where its state allows that. A result in place is
    /// delivered, and the collective ends once all receipts are here. A failure is told to the
    /// ranks once nothing touches the memory of the collective.
    pub(super) fn settle_collective(&mut self, sequence: Sequence, now: TimeNs) {
        let Some(phase) = self.collectives.get(sequence).map(|collective| collective.phase) else {
            return;
        };
        let still = self.transfer.is_quiescent(sequence);
        if phase == Phase::Leaving && still {
            return self.end_collective(sequence, now);
        }
        if phase == Phase::Failing && still && !self.collectives.has_undecided_proposal(sequence) {
            self.collectives.finish_failure(sequence, &mut self.actions);
            return self.forget_collective_if_notified(sequence);
        }
        if self.transfer.is_delivered(sequence) {
            self.deliver_collective_result(sequence, now);
        }
        let is_ready = self.collectives.get(sequence).is_some_and(|c| c.phase == Phase::Ready);
        let receipted =
            !self.transfer.awaits_receipts(sequence) || mutant::is_mutant_active(Mutant::ReuseSlot);
        if is_ready && receipted {
            self.end_collective(sequence, now);
        }
    }

    /// Notifies the local ranks that a result is in their slots. Also counts it for commits, and
    /// asks for a new plan if links have changed.
    fn deliver_collective_result(&mut self, sequence: Sequence, now: TimeNs) {
        self.transfer.set_delivered(sequence);
        let all_posted = self.transfer.proves_all_posted(sequence);
        let wan = self.transfer.wan_times(sequence);
        let (collectives, mut cx) = self.collectives_and_context(now);
        collectives.deliver_result(sequence, all_posted, wan, &mut cx);
        let (commits, mut cx) = self.commits_and_context(now);
        commits.note_collective_done(sequence, &mut cx);
        self.epoch.replan_if_links_changed(&mut self.actions);
    }

    /// Ends a complete collective: releases its memory, and notifies its ranks that their slots are
    /// free.
    fn end_collective(&mut self, sequence: Sequence, now: TimeNs) {
        let received = self.transfer.expected_segments(sequence, self.epoch.me());
        self.transfer.release_memory(sequence, &mut self.actions);
        self.transfer.forget_collective(sequence);
        let (collectives, mut cx) = self.collectives_and_context(now);
        collectives.remove_collective_and_notify(sequence, received, &mut cx);
        if self.collectives.is_relay() {
            // Its memory may be what other sends wait for, also those that send nothing now.
            let (transfer, mut cx) = self.transfer_and_context(now);
            transfer.send_to_all_peers(&mut cx);
        }
    }

    /// Forgets a failed collective once every local rank has posted it or its epoch is over.
    pub(super) fn forget_collective_if_notified(&mut self, sequence: Sequence) {
        if self.collectives.can_forget_failure(sequence, &self.epoch) {
            self.collectives.forget_collective(sequence, &self.epoch);
            self.transfer.forget_collective(sequence);
        }
    }

    /// Fails a collective whose deadline has passed. Ends the epoch instead when the result is
    /// ready here.
    pub(super) fn handle_late_collective(&mut self, sequence: Sequence, now: TimeNs) {
        let Some(collective) = self.collectives.get(sequence) else { return };
        let (epoch, phase) = (&self.epoch, collective.phase);
        let failure = if collective.all_posted_at.is_none() {
            let here = self.collectives.awaited_local_ranks(collective).into_iter();
            let ranks = here.chain(self.collectives.awaited_remote_ranks(collective, epoch));
            let names: Vec<String> = ranks.map(|rank| epoch.local().rank_name(rank)).collect();
            deadlines::deadline_failure(sequence, collective, &names)
        } else {
            let peers = epoch.members().peer_ids();
            let missing = self.transfer.missing_text(peers, sequence, epoch.local());
            self.deadlines.stall_failure(sequence, collective, &missing, epoch)
        };
        match phase {
            Phase::Waiting | Phase::Running => self.fail_collective(sequence, failure, None, now),
            // A ready result cannot fail here any more.
            Phase::Ready => self.end_epoch(failure, None, now),
            Phase::Leaving | Phase::Failing | Phase::Failed => {}
        }
    }
}
