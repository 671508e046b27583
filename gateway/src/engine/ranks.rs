//! The attached ranks of one job.

use crate::events::{AttachmentId, RankEvents};
use hier_collectives::ids::RankId;
use hier_collectives::post::RankEvent;
use std::collections::BTreeMap;

/// The attachment of each rank that has one, and the queue of its events.
#[derive(Debug, Default)]
pub(super) struct AttachedRanks {
    attached: BTreeMap<RankId, (AttachmentId, RankEvents)>,
}

impl AttachedRanks {
    /// Makes an attachment the current one of its rank.
    pub fn attach(&mut self, rank: RankId, attachment: AttachmentId, events: RankEvents) {
        self.attached.insert(rank, (attachment, events));
    }

    /// Whether an attachment is still the current one of its rank.
    pub fn is_current_attachment(&self, rank: RankId, attachment: AttachmentId) -> bool {
        self.attached.get(&rank).is_some_and(|(current, _)| *current == attachment)
    }

    /// Removes an attachment; returns false if another had replaced it.
    pub fn detach(&mut self, rank: RankId, attachment: AttachmentId) -> bool {
        let current = self.is_current_attachment(rank, attachment);
        if current {
            self.attached.remove(&rank);
        }
        current
    }

    /// Iterates over the ranks that are attached.
    pub fn ids(&self) -> impl Iterator<Item = RankId> {
        self.attached.keys().copied()
    }

    /// Queues an event for the trainer of an attachment, if it is the current one of its rank.
    pub fn notify_attachment(&self, attachment: AttachmentId, event: RankEvent) {
        let current = self.attached.values().find(|(current, _)| *current == attachment);
        if let Some((_, events)) = current {
            events.send(event);
        }
    }

    /// Queues an event of a collective or epoch for a rank's trainer, if the rank is attached.
    pub fn notify(&self, rank: RankId, event: RankEvent) {
        if let Some((_, events)) = self.attached.get(&rank) {
            events.send(event);
        }
    }
}
