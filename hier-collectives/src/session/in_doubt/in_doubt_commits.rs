//! Commits of an epoch that has ended, of which only the next one tells whether their steps are complete.
//!
//! A gateway confirms a step once all gateways of the epoch have prepared it. The last word may reach
//! some of them alone, and these may be lost. So where others go on without them, a commit of a prepared
//! step is *in doubt* when the epoch ends, as in any two-phase commit. It waits:
//!
//! * The next epoch begins with the last step that all its gateways which were in this one have prepared,
//!   or that one of them knows to be complete. Quorums have a region in common, so it is not before any
//!   step that somebody has confirmed.
//! * A gateway answers the commits in doubt once all gateways are in that epoch. From then on every
//!   quorum knows the answer, whoever is lost.
//!
//! A rank may have the results of a step and commit it only when the epoch has ended. That commit is in
//! doubt as well.

use super::commit_steps::{NamedStep, step_disagreement_failure};
use crate::ids::{Epoch, RankId, Sequence, Step};
use crate::post::{Commit, Committed, EpochId, Failure, FailureCode, RankEvent};
use std::collections::{BTreeMap, VecDeque};
use units::TimeNs;

/// The commits in doubt of the last epoch in which local ranks had results, by ranks' numbers in the job.
#[derive(Debug, Default)]
pub struct InDoubtCommits {
    epoch: EpochId,
    ranks: BTreeMap<RankId, RankInDoubt>,
    /// The first known commit of those that end where ranks have uncommitted results, by one past its
    /// last collective.
    named: BTreeMap<Sequence, NamedStep>,
    /// Steps that end at or below this collective are complete, once that is known.
    complete_below: Option<Sequence>,
}

/// A rank whose commits are in doubt.
#[derive(Debug, Default)]
pub(in crate::session) struct RankInDoubt {
    /// Commits that wait, in order.
    pub pending: VecDeque<InDoubtCommit>,
    /// One past the last collective that the rank has not committed, if it has the results of all.
    pub uncommitted: Option<Sequence>,
}

/// A commit in doubt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::session) struct InDoubtCommit {
    pub step: Step,
    /// One past the step's last collective.
    pub below: Sequence,
    pub begun: TimeNs,
    pub expiry: TimeNs,
    /// The answer if the step is not complete.
    pub failure: Failure,
}

impl InDoubtCommits {
    /// Makes the table of an epoch that ends, in which nothing is in doubt.
    pub(in crate::session) fn of_epoch(epoch: EpochId) -> Self {
        Self { epoch, ..Self::default() }
    }

    /// Adds a rank, by its number in the job. `named` is the first known commit that ends with the
    /// rank's last collective.
    pub(in crate::session) fn add_rank(
        &mut self,
        rank: RankId,
        in_doubt: RankInDoubt,
        named: Option<NamedStep>,
    ) {
        if let (Some(below), Some(named)) = (in_doubt.uncommitted, named) {
            self.named.insert(below, named);
        }
        self.ranks.insert(rank, in_doubt);
    }

    /// Returns those of the later epoch.
    #[must_use]
    pub fn later_of(self, other: Self) -> Self {
        if other.epoch > self.epoch { other } else { self }
    }

    /// Iterates over the commits that wait, with the numbers of their ranks.
    pub(in crate::session) fn pending(&self) -> impl Iterator<Item = (RankId, &InDoubtCommit)> {
        self.ranks.iter().flat_map(|(rank, of)| of.pending.iter().map(|commit| (*rank, commit)))
    }

    /// Takes a commit that a rank, by its number in the job, sends after the end of the epoch. Returns the
    /// answer if it is known: the step is complete, or not known to be so, or another rank has named
    /// another one. `None` if the commit waits.
    pub(in crate::session) fn answer_late_commit(
        &mut self,
        (rank, here): (RankId, NamedStep),
        commit: Commit,
        failure: Failure,
        now: TimeNs,
    ) -> Option<RankEvent> {
        let Commit { epoch, step, timeout } = commit;
        let of_rank = self.ranks.get_mut(&rank).filter(|_| epoch == self.epoch.number);
        let below = of_rank.as_ref().and_then(|rank| rank.uncommitted);
        let (Some(of_rank), Some(below)) = (of_rank, below) else {
            return Some(RankEvent::CommitFailed { step, failure });
        };
        of_rank.uncommitted = None;
        let first = self.named.entry(below).or_insert_with(|| here.clone());
        if first.step() != step {
            let failure = step_disagreement_failure(below, first, &here);
            return Some(RankEvent::CommitFailed { step, failure });
        }
        let expiry = now + timeout;
        let commit = InDoubtCommit { step, below, begun: now, expiry, failure };
        match self.complete_below {
            Some(complete_below) => Some(commit.answer(complete_below)),
            None => {
                of_rank.pending.push_back(commit);
                None
            }
        }
    }

    /// Forgets the results that a rank has not committed, since it has posted for the step again, in an
    /// epoch that is over: the step goes on.
    pub(in crate::session) fn forget_results(&mut self, rank: RankId, epoch: Epoch) {
        if let Some(rank) = self.ranks.get_mut(&rank).filter(|_| epoch == self.epoch.number) {
            rank.uncommitted = None;
        }
    }

    /// Forgets a rank, whose process has ended.
    pub(in crate::session) fn forget_rank(&mut self, rank: RankId) {
        self.ranks.remove(&rank);
    }

    /// Decides all commits, since all gateways are in the next epoch, which has begun with the step
    /// `committed`. Returns the answers, in order.
    pub(in crate::session) fn decide(
        &mut self,
        committed: Option<Committed>,
    ) -> Vec<(RankId, RankEvent)> {
        if self.complete_below.is_some() {
            return vec![];
        }
        // A step of a later epoch may have been done by others.
        let of_epoch = committed.filter(|committed| committed.epoch == self.epoch);
        let complete_below = of_epoch.map_or(Sequence::default(), |committed| committed.below);
        self.complete_below = Some(complete_below);
        self.take_pending(|_| true, |commit| commit.answer(complete_below))
    }

    /// Fails all commits that wait, and those that come late: nobody here will know whether their
    /// steps are complete.
    pub(in crate::session) fn fail_all(&mut self) -> Vec<(RankId, RankEvent)> {
        self.complete_below.get_or_insert_default();
        self.take_pending(|_| true, |commit| commit.answer(Sequence::default()))
    }

    /// Fails the commits whose timeout has passed.
    pub(in crate::session) fn fail_expired(&mut self, now: TimeNs) -> Vec<(RankId, RankEvent)> {
        self.take_pending(
            |commit| now >= commit.expiry,
            |InDoubtCommit { step, failure, .. }| {
                let text = format!("the timeout passed; before that: {}", failure.text);
                let failure = Failure::new(FailureCode::TimedOut, text);
                RankEvent::CommitFailed { step, failure }
            },
        )
    }

    /// Returns the time at which the first commit times out; `None` while none waits.
    pub(in crate::session) fn next_expiry(&self) -> Option<TimeNs> {
        self.pending().map(|(_, commit)| commit.expiry).min()
    }

    /// Removes the commits that `which` selects, and answers them.
    fn take_pending(
        &mut self,
        which: impl Fn(&InDoubtCommit) -> bool,
        answer: impl Fn(InDoubtCommit) -> RankEvent,
    ) -> Vec<(RankId, RankEvent)> {
        let mut answers = Vec::new();
        for (rank, of_rank) in &mut self.ranks {
            let pending = std::mem::take(&mut of_rank.pending).into_iter();
            let (taken, left): (VecDeque<_>, VecDeque<_>) = pending.partition(&which);
            of_rank.pending = left;
            answers.extend(taken.into_iter().map(|commit| (*rank, answer(commit))));
        }
        answers
    }
}

impl InDoubtCommit {
    /// Returns the answer when all steps that end at or below a collective are complete.
    fn answer(self, complete_below: Sequence) -> RankEvent {
        let Self { step, below, failure, .. } = self;
        if below <= complete_below {
            RankEvent::Committed { step }
        } else {
            RankEvent::CommitFailed { step, failure }
        }
    }
}
