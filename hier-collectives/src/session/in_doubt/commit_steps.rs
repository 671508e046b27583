//! The steps that ranks of an epoch commit, by their last collectives.

use crate::ids::{RankId, Sequence, Step};
use crate::post::{Committed, Failure, FailureCode};
use crate::session::collective::recent_collectives::COLLECTIVES_AHEAD_MAX;
use crate::session::collective::sequence_ranges::SequenceRanges;
use crate::session::local_gateway::LocalGateway;
use std::collections::BTreeMap;
use std::ops::Range;

/// 1,024 collectives with which some rank's commit ends: for each, a gateway compares the steps
/// that ranks name. With one more, the lowest is forgotten. No rank is further ahead of another
/// than 1,024 collectives.
const COMPARED_ENDS_MAX: usize = COLLECTIVES_AHEAD_MAX as usize;

/// A rank's commit of a step, as the rank's gateway tells all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::session) struct RankCommit {
    pub rank: RankId,
    pub step: Step,
    /// The collectives that the rank posted since its last commit.
    pub range: Range<Sequence>,
}

/// The first known commit, of any rank of this epoch, for each last collective of a commit.
#[derive(Debug, Default)]
pub(in crate::session) struct CommitStepsByEnd(BTreeMap<Sequence, FirstCommit>);

#[derive(Debug, Clone, Copy)]
struct FirstCommit {
    rank: RankId,
    step: Step,
    /// The latest first collective of the commits that end here.
    start: Sequence,
}

/// A step that a rank has named in its commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::session) struct NamedStep {
    /// The rank's name in texts.
    rank: String,
    step: Step,
}

impl NamedStep {
    /// Makes the step that a rank of the local gateway's fabric has named.
    pub fn of_rank(rank: RankId, step: Step, local: &LocalGateway) -> Self {
        Self { rank: local.rank_name(rank), step }
    }

    /// Returns the step.
    pub fn step(&self) -> Step {
        self.step
    }
}

/// Builds the failure of two commits that end below the same collective, and name different steps.
pub(super) fn step_disagreement_failure(
    below: Sequence,
    one: &NamedStep,
    other: &NamedStep,
) -> Failure {
    let text = format!(
        "ranks disagree on the step that ends with collective {}: {} commits step {}, {} commits step \
         {}; compare steps by `agree` or `resume`",
        below.0 - 1,
        one.rank,
        one.step,
        other.rank,
        other.step
    );
    Failure::new(FailureCode::Disagreement, text)
}

impl CommitStepsByEnd {
    /// Compares a commit with the first one that ends with the same collective. Returns the failure
    /// of both if they name different steps, else `None`. A commit without collectives is not
    /// compared.
    pub fn compare(&mut self, commit: &RankCommit, local: &LocalGateway) -> Option<Failure> {
        let RankCommit { rank, step, range } = commit;
        if range.is_empty() {
            return None;
        }
        let new = FirstCommit { rank: *rank, step: *step, start: range.start };
        let first = self.0.entry(range.end).or_insert(new);
        first.start = first.start.max(range.start);
        let first = (first.rank, first.step);
        if self.0.len() > COMPARED_ENDS_MAX {
            self.0.pop_first();
        }
        if first.1 == *step {
            return None;
        }
        // The order of ranks makes one text, whoever compares.
        let (one, other) = (first.min((*rank, *step)), first.max((*rank, *step)));
        let [one, other] = [one, other].map(|(rank, step)| NamedStep::of_rank(rank, step, local));
        Some(step_disagreement_failure(range.end, &one, &other))
    }

    /// Returns the first known commit that ends below this collective; `None` if there is none.
    pub fn named_below(&self, below: Sequence, local: &LocalGateway) -> Option<NamedStep> {
        let first = self.0.get(&below)?;
        Some(NamedStep::of_rank(first.rank, first.step, local))
    }

    /// Returns one past the last collective of the last step that is named here.
    pub fn last_end(&self) -> Sequence {
        self.0.last_key_value().map_or_else(Sequence::default, |(below, _)| *below)
    }

    /// Returns the steps whose collectives are all in `done` and before `below`, each after one past its
    /// last collective. Steps up to the last `committed` one are left out, since others know them as well.
    pub fn prepared(
        &self,
        done: &SequenceRanges,
        committed: Option<Committed>,
        below: Sequence,
    ) -> Vec<(Sequence, Step)> {
        let after = committed.map_or(Sequence::default(), |committed| committed.below);
        let later = self.0.range(after..).filter(|(end, _)| **end > after && **end <= below);
        let prepared = later.filter(|(end, first)| done.contains(&(first.start..**end)));
        prepared.map(|(end, first)| (*end, first.step)).collect()
    }
}
