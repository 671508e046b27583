//! The outcomes of collectives: results, failures, and the ends of epochs.

use super::collectives::{Collectives, ReceivedSegments};
use super::live_collective::Phase;
use crate::ids::{Epoch, GatewayId, RankId, Sequence, Step};
use crate::post::{Failure, RankEvent, Timing};
use crate::session::action::{Action, SessionNote};
use crate::session::action_queue::ActionQueue;
use crate::session::context::Context;
use crate::session::epoch::epoch_state::EpochState;
use crate::wire::Message;
use std::ops::Range;
use units::TimeNs;

impl Collectives {
    /// Marks a collective as failing, from its first event on if need be. Returns its epoch; none
    /// when its result is ready or it has failed before. A failure that was only proposed gives way
    /// to the one decided.
    pub fn begin_failure(
        &mut self,
        sequence: Sequence,
        failure: &Failure,
        epoch: Epoch,
    ) -> Option<Epoch> {
        let has_undecided_proposal = self.has_undecided_proposal(sequence);
        let collective = self.collective_or_new(sequence, epoch);
        let has_failed = collective.failure.is_some() && !has_undecided_proposal;
        if has_failed || collective.phase == Phase::Ready {
            return None;
        }
        collective.failure = Some(failure.clone());
        collective.phase = Phase::Failing;
        let epoch = collective.epoch;
        self.proposals.remove(&sequence);
        Some(epoch)
    }

    /// Keeps a failure of this epoch for later repeats, and sends Fail to all ready peers except
    /// the one that the failure came from.
    pub fn announce_failure(
        &mut self,
        sequence: Sequence,
        failure: &Failure,
        except: Option<GatewayId>,
        cx: &mut Context<'_>,
    ) {
        self.failures.insert(sequence, failure.clone());
        let Some(collective) = self.live.get(&sequence) else { return };
        let message = Message::Fail { epoch: collective.epoch, sequence, failure: failure.clone() };
        let others = cx.epoch.ready_peers().into_iter().filter(|to| Some(*to) != except);
        cx.actions.broadcast(others, &message);
    }

    /// Queues a note for the log that a collective failed.
    pub fn log_failure(&self, sequence: Sequence, failure: Failure, actions: &mut ActionQueue) {
        let descriptor = self.live.get(&sequence).and_then(|collective| collective.descriptor);
        let op = descriptor.map(|(_, descriptor)| descriptor.name());
        actions.push(Action::Note(SessionNote::Failed { sequence, op, failure }));
    }

    /// Marks a failing collective as failed and notifies the ranks that posted it, once nothing
    /// touches their memory.
    pub fn finish_failure(&mut self, sequence: Sequence, actions: &mut ActionQueue) {
        let Some(collective) = self.live.get_mut(&sequence) else { return };
        collective.phase = Phase::Failed;
        let Some(failure) = &collective.failure else { return };
        for rank in collective.posts.keys() {
            let event = RankEvent::Failed { sequence, failure: failure.clone() };
            actions.notify(*rank, event);
        }
    }

    /// Whether a failed collective can be forgotten: every local rank has posted it, or its epoch
    /// is over.
    pub fn can_forget_failure(&self, sequence: Sequence, epoch: &EpochState) -> bool {
        let Some(collective) = self.live.get(&sequence) else { return false };
        collective.phase == Phase::Failed
            && (collective.epoch != epoch.number()
                || !epoch.is_active()
                || self.ranks.values().all(|rank| rank.next_like(sequence) > sequence))
    }

    /// Marks a result as ready and notifies the local ranks. `all_posted` says that the result
    /// contains all ranks' contributions. `wan` is from the first segment out to the last one in,
    /// zero without any.
    pub fn deliver_result(
        &mut self,
        sequence: Sequence,
        all_posted: bool,
        wan: Range<TimeNs>,
        cx: &mut Context<'_>,
    ) {
        let Some(collective) = self.live.get_mut(&sequence) else { return };
        collective.phase = Phase::Ready;
        if all_posted {
            collective.posted.extend(cx.epoch.members().peer_ids());
            collective.all_posted_at.get_or_insert(cx.now);
        }
        let posted = collective.timing.posted;
        let wan_end = wan.end.max(posted);
        let wan_begin = if wan.start == TimeNs::default() { wan_end } else { wan.start };
        let timing = Timing { posted, wan_begin, wan_end, ready: cx.now };
        collective.timing = timing;
        for rank in collective.posts.keys() {
            cx.actions.notify(*rank, RankEvent::ResultReady { sequence, timing });
        }
        if let Some((_, descriptor)) = collective.descriptor {
            let (op, bytes) = (descriptor.name(), descriptor.bytes());
            let (took, pattern) = (timing.ready.since(timing.posted), descriptor.pattern);
            let note = SessionNote::Completed { sequence, op, pattern, bytes, took };
            cx.actions.push(Action::Note(note));
        }
    }

    /// Marks a ready collective whose epoch is over, while streams may still read its memory.
    pub fn mark_leaving(&mut self, sequence: Sequence) {
        if let Some(collective) = self.live.get_mut(&sequence) {
            collective.phase = Phase::Leaving;
        }
    }

    /// Removes a complete collective and notifies its ranks that their slots are free.
    ///
    /// `received` are the segments that peers sent for it.
    pub fn remove_collective_and_notify(
        &mut self,
        sequence: Sequence,
        received: ReceivedSegments,
        cx: &mut Context<'_>,
    ) {
        let Some(collective) = self.live.remove(&sequence) else { return };
        if collective.descriptor.is_some() && cx.epoch.is_current(collective.epoch) {
            self.finished.insert(sequence, received);
        }
        for rank in collective.posts.keys() {
            cx.actions.notify(*rank, RankEvent::ContributionFree { sequence });
        }
    }

    /// Removes a collective without notifying ranks.
    pub fn forget_collective(&mut self, sequence: Sequence) {
        self.live.remove(&sequence);
    }

    /// Begins an epoch whose first collective is `next`: forgets failures and completed
    /// collectives, and resets all ranks.
    pub fn begin_epoch(&mut self, next: Sequence) {
        self.next = next;
        self.failures.clear();
        self.finished.clear();
        self.proposals.clear();
        for local in self.ranks.values_mut() {
            local.begin_epoch(next);
        }
    }

    /// Notifies the attached ranks that an epoch began. `committed` is the last step known to be
    /// complete everywhere, `ended` the reason why the epoch before ended.
    pub fn notify_epoch(
        &self,
        epoch: Epoch,
        committed: Option<Step>,
        ended: Option<&Failure>,
        actions: &mut ActionQueue,
    ) {
        for (rank, local) in self.ranks.iter().filter(|(_, local)| local.attached) {
            let (next, ended) = (local.next, ended.cloned());
            actions.notify(*rank, RankEvent::EpochBegan { epoch, next, committed, ended });
        }
    }

    /// Notifies all attached ranks that the group is over, for this reason.
    pub fn notify_disbanded(&self, failure: &Failure, actions: &mut ActionQueue) {
        for (rank, _) in self.ranks.iter().filter(|(_, local)| local.attached) {
            actions.notify(*rank, RankEvent::Disbanded { failure: failure.clone() });
        }
    }

    /// Notifies a rank that attached just now of the epoch under way, with the sequence that the
    /// rank posts next.
    pub fn notify_rank_of_epoch(
        &self,
        rank: RankId,
        epoch: Epoch,
        committed: Option<Step>,
        actions: &mut ActionQueue,
    ) {
        let Some(local) = self.ranks.get(&rank) else { return };
        let event = RankEvent::EpochBegan { epoch, next: local.next, committed, ended: None };
        actions.notify(rank, event);
    }

    /// Ends an epoch. Collectives still under way keep their sequences, so the next epoch begins
    /// above them.
    pub fn end_epoch(&mut self) {
        self.proposals.clear();
        self.ranks.values_mut().for_each(|rank| rank.posted = false);
        let last = self.live.keys().map(|sequence| sequence.place()).max();
        self.next = self.next.max(Sequence(last.map_or(0, |last| last + 1)));
    }
}
