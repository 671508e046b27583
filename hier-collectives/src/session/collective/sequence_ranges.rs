//! A set of collectives, as ranges of their numbers.

use crate::ids::Sequence;
use std::collections::BTreeMap;
use std::ops::Range;

/// 1,024 ranges of sequences: the most in one set of collectives, a chosen limit of memory. With
/// one more, the lowest range is forgotten. One range suffices until a collective fails.
const SEQUENCE_RANGES_MAX: usize = 1024;

/// A set of collectives that only grows, such as those that are complete somewhere.
#[derive(Debug, Default)]
pub(in crate::session) struct SequenceRanges(BTreeMap<Sequence, Sequence>);

impl SequenceRanges {
    /// Adds a range of sequences and merges it with the ranges that it touches. Forgets the lowest
    /// range beyond [`SEQUENCE_RANGES_MAX`].
    pub fn insert(&mut self, range: Range<Sequence>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        let touching =
            |(from, below): (&Sequence, &Sequence)| (*below >= start).then_some((*from, *below));
        let met: Vec<_> = self.0.range(..=end).rev().map_while(touching).collect();
        for (from, below) in met {
            self.0.remove(&from);
            (start, end) = (start.min(from), end.max(below));
        }
        self.0.insert(start, end);
        if self.0.len() > SEQUENCE_RANGES_MAX {
            self.0.pop_first();
        }
    }

    /// Whether every sequence of a range is in the set.
    pub fn contains(&self, range: &Range<Sequence>) -> bool {
        range.is_empty() || self.first_missing_from(range.start) >= range.end
    }

    /// Returns the first sequence from `start` on that is not in the set.
    pub fn first_missing_from(&self, start: Sequence) -> Sequence {
        let before = self.0.range(..=start).next_back();
        before.map_or(start, |(_, below)| start.max(*below))
    }

    /// Iterates over the ranges of the set, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = Range<Sequence>> {
        self.0.iter().map(|(from, below)| *from..*below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn ranges_contain_exactly_the_inserted_set(ranges in proptest::collection::vec((0u64..60, 0u64..9), 0..30)) {
            let (mut kept, mut set) = (SequenceRanges::default(), BTreeSet::new());
            for (from, length) in ranges {
                kept.insert(Sequence(from)..Sequence(from + length));
                set.extend(from..from + length);
            }
            for from in 0..70 {
                let known = (from..).find(|n| !set.contains(n)).expect("finite");
                prop_assert_eq!(kept.first_missing_from(Sequence(from)), Sequence(known));
            }
            let all: Vec<u64> = kept.iter().flat_map(|range| range.start.0..range.end.0).collect();
            prop_assert_eq!(all, set.into_iter().collect::<Vec<_>>());
        }
    }
}
