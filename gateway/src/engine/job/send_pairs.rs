//! The groups of two ranks that send to each other, apart from the groups that ranks ask for.
//!
//! A rank may send to every other one, so pairs do not count among the 4,096 groups of a job. An idle
//! pair has no part in links either. So it does not lengthen the stall deadlines of others.

use hier_collectives::ids::GroupId;
use std::collections::BTreeSet;

/// 32,768 pairs: the most that a job may have at a gateway. The first send of one more is refused.
/// All pairs of 256 ranks are 32,640. At 20 KiB each they take up to 640 MiB.
pub(super) const SEND_PAIRS_MAX: usize = 32_768;

/// The pairs of a job at a gateway.
#[derive(Debug, Default)]
pub(super) struct SendPairs {
    all: BTreeSet<GroupId>,
    /// Those with a send under way.
    busy: BTreeSet<GroupId>,
    /// The most that were busy at one time since none was.
    busy_at_once: usize,
}

impl SendPairs {
    /// Adds a pair, in which no send is under way.
    pub fn add_pair(&mut self, id: GroupId) {
        self.all.insert(id);
    }

    /// Removes a group, whether or not it is a pair.
    pub fn remove_pair(&mut self, id: GroupId) {
        self.all.remove(&id);
        self.note_pair(id, true);
    }

    /// Notes whether a group has no work under way. Does nothing for a group that is no pair.
    pub fn note_pair(&mut self, id: GroupId, is_idle: bool) {
        if is_idle {
            self.busy.remove(&id);
        } else if self.all.contains(&id) {
            self.busy.insert(id);
        }
        let busy = self.busy.len();
        self.busy_at_once = if busy == 0 { 0 } else { self.busy_at_once.max(busy) };
    }

    /// Returns the number of pairs.
    pub fn pair_count(&self) -> usize {
        self.all.len()
    }

    /// Returns the number of pairs that take part of a link: the most that had sends under way at
    /// one time since none had. A part that shrank with each send's end would shorten the deadlines
    /// of those under way.
    pub fn busy_pairs(&self) -> usize {
        self.busy_at_once
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_pairs_share_links_until_all_are_idle() {
        let mut pairs = SendPairs::default();
        for id in 1..=3 {
            pairs.add_pair(GroupId(id));
        }
        assert_eq!((pairs.pair_count(), pairs.busy_pairs()), (3, 0), "idle pairs have none");
        pairs.note_pair(GroupId(9), false);
        assert_eq!(pairs.busy_pairs(), 0, "a group is no pair");
        pairs.note_pair(GroupId(1), false);
        pairs.note_pair(GroupId(2), false);
        pairs.note_pair(GroupId(1), true);
        assert_eq!(pairs.busy_pairs(), 2, "two were busy at once");
        pairs.remove_pair(GroupId(2));
        assert_eq!((pairs.pair_count(), pairs.busy_pairs()), (2, 0));
    }
}
