//! A session gives way to the session of other ranks of its job, and takes over from it.
//!
//! A job has a session for each set of regions that it goes on with. One of them enters epochs at a
//! time. The next one goes on with the numbers of the one before.

use super::session_events::Session;
use crate::ids::{Epoch, Sequence};
use crate::mesh::MeshGraph;
use crate::post::{Committed, Failure};
use std::sync::Arc;
use units::TimeNs;

/// How far a job has come, as the session knows it that gives way to another one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionProgress {
    /// The last epoch.
    pub epoch: Epoch,
    /// One past the highest sequence.
    pub next: Sequence,
    /// The last step that is complete in every region of the world then.
    pub committed: Option<Committed>,
    /// The last epoch that ended, and why.
    pub ended: Option<(Epoch, Failure)>,
}

impl Session {
    /// Returns how far the job has come here.
    pub fn progress(&self) -> SessionProgress {
        SessionProgress {
            epoch: self.epoch.number(),
            next: self.collectives.next_sequence(),
            committed: self.commits.committed(),
            ended: self.epoch.last_end().cloned(),
        }
    }

    /// Enters no epoch from now on, until the session takes over again. The epoch under way ends with
    /// `failure`.
    pub fn handle_suspend(&mut self, failure: Failure, now: TimeNs) {
        self.epoch.suspend();
        self.end_epoch(failure, None, now);
    }

    /// Enters no epoch, since the job has begun with no world yet.
    pub fn suspend_before_start(&mut self) {
        self.epoch.suspend();
    }

    /// Takes over from the session that has come so far, over the connections that are up. All gateways
    /// of the session repeat their messages, since earlier ones may have met nobody.
    pub fn handle_resume(
        &mut self,
        progress: SessionProgress,
        graph: &Arc<MeshGraph>,
        now: TimeNs,
    ) {
        let SessionProgress { epoch, next, committed, ended } = progress;
        self.epoch.resume(epoch, ended);
        self.collectives.raise_next_sequence(next);
        self.commits.raise_committed(committed);
        self.handle_connections_before_start(graph, now);
    }
}

impl SessionProgress {
    /// Returns how far the job has come if either has come so far.
    pub fn max(self, other: Self) -> Self {
        let number = |progress: &Self| progress.ended.as_ref().map(|(epoch, _)| *epoch);
        let is_later = number(&self) >= number(&other);
        Self {
            epoch: self.epoch.max(other.epoch),
            next: self.next.max(other.next),
            committed: self.committed.max(other.committed),
            ended: if is_later { self.ended } else { other.ended },
        }
    }
}
