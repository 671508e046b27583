//! Events that tell ranks of an epoch that began, or of the end of their group.

use super::collectives::Collectives;
use crate::ids::{Epoch, RankId, Step};
use crate::post::{Failure, RankEvent};
use crate::session::action_queue::ActionQueue;

impl Collectives {
    /// Notifies the attached ranks that an epoch began. `committed` is the last step known to be
    /// complete everywhere, `ended` the reason why the epoch before ended.
    pub fn notify_epoch(
        &self,
        epoch: Epoch,
        committed: Option<Step>,
        ended: Option<&Failure>,
        actions: &mut ActionQueue,
    ) {
        for (rank, local) in self.ranks.iter().filter(|(_, local)| local.attached) {
            let (next, ended) = (local.next, ended.cloned());
            actions.notify(*rank, RankEvent::EpochBegan { epoch, next, committed, ended });
        }
    }

    /// Notifies all attached ranks that the group is over, for this reason.
    pub fn notify_disbanded(&self, failure: &Failure, actions: &mut ActionQueue) {
        for (rank, _) in self.ranks.iter().filter(|(_, local)| local.attached) {
            actions.notify(*rank, RankEvent::Disbanded { failure: failure.clone() });
        }
    }

    /// Notifies a rank that attached just now of the epoch under way, with the sequence that the
    /// rank posts next.
    pub fn notify_rank_of_epoch(
        &self,
        rank: RankId,
        epoch: Epoch,
        committed: Option<Step>,
        actions: &mut ActionQueue,
    ) {
        let Some(local) = self.ranks.get(&rank) else { return };
        let event = RankEvent::EpochBegan { epoch, next: local.next, committed, ended: None };
        actions.notify(rank, event);
    }
}
