//! The results of epochs and steps: if two parts of a fabric went on, it shows here.

use hier_collectives::ids::{Epoch, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use units::{Span, TimeNs};

/// An epoch. Once no gateway is left that remembers the last one, its number may come again, in another
/// generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct EpochId {
    pub generation: u64,
    pub number: Epoch,
}

/// The place of a rank in its steps.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepPlace {
    pub rank: u32,
    pub epoch: EpochId,
    pub step: u64,
    /// Whether the step was begun: a bucket of it is done, or it is begun again.
    pub is_begun: bool,
}

/// The state that a rank has from the steps that it has done, as a model's weights are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RankState {
    /// The next step.
    pub step: u64,
    /// The epoch in which the step before was confirmed.
    pub epoch: EpochId,
    /// A digest of all steps before, each with its ranks and its epoch.
    pub digest: u64,
}

/// The epochs and steps of a run.
#[derive(Debug, Default)]
pub(super) struct StepHistory {
    epochs: BTreeMap<EpochId, EpochRecord>,
    /// The last epoch that had a result, and when the first one was there.
    last: (EpochId, TimeNs),
    /// The epoch in which each step was confirmed, and the state after it.
    steps: BTreeMap<u64, (EpochId, RankState)>,
}

/// An epoch, as the first rank that spoke of it saw it.
#[derive(Debug, Default)]
struct EpochRecord {
    /// The ranks, by their numbers in the fabric.
    members: BTreeSet<u32>,
    /// The last committed step that its gateways know as it begins.
    committed: Option<Step>,
    /// The state that each rank begins with.
    start: Option<RankState>,
}

/// 1 s: messages of an epoch that were under way when others went on arrive within it. Links have RTTs of
/// 160 ms at most.
const UNDER_WAY_MAX: Span = Span::from_secs(1);

impl fmt::Display for EpochId {
    /// Prints the number, and the generation from the second one on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.generation {
            0 => write!(f, "{}", self.number),
            generation => write!(f, "{} of generation {generation}", self.number),
        }
    }
}

impl fmt::Display for StepPlace {
    /// Prints rank, epoch and step.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}, epoch {}, step {}", self.rank, self.epoch, self.step)
    }
}

impl RankState {
    /// Returns the state after a step whose averages were over `members`.
    pub fn after_step(self, epoch: EpochId, members: &BTreeSet<u32>) -> Self {
        let ranks = members.iter().fold(0, |bits, rank| bits | 1 << rank);
        let of_epoch = epoch.generation << 32 | epoch.number.0;
        let digest = [self.step, ranks, of_epoch].into_iter().fold(self.digest, |digest, word| {
            // FNV-1a, by words.
            (digest ^ word).wrapping_mul(0x100_0000_01b3).rotate_left(29)
        });
        Self { step: self.step + 1, epoch, digest }
    }
}

impl StepHistory {
    /// Records the world of a rank as an epoch begins: it is the same on all ranks of the epoch, and so is
    /// the last step that is known as complete. Returns a violated promise.
    pub fn enter(
        &mut self,
        at: StepPlace,
        members: &BTreeSet<u32>,
        committed: Option<Step>,
    ) -> Option<String> {
        let new = || EpochRecord { members: members.clone(), committed, start: None };
        let known = self.epochs.entry(at.epoch).or_insert_with(new);
        if known.members != *members || !members.contains(&at.rank) {
            return Some(format!("{at} is told {members:?}, others {:?}", known.members));
        }
        let theirs = known.committed;
        (theirs != committed)
            .then(|| format!("{at} is told that {committed:?} is complete, others {theirs:?}"))
    }

    /// Records the state that a rank goes on with: it is the same on all ranks of the epoch. Returns a
    /// violated promise.
    pub fn begin(&mut self, at: StepPlace, state: RankState) -> Option<String> {
        let start = &mut self.epochs.entry(at.epoch).or_default().start;
        let known = *start.get_or_insert(state);
        (known != state).then(|| format!("{at} goes on with {state:?}, others with {known:?}"))
    }

    /// Records that a rank has a result: no later epoch has had one, but for what was under way then.
    /// Returns a violated promise.
    pub fn note_result(&mut self, rank: u32, epoch: EpochId, now: TimeNs) -> Option<String> {
        let (last, since) = self.last;
        if epoch > last {
            self.last = (epoch, now);
        }
        let is_late = epoch < last && now > since + UNDER_WAY_MAX;
        is_late.then(|| format!("rank {rank}, epoch {epoch}: a result after one of epoch {last}"))
    }

    /// Records that a step of a rank is confirmed, after which the rank is in the state `after`: in one
    /// epoch alone, with the same state on all ranks. Returns a violated promise.
    pub fn confirm(&mut self, at: StepPlace, after: RankState) -> Option<String> {
        let (epoch, known) = *self.steps.entry(at.step).or_insert((at.epoch, after));
        if epoch != at.epoch {
            return Some(format!("{at} was confirmed in epoch {epoch} before"));
        }
        (known != after).then(|| format!("{at} ends with {after:?}, others {known:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a place in the first generation.
    fn place(rank: u32, epoch: u64, step: u64) -> StepPlace {
        let epoch = EpochId { generation: 0, number: Epoch(epoch) };
        StepPlace { rank, epoch, step, is_begun: true }
    }

    #[test]
    fn a_step_confirmed_in_two_epochs_is_found() {
        let mut history = StepHistory::default();
        let mut confirm = |rank, epoch, step, members: &[u32]| {
            let before = RankState { step, ..RankState::default() };
            let (at, members) = (place(rank, epoch, step), members.iter().copied().collect());
            history.confirm(at, before.after_step(at.epoch, &members))
        };
        assert_eq!(confirm(0, 1, 7, &[0, 1, 2]), None);
        assert_eq!(confirm(1, 1, 7, &[0, 1, 2]), None);
        assert_eq!(confirm(1, 2, 8, &[1, 2]), None);
        assert!(confirm(2, 2, 8, &[1]).is_some(), "another state");
        assert!(confirm(2, 2, 7, &[1, 2]).is_some(), "the first rank alone heard of it before");
    }

    #[test]
    fn two_parts_that_go_on_are_found() {
        let mut history = StepHistory::default();
        let mut note = |rank, epoch, second| {
            let now = TimeNs::from_ns(0) + Span::from_secs(second);
            history.note_result(rank, place(rank, epoch, 9).epoch, now).is_some()
        };
        assert_eq!([note(0, 3, 1), note(1, 4, 5), note(1, 4, 9), note(0, 3, 6)], [false; 4]);
        assert!(note(0, 3, 7));
        let all = [0, 1, 2].into();
        assert_eq!(history.enter(place(0, 5, 9), &all, None), None);
        assert!(history.enter(place(1, 5, 9), &[1, 2].into(), None).is_some());
        assert!(history.enter(place(2, 5, 9), &all, Some(Step(8))).is_some());
        let state = RankState { step: 9, ..RankState::default() };
        assert_eq!(history.begin(place(0, 5, 9), state), None);
        assert!(history.begin(place(1, 5, 9), RankState { digest: 1, ..state }).is_some());
    }
}
