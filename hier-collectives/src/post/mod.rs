//! Messages between a rank and the session: posts and commits one way, events the other.

mod committed;
mod epoch_id;
mod failure;
mod prepared_steps;
mod rank_event;
mod timing;

pub use committed::Committed;
pub use epoch_id::EpochId;
pub use failure::{Failure, FailureCode};
pub use prepared_steps::PreparedSteps;
pub use rank_event::RankEvent;
pub use timing::Timing;

use crate::descriptor::{Counts, Descriptor};
use crate::ids::{Epoch, Sequence, Step};
use units::Span;

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
