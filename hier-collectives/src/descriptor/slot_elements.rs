//! Lengths of the two slots of a post, which differ in operations with blocks.

use super::counts::{PAIR_ELEMENTS_MAX, sum_of_pair_counts};
use super::{AgreedCounts, Counts, Descriptor, Pattern};
use crate::ids::RankId;

/// Numbers of elements of the slots of one rank's post.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotElements {
    /// Elements of the contribution.
    pub contribution: u64,
    /// Elements of the result.
    pub result: u64,
}

impl Descriptor {
    /// Checks the counts of a post of this descriptor in a job of `ranks` ranks.
    ///
    /// They must be of the descriptor's kind, and of a kind that the pattern takes. Lists must have
    /// one count for each rank. Counts by rank must add up to the elements, and even blocks must
    /// divide them. With counts by pair the elements must be 0.
    ///
    /// # Errors
    /// The reason why they do not fit, in words.
    pub fn check_slot_elements(&self, counts: &Counts, ranks: u32) -> Result<(), String> {
        let name = self.pattern.name();
        if counts.agreed() != self.counts {
            return Err(format!("{name}: counts that its descriptor does not name"));
        }
        let lists: &[&[u64]] = match counts {
            Counts::Even if !self.pattern.has_blocks() => return Ok(()),
            Counts::Even if self.elements.is_multiple_of(u64::from(ranks)) => return Ok(()),
            Counts::Even => {
                return Err(format!(
                    "{name}: {} elements are no multiple of {ranks} ranks; give counts",
                    self.elements
                ));
            }
            Counts::ByRank(list) if self.pattern.has_rank_counts() => &[list],
            Counts::ByPair { to, from } if self.pattern == Pattern::AllToAll => &[to, from],
            Counts::ByRank(_) | Counts::ByPair { .. } => {
                return Err(format!("{name} takes no such counts"));
            }
        };
        for list in lists {
            if list.len() != ranks as usize {
                return Err(format!("{name}: {} counts for {ranks} ranks", list.len()));
            }
            let sum = list.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
            if self.counts == AgreedCounts::ByPair && sum_of_pair_counts(list).is_none() {
                return Err(format!("{name}: counts of more than {PAIR_ELEMENTS_MAX} elements"));
            }
            let wanted =
                if self.counts == AgreedCounts::ByPair { None } else { Some(self.elements) };
            match sum {
                Some(sum) if wanted.is_none_or(|wanted| wanted == sum) => {}
                _ => return Err(format!("{name}: the counts do not add up to its elements")),
            }
        }
        if self.counts == AgreedCounts::ByPair && self.elements > 0 {
            return Err(format!("{name}: counts by pair stand for the elements, which are 0 then"));
        }
        Ok(())
    }

    /// Returns the elements of the slots of `rank`, one of `ranks`; `None` when the counts do not
    /// fit.
    pub fn slot_elements(&self, counts: &Counts, rank: RankId, ranks: u32) -> Option<SlotElements> {
        self.check_slot_elements(counts, ranks).ok()?;
        let whole = self.elements;
        let block = match counts {
            Counts::ByRank(list) => *list.get(rank.0 as usize)?,
            _ => whole / u64::from(ranks).max(1),
        };
        let at = |root: RankId| if root == rank { whole } else { 0 };
        let (contribution, result) = match (self.pattern, counts) {
            (Pattern::AllGather, _) => (block, whole),
            (Pattern::ReduceScatter, _) => (whole, block),
            (Pattern::Gather { to }, _) => (block, at(to)),
            (Pattern::Scatter { from }, _) => (at(from), block),
            (Pattern::Send { from }, _) => (at(from), whole - at(from)),
            (Pattern::AllToAll, Counts::ByPair { to, from }) => {
                (to.iter().sum(), from.iter().sum())
            }
            _ => (whole, whole),
        };
        Some(SlotElements { contribution, result })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::{ArrayShape, Dtype, ReduceOp};

    fn descriptor(pattern: Pattern, elements: u64, counts: &Counts) -> Descriptor {
        let (op, dtype, shape) = (ReduceOp::Sum, Dtype::F32, ArrayShape::FLAT);
        let counts = counts.agreed();
        Descriptor { op, dtype, elements, layout_hash: 0, shape, pattern, counts }
    }

    #[test]
    fn slots_have_the_lengths_of_their_blocks() {
        let listed = Counts::ByRank([5, 0, 1].into());
        let (root, rank) = (RankId(1), RankId(0));
        for (pattern, want) in [
            (Pattern::AllGather, (5, 6)),
            (Pattern::ReduceScatter, (6, 5)),
            (Pattern::Gather { to: root }, (5, 0)),
            (Pattern::Gather { to: rank }, (5, 6)),
            (Pattern::Scatter { from: root }, (0, 5)),
            (Pattern::Scatter { from: rank }, (6, 5)),
        ] {
            let found = descriptor(pattern, 6, &listed).slot_elements(&listed, rank, 3);
            assert_eq!(found.map(|slots| (slots.contribution, slots.result)), Some(want));
        }
        let pairs = Counts::ByPair { to: [1, 2, 3].into(), from: [0, 0, 4].into() };
        let found = descriptor(Pattern::AllToAll, 0, &pairs).slot_elements(&pairs, rank, 3);
        assert_eq!(found, Some(SlotElements { contribution: 6, result: 4 }));
        for (from, want) in [(rank, (6, 0)), (root, (0, 6))] {
            let send = descriptor(Pattern::Send { from }, 6, &Counts::Even);
            let found = send.slot_elements(&Counts::Even, rank, 2);
            assert_eq!(found.map(|slots| (slots.contribution, slots.result)), Some(want));
        }
        let even = descriptor(Pattern::AllGather, 6, &Counts::Even);
        let found = even.slot_elements(&Counts::Even, rank, 3);
        assert_eq!(found, Some(SlotElements { contribution: 2, result: 6 }));
    }

    #[test]
    fn counts_that_do_not_fit_are_refused() {
        let by_rank = |list: &[u64]| Counts::ByRank(list.into());
        let pairs = |list: &[u64]| Counts::ByPair { to: list.into(), from: list.into() };
        for (pattern, elements, counts) in [
            (Pattern::AllGather, 7, Counts::Even),
            (Pattern::AllGather, 6, by_rank(&[1, 2])),
            (Pattern::AllGather, 6, by_rank(&[1, 2, 4])),
            (Pattern::AllGather, 0, by_rank(&[u64::MAX, 1, 0])),
            (Pattern::AllReduce, 6, by_rank(&[1, 2, 3])),
            (Pattern::AllToAll, 6, by_rank(&[1, 2, 3])),
            (Pattern::AllToAll, 6, pairs(&[1, 2, 3])),
            (Pattern::AllToAll, 0, pairs(&[1, 2])),
            (Pattern::AllToAll, 0, pairs(&[1 << 32, 1 << 32, 1])),
            (Pattern::Scatter { from: RankId(0) }, 0, pairs(&[1, 2, 3])),
        ] {
            let refused = descriptor(pattern, elements, &counts).check_slot_elements(&counts, 3);
            assert!(refused.is_err(), "{pattern} {elements} {counts:?}");
        }
        let other = descriptor(Pattern::AllGather, 6, &Counts::Even);
        assert!(other.check_slot_elements(&by_rank(&[1, 2, 3]), 3).is_err());
    }
}
