//! Changes that concern several parts of the session: epochs begin and end, collectives start,
//! complete and fail, plans change.

use super::action::{Action, Note};
use super::collective::state::Phase;
use super::dispatcher::Session;
use super::epoch::membership::{EpochStart, FIRST};
use super::epoch::plan_schedule::PlanSwitch;
use super::transfer::flow::Work;
use crate::descriptor::Descriptor;
use crate::ids::{GatewayId, RankId, Sequence};
use crate::mutant::{self, Mutant};
use crate::post::{Failure, FailureCode};
use crate::wire::Message;
use units::TimeNs;

/// Epochs.
impl Session {
    /// Asks the first gateway for the next epoch, once all peers can be reached.
    pub(super) fn request_entry(&mut self) {
        let (next, committed) = (self.collectives.next(), self.commits.committed());
        self.epoch.request_entry(next, committed, &mut self.actions);
    }

    /// On the first gateway: begins the next epoch, once all peers have asked for it.
    pub(super) fn open_epoch_if_all_joined(&mut self, now: TimeNs) {
        let (next, committed) = (self.collectives.next(), self.commits.committed());
        if let Some(start) = self.epoch.opening(next, committed) {
            self.enter_epoch(start, now);
        }
    }

    /// Enters an epoch: all parts begin anew, peers and ranks are told.
    pub(super) fn enter_epoch(&mut self, start: EpochStart, now: TimeNs) {
        let (epoch, next) = (start.epoch, start.next);
        self.commits.begin_epoch(next, start.committed);
        self.collectives.begin_epoch(next);
        self.transfer.begin_epoch(now);
        let committed = self.commits.committed();
        self.epoch.enter(start, committed, &mut self.actions);
        let step = committed.map(|committed| committed.step);
        self.collectives.notify_epoch(epoch, step, &mut self.actions);
    }

    /// Leaves the epoch: collectives under way fail, contributions intact. Peers are told, except
    /// the one that said so.
    pub(super) fn end_epoch(&mut self, failure: Failure, except: Option<GatewayId>, now: TimeNs) {
        if !self.epoch.is_active() {
            return;
        }
        let epoch = self.epoch.number();
        self.epoch.tell_end(&failure, except, &mut self.actions);
        let (commits, mut cx) = self.commits_at(now);
        commits.fail_all(&failure, &mut cx);
        self.epoch.leave();
        self.commits.end_epoch();
        self.transfer.end_epoch();
        for sequence in self.collectives.sequences() {
            self.abandon(sequence, &failure, now);
        }
        self.collectives.end_epoch();
        self.epoch.note_end(failure.clone());
        self.actions.push(Action::Note(Note::EpochEnded { epoch, failure }));
        self.request_entry();
        self.open_epoch_if_all_joined(now);
    }

    /// Ends a collective with its epoch. One whose result is ready stays good: only its receipts
    /// are missing, and none will come any more.
    fn abandon(&mut self, sequence: Sequence, failure: &Failure, now: TimeNs) {
        match self.collectives.get(sequence).map(|collective| collective.phase) {
            Some(Phase::Ready) => {
                self.transfer.cancel(sequence, &mut self.actions);
                self.transfer.set_abandoned(sequence);
                self.collectives.leave(sequence);
                self.settle(sequence, now);
            }
            Some(Phase::Failed) => self.forget_if_notified(sequence),
            Some(Phase::Leaving) | None => {}
            Some(Phase::Waiting | Phase::Running | Phase::Failing) => {
                self.fail(sequence, failure.clone(), None, now);
            }
        }
    }

    /// No rank of `gateway` posts anything from `from` on: those collectives fail.
    pub(super) fn close(&mut self, gateway: GatewayId, from: Sequence, now: TimeNs) {
        let Some(failure) = self.epoch.close(gateway, from) else { return };
        for sequence in self.collectives.sequences_from(from..) {
            self.fail(sequence, failure.clone(), None, now);
        }
    }

    /// Puts another plan in force, and starts the collectives that waited for it.
    pub(super) fn switch_plan(&mut self, switch: PlanSwitch, now: TimeNs) {
        let oldest = self.collectives.iter().next().map(|(sequence, _)| sequence);
        self.epoch.switch_plan(switch, oldest, &mut self.actions);
        let waiting = self.collectives.waiting().map(|(sequence, _)| sequence);
        for sequence in waiting.collect::<Vec<_>>() {
            self.start_if_posted(sequence, now);
        }
    }

    /// Repeats to a peer everything that it needs to know.
    pub(super) fn repeat_to(&mut self, peer: GatewayId) {
        if !self.epoch.members().is_up(peer) {
            return;
        }
        let committed = self.commits.committed();
        self.epoch.repeat_entry(peer, committed, &mut self.actions);
        if self.epoch.is_active() {
            self.send_facts(peer);
        }
        if peer == FIRST {
            self.request_entry();
        }
    }

    /// Sends a peer all facts about this epoch.
    pub(super) fn send_facts(&mut self, peer: GatewayId) {
        let ranks = self.collectives.ranks().count();
        for (sequence, collective) in self.collectives.iter() {
            self.actions.messages(peer, collective.facts(sequence, ranks));
            if collective.failure.is_none() {
                let facts = self.transfer.facts_for(peer, collective.epoch, sequence);
                self.actions.messages(peer, facts);
            }
        }
        let epoch = self.epoch.number();
        for (sequence, failure) in self.collectives.failures() {
            let (sequence, failure) = (*sequence, failure.clone());
            self.actions.message(peer, Message::Fail { epoch, sequence, failure });
        }
        self.actions.messages(peer, self.commits.facts_for(peer, &self.epoch));
        self.actions.messages(peer, self.epoch.facts_for(peer));
    }
}

/// Collectives.
impl Session {
    /// Records the descriptor that somebody posted; false when the collective has failed.
    pub(super) fn agree(
        &mut self,
        sequence: Sequence,
        rank: RankId,
        descriptor: Descriptor,
        now: TimeNs,
    ) -> bool {
        match self.collectives.agree(sequence, rank, descriptor, &self.epoch) {
            Ok(healthy) => healthy,
            Err(failure) => {
                self.fail(sequence, failure, None, now);
                false
            }
        }
    }

    /// Fails a collective for which a rank is gone that took part in this epoch.
    pub(super) fn fail_if_rank_lost(&mut self, sequence: Sequence, now: TimeNs) {
        if let Some(failure) = self.collectives.lost_rank(sequence, self.epoch.local()) {
            self.fail(sequence, failure, None, now);
        }
    }

    /// Starts a collective that every local rank has posted.
    pub(super) fn start_if_posted(&mut self, sequence: Sequence, now: TimeNs) {
        let (collectives, cx) = self.collectives_at(now);
        let Some((descriptor, weights)) = collectives.begin(sequence, &cx) else { return };
        let (transfer, mut cx) = self.transfer_at(now);
        let started = transfer.start(sequence, Work { descriptor, weights }, &mut cx);
        if let Err(from) = started {
            let name = self.epoch.local().gateway_name(from);
            let text =
                format!("collective {sequence}: gateway {name} sent segments of another shape");
            return self.fail(sequence, Failure::new(FailureCode::Disagreement, text), None, now);
        }
        self.settle(sequence, now);
    }

    /// Fails a collective here and, except where the failure came from, everywhere. Ranks are
    /// notified once nothing touches their memory any more.
    pub(super) fn fail(
        &mut self,
        sequence: Sequence,
        failure: Failure,
        except: Option<GatewayId>,
        now: TimeNs,
    ) {
        let number = self.epoch.number();
        let Some(epoch) = self.collectives.begin_failure(sequence, &failure, number) else {
            return;
        };
        self.transfer.set_failed(sequence);
        self.transfer.cancel(sequence, &mut self.actions);
        self.transfer.release(sequence, &mut self.actions);
        if self.epoch.is_current(epoch) {
            let (collectives, mut cx) = self.collectives_at(now);
            collectives.tell_failure(sequence, &failure, except, &mut cx);
            // The memory that it gave back may be all that others wait for.
            let (transfer, mut cx) = self.transfer_at(now);
            transfer.start_locals(&mut cx);
            transfer.send_everywhere(&mut cx);
        }
        let (commits, mut cx) = self.commits_at(now);
        commits.fail_covering(sequence, &failure, &mut cx);
        self.collectives.note_failure(sequence, failure, &mut self.actions);
        self.settle(sequence, now);
    }

    /// A peer failed a collective that is complete here. The ranks no longer agree on which
    /// collective is next, and the peer will never send the receipts that are missing.
    pub(super) fn end_over_divergence(&mut self, peer: GatewayId, sequence: Sequence, now: TimeNs) {
        let local = self.epoch.local();
        let text = format!(
            "collective {sequence} failed on gateway {}, but is complete on gateway {}",
            local.gateway_name(peer),
            local.own_name()
        );
        self.end_epoch(Failure::new(FailureCode::EpochEnded, text), None, now);
    }

    /// Completes, frees or forgets a collective, if nothing touches its memory any more.
    pub(super) fn settle(&mut self, sequence: Sequence, now: TimeNs) {
        let Some(phase) = self.collectives.get(sequence).map(|collective| collective.phase) else {
            return;
        };
        let still = self.transfer.is_still(sequence);
        if phase == Phase::Leaving && still {
            return self.free_contributions(sequence, now);
        }
        if phase == Phase::Failing && still {
            self.collectives.end_failure(sequence, &mut self.actions);
            return self.forget_if_notified(sequence);
        }
        if self.transfer.is_delivered(sequence) {
            self.deliver(sequence, now);
        }
        let is_ready = self.collectives.get(sequence).is_some_and(|c| c.phase == Phase::Ready);
        let receipted = !self.transfer.receipts_due(sequence) || mutant::is(Mutant::ReuseSlot);
        if is_ready && receipted {
            self.free_contributions(sequence, now);
        }
    }

    /// The result is in every local slot.
    fn deliver(&mut self, sequence: Sequence, now: TimeNs) {
        self.transfer.set_delivered(sequence);
        let all_posted = self.transfer.proves_all_posted(sequence);
        let wan = self.transfer.wan_times(sequence);
        let (collectives, mut cx) = self.collectives_at(now);
        collectives.deliver(sequence, all_posted, wan, &mut cx);
        let (commits, mut cx) = self.commits_at(now);
        commits.note_done(sequence, &mut cx);
        self.epoch.weigh_links(&mut self.actions);
    }

    /// The last event of a good collective.
    fn free_contributions(&mut self, sequence: Sequence, now: TimeNs) {
        self.transfer.release(sequence, &mut self.actions);
        self.transfer.forget(sequence);
        let (collectives, mut cx) = self.collectives_at(now);
        collectives.free_contributions(sequence, &mut cx);
    }

    /// Forgets a failed collective once every local rank has been notified.
    pub(super) fn forget_if_notified(&mut self, sequence: Sequence) {
        if self.collectives.all_notified(sequence, &self.epoch) {
            self.collectives.forget(sequence);
            self.transfer.forget(sequence);
        }
    }
}
