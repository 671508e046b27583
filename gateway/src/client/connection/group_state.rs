//! One group as a rank's connection sees it: its epoch, and what is under way in it.
//!
//! The job itself is a group. [`super`] hands a group the events of the gateway, on its
//! reader's task; callers post and commit under the connection's lock.

use crate::client::recorder::CollectiveRecord;
use crate::client::tensor::Tensor;
use crate::events::GroupPlace;
use hier_collectives::ids::{Epoch, RankId, Sequence, Step};
use hier_collectives::post::{Failure, FailureCode, RankEvent, Timing};
use hier_collectives::sequence::SendSeries;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use tokio::sync::oneshot;

/// The result of a collective: its timestamps, or why it failed.
pub(in crate::client) type CollectiveResult = Result<Timing, Failure>;

/// The codes of failures after which the epoch of the collective is over.
const EPOCH_ENDING_CODES: [FailureCode; 3] =
    [FailureCode::EpochEnded, FailureCode::RegionLost, FailureCode::ShuttingDown];

/// Collectives and commits of one group under way.
#[derive(Debug, Default)]
pub(in crate::client) struct GroupState {
    /// The caller's rank in the group.
    pub rank: RankId,
    /// The ranks of the job that make up its world, by their numbers in the fabric; `None` while all do,
    /// and in other groups.
    pub world: Option<Vec<RankId>>,
    /// The current epoch.
    pub epoch: Epoch,
    /// Whether that epoch is known to be over, from a failure of a collective in it.
    pub is_epoch_over: bool,
    /// Number of the next collective, apart from sends.
    next: Sequence,
    /// Number of the first collective of the epoch, whose place is also the first of each series.
    first: Sequence,
    /// Number of the next send of each series, once one was posted in the epoch.
    next_by_series: BTreeMap<SendSeries, Sequence>,
    pub operations: BTreeMap<Sequence, PendingOperation>,
    /// The epoch of the last post that no commit covers yet.
    pub uncommitted: Option<Epoch>,
    /// Commits without an answer, oldest first.
    pub commits: VecDeque<PendingCommit>,
    /// The last step known to be complete in every region.
    pub committed: Option<Step>,
    /// The last failure of a collective of this rank.
    last_failure: Option<Failure>,
    /// The reason of the last epoch's end, if posts of ranks were at fault and no collective of
    /// this rank failed for it.
    untold: Option<Failure>,
    /// The reason why no epoch is under way, in the words of the gateway.
    pub awaited: Option<String>,
    /// Why the group is over for this rank: the connection ended, or the group was disbanded.
    pub over: Option<Failure>,
    /// How many groups the ranks have made of this one in the current epoch.
    makings: u32,
    /// Whether nobody has a handle of the group, which is left once nothing is under way.
    pub is_leaving: bool,
    /// The epochs in which the caller may post.
    allowed: AllowedEpochs,
}

/// The epochs in which a rank may post and commit.
#[derive(Debug, Clone, Copy, Default)]
enum AllowedEpochs {
    /// Each, as it comes.
    #[default]
    All,
    /// The current one only.
    Current,
    /// None, since the one that was allowed has ended. A number is not enough to tell: it may come
    /// again after all gateways were started again.
    Ended(Epoch),
}

/// A collective under way: its tensor, and the channels to its operation.
#[derive(Debug)]
pub(in crate::client) struct PendingOperation {
    pub tensor: Tensor,
    /// The epoch in which it was posted.
    epoch: Epoch,
    pub ready: Option<oneshot::Sender<CollectiveResult>>,
    done: oneshot::Sender<Tensor>,
    /// The record in the flight recorder.
    record: CollectiveRecord,
    /// Dropped with the collective, before its tensor is the caller's again.
    under_way: Arc<()>,
}

/// Tells whether one collective is under way, while the connection's lock is held. Its tensor is given
/// back under that lock.
#[derive(Debug)]
pub(in crate::client) struct UnderWay(Weak<()>);

impl UnderWay {
    /// Returns whether the collective has not ended.
    pub fn is_under_way(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// A commit without an answer.
#[derive(Debug)]
pub(in crate::client) struct PendingCommit {
    /// The epoch of the collectives that it covers.
    pub epoch: Epoch,
    pub step: Step,
    pub answer: oneshot::Sender<Result<(), Failure>>,
}

/// The receivers of an operation that was begun.
pub(in crate::client) struct OperationReceivers {
    pub ready: oneshot::Receiver<CollectiveResult>,
    pub done: oneshot::Receiver<Tensor>,
    pub under_way: UnderWay,
}

impl GroupState {
    /// Makes the state of a group without an epoch, in which the caller has this rank.
    pub fn of_rank(rank: RankId) -> Self {
        Self { rank, ..Self::default() }
    }

    /// Returns the caller's rank among the ranks that go on. While all of them go on, or if it is
    /// not one of those that do, this is its rank in the group.
    pub fn rank_in_world(&self) -> RankId {
        let place = |ranks: &Vec<RankId>| ranks.binary_search(&self.rank).ok();
        let index = self.world.as_ref().and_then(place);
        index.and_then(|index| u32::try_from(index).ok()).map_or(self.rank, RankId)
    }

    /// Counts one more group that the ranks of this one make, whether this rank is in it or not;
    /// returns its place. All ranks count from 1 on in each epoch. The epoch ends when a rank that
    /// has posted attaches again.
    ///
    /// # Errors
    /// [`Failure`]: the rank can post nothing either, and nothing was counted.
    pub fn count_group_making(&mut self) -> Result<GroupPlace, Failure> {
        if let Some(failure) = self.over.clone().or_else(|| self.epoch_failure()) {
            return Err(failure);
        }
        self.makings += 1;
        Ok(GroupPlace::of_count(self.epoch, self.makings))
    }

    /// Returns the number of the next send of a series; `None` stands for all other collectives.
    pub fn next_in(&self, series: Option<SendSeries>) -> Sequence {
        let Some(series) = series else { return self.next };
        let first = || series.sequence_at(self.first.0);
        self.next_by_series.get(&series).copied().unwrap_or_else(first)
    }

    /// Adds a collective of `tensor` under this number, which is the next one, with its record; returns
    /// the channels by which its end is reported.
    pub fn begin_operation(
        &mut self,
        sequence: Sequence,
        tensor: Tensor,
        record: CollectiveRecord,
    ) -> OperationReceivers {
        let (ready, ready_receiver) = oneshot::channel();
        let (done, done_receiver) = oneshot::channel();
        match sequence.series() {
            None => self.next = sequence.following(),
            Some(series) => {
                self.next_by_series.insert(series, sequence.following());
            }
        }
        let under_way = Arc::new(());
        let receivers = OperationReceivers {
            ready: ready_receiver,
            done: done_receiver,
            under_way: UnderWay(Arc::downgrade(&under_way)),
        };
        let (epoch, ready) = (self.epoch, Some(ready));
        let operation = PendingOperation { tensor, epoch, ready, done, record, under_way };
        self.operations.insert(sequence, operation);
        self.uncommitted = Some(self.epoch);
        receivers
    }

    /// Removes and returns the reason why posts of ranks ended the last epoch, if no collective of
    /// this rank failed for it. The next post of this rank would be the wrong one, too.
    pub fn take_untold_failure(&mut self) -> Option<Failure> {
        self.untold.take()
    }

    /// Restricts posts and commits to the current epoch, whose number is returned.
    pub fn agree_to_epoch(&mut self) -> Epoch {
        self.allowed = AllowedEpochs::Current;
        // The caller begins anew, so that posts of the epoch before are no concern of it.
        self.untold = None;
        self.epoch
    }

    /// Forgets the results of an epoch that has ended, since its step goes on: they are no whole step.
    pub fn forget_uncommitted(&mut self) {
        self.uncommitted = None;
    }

    /// Returns whether the connection stands and the epoch that the caller agreed to goes on.
    pub fn is_epoch_agreed(&self) -> bool {
        self.over.is_none() && matches!(self.allowed, AllowedEpochs::Current)
    }

    /// Returns the failure with which posts and commits end now, because the epoch that the caller
    /// agreed to has ended; `None` while they are possible.
    pub fn epoch_failure(&self) -> Option<Failure> {
        let AllowedEpochs::Ended(agreed) = self.allowed else { return None };
        let text = format!("epoch {agreed} ended; contribution intact; begin the step again");
        Some(Failure::new(FailureCode::EpochEnded, text))
    }

    /// Begins a new epoch, whose first collective has the number `next`. `ended` is the reason why
    /// the one before ended.
    fn begin_epoch(&mut self, epoch: Epoch, next: Sequence, ended: Option<Failure>) {
        self.note_epoch_end(ended);
        if matches!(self.allowed, AllowedEpochs::Current) {
            self.allowed = AllowedEpochs::Ended(self.epoch);
        }
        (self.epoch, self.next, self.first, self.awaited) = (epoch, next, next, None);
        self.is_epoch_over = false;
        self.next_by_series.clear();
        self.makings = 0;
    }

    /// Stores for the next post why the epoch before ended. Stores nothing if posts were not at
    /// fault or this rank was not in that epoch. The same holds if a collective of this rank fails
    /// for that reason.
    fn note_epoch_end(&mut self, ended: Option<Failure>) {
        let was_member = self.epoch != Epoch::default();
        // A collective of that epoch without a result fails for the same reason, a little later.
        let fails = self.operations.values().any(|pending| pending.ready.is_some());
        let untold = ended.filter(|failure| {
            failure.code.is_fault_of_posts() && self.last_failure.as_ref() != Some(failure)
        });
        self.untold = untold.filter(|_| was_member && !fails);
    }

    /// Removes a collective, gives its tensor back to the caller, and reports `failure` if no
    /// result was reported before.
    fn finish_operation(&mut self, sequence: Sequence, failure: Option<Failure>) {
        let Some(pending) = self.operations.remove(&sequence) else { return };
        let PendingOperation { tensor, ready, done, record, under_way, .. } = pending;
        drop(under_way);
        record.note_end(failure.as_ref());
        if let (Some(ready), Some(failure)) = (ready, failure) {
            let _ = ready.send(Err(failure));
        }
        let _ = done.send(tensor);
    }

    /// Completes the caller's waiting `commit(step)` with the gateway's answer.
    fn answer_commit(&mut self, step: Step, outcome: Result<(), Failure>) {
        let waits = self.commits.iter().position(|commit| commit.step == step);
        if let Some(commit) = waits.and_then(|at| self.commits.remove(at)) {
            let _ = commit.answer.send(outcome);
        }
    }
}

impl GroupState {
    /// Updates epoch, collectives and commits of the group by an event of the gateway, and
    /// completes what it ends.
    pub fn handle_event(&mut self, event: RankEvent) {
        match event {
            RankEvent::EpochBegan { epoch, next, committed, ended } => {
                self.begin_epoch(epoch, next, ended);
                self.committed = committed;
            }
            RankEvent::WorldChanged { ranks } => self.world = Some(ranks),
            RankEvent::EpochAwaited { why } => self.awaited = Some(why),
            RankEvent::ResultReady { sequence, timing } => {
                let Some(pending) = self.operations.get_mut(&sequence) else { return };
                pending.record.note_end(None);
                if let Some(ready) = pending.ready.take() {
                    let _ = ready.send(Ok(timing));
                }
            }
            RankEvent::ContributionFree { sequence } => self.finish_operation(sequence, None),
            RankEvent::Failed { sequence, failure } => {
                self.last_failure = Some(failure.clone());
                let pending = self.operations.get(&sequence);
                let is_current = pending.is_some_and(|pending| pending.epoch == self.epoch);
                self.is_epoch_over |= is_current && EPOCH_ENDING_CODES.contains(&failure.code);
                self.finish_operation(sequence, Some(failure));
            }
            RankEvent::Committed { step } => {
                // A commit of an epoch that is over may be answered in the next one, which has named this
                // step or a later one.
                let is_late = |commit: &PendingCommit| commit.epoch != self.epoch;
                if !self.commits.iter().any(|commit| commit.step == step && is_late(commit)) {
                    self.committed = Some(step);
                }
                self.answer_commit(step, Ok(()));
            }
            RankEvent::CommitFailed { step, failure } => self.answer_commit(step, Err(failure)),
            RankEvent::Disbanded { failure } => {
                self.over.get_or_insert(failure);
            }
            // The connection takes the answers of the store, which is of the job as a whole.
            RankEvent::StoreAnswered { .. } => {}
        }
    }

    /// Fails every collective and commit of the group with `failure`, since the connection ended.
    pub fn end_with_connection(&mut self, failure: &Failure) {
        self.over.get_or_insert_with(|| failure.clone());
        let under_way: Vec<Sequence> = self.operations.keys().copied().collect();
        for sequence in under_way {
            self.finish_operation(sequence, Some(failure.clone()));
        }
        for commit in std::mem::take(&mut self.commits) {
            let _ = commit.answer.send(Err(failure.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn posts_keep_to_the_epoch_that_the_caller_began() {
        let mut state = GroupState::default();
        state.begin_epoch(Epoch(1), Sequence(0), None);
        assert!(!state.is_epoch_agreed() && state.epoch_failure().is_none(), "any epoch will do");
        assert_eq!(state.agree_to_epoch(), Epoch(1));
        assert!(state.is_epoch_agreed() && state.epoch_failure().is_none());
        // All gateways were started again, so that the number is the same.
        state.begin_epoch(Epoch(1), Sequence(0), None);
        let failure = state.epoch_failure().expect("the step belongs to the epoch before");
        assert_eq!(failure.code, FailureCode::EpochEnded);
        state.begin_epoch(Epoch(2), Sequence(0), None);
        let again = state.epoch_failure().expect("until the caller agrees");
        assert!(again.text.starts_with("epoch 1 ended"), "{again}");
        assert_eq!(state.agree_to_epoch(), Epoch(2));
        assert!(state.is_epoch_agreed() && state.epoch_failure().is_none());
        state.over = Some(Failure::new(FailureCode::GatewayLost, "for this test".to_owned()));
        assert!(!state.is_epoch_agreed());
    }

    #[test]
    fn a_late_answer_takes_no_committed_step_back() {
        let mut state = GroupState::default();
        let begin = |epoch, committed: Option<u64>| {
            let (epoch, next) = (Epoch(epoch), Sequence(0));
            RankEvent::EpochBegan { epoch, next, committed: committed.map(Step), ended: None }
        };
        state.handle_event(begin(1, None));
        let mut answers = Vec::new();
        for (epoch, step) in [(1, 4), (1, 5), (2, 7)] {
            let (answer, answered) = oneshot::channel();
            let (epoch, step) = (Epoch(epoch), Step(step));
            state.commits.push_back(PendingCommit { epoch, step, answer });
            answers.push(answered);
        }
        state.handle_event(begin(2, Some(6)));
        for (step, committed) in [(4, 6), (5, 6), (7, 7)] {
            state.handle_event(RankEvent::Committed { step: Step(step) });
            assert_eq!(state.committed, Some(Step(committed)), "after the answer to step {step}");
        }
        assert!(answers.iter_mut().all(|answered| matches!(answered.try_recv(), Ok(Ok(())))));
    }
}
