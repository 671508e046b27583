//! How far a job has come, when one of its sessions takes over from another.
//!
//! A job has a session for each set of regions that it goes on with. One of them enters epochs at a
//! time. The next one goes on with the numbers of the one before.

use crate::ids::{Epoch, Sequence};
use crate::post::{Committed, Failure, PreparedSteps};

/// How far a job has come, as the session knows it that gives way to another one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionProgress {
    /// The last epoch.
    pub epoch: Epoch,
    /// One past the highest sequence.
    pub next: Sequence,
    /// The last step that is complete in every region of the world then.
    pub committed: Option<Committed>,
    /// The later steps that a lost gateway may know to be complete.
    pub prepared: PreparedSteps,
    /// The last epoch that ended, and why.
    pub ended: Option<(Epoch, Failure)>,
}

impl SessionProgress {
    /// Returns the further of both in each field: epoch, sequence and committed step. Prepared
    /// steps are of the later epoch, as are the ended one and its reason.
    pub fn max(self, other: Self) -> Self {
        let number = |progress: &Self| progress.ended.as_ref().map(|(epoch, _)| *epoch);
        let is_prepared_later = self.prepared.epoch >= other.prepared.epoch;
        let is_later = number(&self) >= number(&other);
        Self {
            epoch: self.epoch.max(other.epoch),
            next: self.next.max(other.next),
            committed: self.committed.max(other.committed),
            prepared: if is_prepared_later { self.prepared } else { other.prepared },
            ended: if is_later { self.ended } else { other.ended },
        }
    }
}
