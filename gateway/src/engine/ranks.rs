//! Attached trainers.

use crate::local::server::{AttachmentId, RankEvents};
use hier_collectives::ids::RankId;
use hier_collectives::post::RankEvent;
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    attached: BTreeMap<RankId, (AttachmentId, RankEvents)>,
}

impl Ranks {
    /// A trainer speaks for a rank from now on.
    pub fn attach(&mut self, rank: RankId, attachment: AttachmentId, events: RankEvents) {
        self.attached.insert(rank, (attachment, events));
    }

    /// Whether this attachment still speaks for the rank.
    pub fn is_current(&self, rank: RankId, attachment: AttachmentId) -> bool {
        self.attached.get(&rank).is_some_and(|(current, _)| *current == attachment)
    }

    /// False when another attachment had taken over.
    pub fn detach(&mut self, rank: RankId, attachment: AttachmentId) -> bool {
        let current = self.is_current(rank, attachment);
        if current {
            self.attached.remove(&rank);
        }
        current
    }

    /// Tells a rank; one that is gone hears nothing.
    pub fn notify(&self, rank: RankId, event: RankEvent) {
        if let Some((_, events)) = self.attached.get(&rank) {
            events.send(event);
        }
    }
}
