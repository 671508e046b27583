//! Commits at the end of their epoch, and after it.

use super::in_doubt_commits::{InDoubtCommit, InDoubtCommits, RankInDoubt};
use crate::ids::{Epoch, RankId, Step};
use crate::post::{Failure, FailureCode};
use crate::session::collective::collectives::Collectives;
use crate::session::collective::commits::{Commits, PendingCommit};
use crate::session::epoch::epoch_state::EpochState;

/// Takes the commits that the end of an epoch leaves in doubt: those of steps whose results all local ranks
/// have. Such results that a rank has not committed are in doubt as well.
pub(in crate::session) fn take_commits_in_doubt(
    commits: &mut Commits,
    cause: &Failure,
    collectives: &Collectives,
    epoch: &EpochState,
) -> InDoubtCommits {
    let mut in_doubt = InDoubtCommits::of_epoch(epoch.id());
    let local = epoch.local();
    let ranks: Vec<RankId> = collectives.local_ranks().map(|(rank, _)| rank).collect();
    for rank in ranks {
        let pending = commits.take_prepared_commits(rank).into_iter();
        let pending = pending.map(|PendingCommit { step, range, begun, expiry }| {
            let failure = commits.commit_failure(step, &range, cause, local);
            InDoubtCommit { step, below: range.end, begun, expiry, failure }
        });
        let pending = pending.collect();
        let posts = collectives.local_rank(rank);
        let uncommitted = posts.and_then(|posts| commits.uncommitted_results(rank, posts));
        let named = uncommitted.and_then(|below| commits.step_named_below(below, local));
        let number = local.fabric().rank_number(rank);
        in_doubt.add_rank(number, RankInDoubt { pending, uncommitted }, named);
    }
    in_doubt
}

/// Builds the failure of a commit in an epoch that is over, with the reason of the epoch's end.
pub(in crate::session) fn late_commit_failure(
    step: Step,
    epoch: Epoch,
    state: &EpochState,
) -> Failure {
    let text = format!(
        "step {step}: epoch {epoch} is over; the next one says whether the step is complete in \
         every region"
    );
    let Some(end) = state.end_failure_of(epoch) else {
        return Failure::new(FailureCode::EpochEnded, text);
    };
    let at_fault = end.code.is_fault_of_posts();
    let code = if at_fault { end.code } else { FailureCode::EpochEnded };
    Failure::new(code, format!("{text}; it ended: {}", end.text))
}
