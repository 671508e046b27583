//! The events that a session reports to a rank.

use super::failure::Failure;
use super::timing::Timing;
use crate::ids::{Epoch, RankId, Sequence, Step};
use crate::store::StoreAnswer;

/// An event that the session reports to a rank.
#[derive(Debug, Clone, PartialEq)]
pub enum RankEvent {
    /// An epoch began. Its collectives are numbered from `next` on.
    EpochBegan {
        /// The epoch.
        epoch: Epoch,
        /// Number of the first collective.
        next: Sequence,
        /// The last step that some gateway knows to be complete in every region, also when
        /// this rank's commit failed.
        committed: Option<Step>,
        /// Why the epoch before ended; none for a rank that was not in it.
        ended: Option<Failure>,
    },
    /// The job goes on with these ranks from its next epoch on, which number 0 and up there in this
    /// order.
    WorldChanged {
        /// The ranks by their numbers in the fabric, ascending, this one among them.
        ranks: Vec<RankId>,
    },
    /// No epoch is under way. The gateway says what it waits for, whenever that changes.
    EpochAwaited {
        /// The gateways, files or links at fault, in at most [`Failure::TEXT_BYTES_MAX`] bytes.
        why: String,
    },
    /// The group is over for the rank: its ranks do not agree on it, or it cannot be made.
    Disbanded {
        /// Why.
        failure: Failure,
    },
    /// The result is in the rank's result slot and may be read. The gateway may still forward it
    /// from there.
    ResultReady {
        /// The collective.
        sequence: Sequence,
        /// Instants of the collective.
        timing: Timing,
    },
    /// Both slots may be written again, since every receipt has arrived.
    ContributionFree {
        /// The collective.
        sequence: Sequence,
    },
    /// The collective failed. Both slots belong to the rank again.
    Failed {
        /// The collective.
        sequence: Sequence,
        /// Why.
        failure: Failure,
    },
    /// All ranks of every region have the step's results.
    Committed {
        /// The step.
        step: Step,
    },
    /// It is unknown here whether every region has the step's results. The next epoch reports
    /// whether some gateway knows.
    CommitFailed {
        /// The step.
        step: Step,
        /// The reason, and the steps that each region completed.
        failure: Failure,
    },
    /// The job's store has answered a request of the rank.
    StoreAnswered {
        /// The rank's number for the request.
        number: u64,
        /// The answer.
        answer: StoreAnswer,
    },
}
