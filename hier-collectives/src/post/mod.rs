//! Messages between a rank and the session: posts and commits one way, events the other.

mod committed;
mod failure;

pub use committed::Committed;
pub use failure::{Failure, FailureCode};

use crate::descriptor::{Counts, Descriptor};
use crate::ids::{Epoch, Sequence, Step};
use crate::store::StoreAnswer;
use units::{Span, TimeNs};

/// A rank's request for one collective.
#[derive(Debug, Clone, PartialEq)]
pub struct Post {
    /// The epoch that the rank is in.
    pub epoch: Epoch,
    /// Number of the collective.
    pub sequence: Sequence,
    /// The operation and the buffer's shape.
    pub descriptor: Descriptor,
    /// The numbers of elements of its blocks, where it has any.
    pub counts: Counts,
    /// The rank's weight in an average, finite and not negative.
    pub weight: f64,
    /// Time that the rank waits for the other ranks to post.
    pub timeout: Span,
}

/// A rank's request to be notified when a step is complete in every region.
///
/// The step is all collectives that the rank posted since its last commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// The epoch that the rank is in.
    pub epoch: Epoch,
    /// The rank's number for the step.
    pub step: Step,
    /// Time that the rank waits for the other regions.
    pub timeout: Span,
}

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
    /// No epoch is under way. The gateway says what it waits for, whenever that changes.
    EpochAwaited {
        /// The gateways, files or links at fault, in at most [`Failure::MAX_TEXT_BYTES`] bytes.
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

/// Instants of one collective on the gateway's clock.
///
/// All gateways and ranks of one host read the same monotonic clock, so these are comparable there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timing {
    /// Instant at which the last local rank posted.
    pub posted: TimeNs,
    /// Instant at which the first segment was ready to be sent.
    pub wan_begin: TimeNs,
    /// Instant at which the last segment arrived.
    pub wan_end: TimeNs,
    /// Instant at which every local rank had the result.
    pub ready: TimeNs,
}
