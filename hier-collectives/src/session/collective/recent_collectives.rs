//! Facts about the collectives that ended last.

use crate::ids::Sequence;
use std::collections::{BTreeMap, VecDeque};

/// 1,024 collectives, counted from the oldest that some rank has not posted: a rank or peer that
/// names a later one ends the epoch. The limit of memory is chosen.
/// Tested by `ranks_too_far_apart_end_the_epoch`.
pub(in crate::session) const COLLECTIVES_AHEAD_MAX: u64 = 1024;

/// A fact about each of the last [`COLLECTIVES_AHEAD_MAX`] collectives that were added.
#[derive(Debug)]
pub(in crate::session) struct RecentCollectives<T> {
    facts: BTreeMap<Sequence, T>,
    /// The collectives in the order in which they came: that of their numbers, but for sends.
    order: VecDeque<Sequence>,
}

impl<T> Default for RecentCollectives<T> {
    /// Makes an empty collection.
    fn default() -> Self {
        Self { facts: BTreeMap::new(), order: VecDeque::new() }
    }
}

impl<T> RecentCollectives<T> {
    /// Adds the fact about a collective, in place of the oldest one if there are too many.
    pub fn insert(&mut self, sequence: Sequence, fact: T) {
        if self.facts.insert(sequence, fact).is_some() {
            return;
        }
        self.order.push_back(sequence);
        if self.order.len() as u64 > COLLECTIVES_AHEAD_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.facts.remove(&oldest);
        }
    }

    /// Returns the facts by collective.
    pub fn facts(&self) -> &BTreeMap<Sequence, T> {
        &self.facts
    }

    /// Forgets all collectives.
    pub fn clear(&mut self) {
        self.facts.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{RankId, Tag};
    use crate::sequence::SendSeries;

    #[test]
    fn the_oldest_goes_first_whatever_its_number() {
        let mut recent = RecentCollectives::default();
        let numbered = |place| SendSeries { from: RankId(1), tag: Tag(9) }.sequence_at(place);
        recent.insert(numbered(0), ());
        (0..COLLECTIVES_AHEAD_MAX).for_each(|place| recent.insert(Sequence(place), ()));
        assert!(!recent.facts().contains_key(&numbered(0)), "it came first");
        recent.insert(numbered(1), ());
        recent.insert(numbered(1), ());
        assert_eq!(recent.facts().len() as u64, COLLECTIVES_AHEAD_MAX);
        assert_eq!(recent.facts().keys().next(), Some(&Sequence(1)));
        recent.clear();
        assert!(recent.facts().is_empty());
    }
}
