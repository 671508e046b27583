//! Cutting a buffer: into the trees' parts by share, each part into segments.

use crate::plan::Plan;
use std::ops::Range;

/// Parts and segments start at multiples of this many bytes, so that no cache line belongs
/// to two of them.
pub const CUT_BYTES: u64 = 64;

/// A tree's part of a buffer, in bytes, cut into segments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The bytes it covers.
    pub range: Range<u64>,
    segment_bytes: u64,
}

/// The parts of a buffer of `bytes` bytes, one per tree, in order, covering it exactly.
pub fn parts(plan: &Plan, bytes: u64) -> Vec<Part> {
    let total: u128 = plan.trees.iter().map(|tree| u128::from(tree.share)).sum();
    let segment_bytes = plan.segment.get().next_multiple_of(CUT_BYTES);
    let mut sum = 0u128;
    let mut start = 0u64;
    let cut = |tree: &crate::plan::Tree| {
        sum += u128::from(tree.share);
        let ideal = u64::try_from(u128::from(bytes) * sum / total).unwrap_or(bytes);
        let end = if sum == total { bytes } else { ideal / CUT_BYTES * CUT_BYTES };
        let range = start..end;
        start = end;
        Part { range, segment_bytes }
    };
    plan.trees.iter().map(cut).collect()
}

impl Part {
    /// Segments in the part: at least one, so that an empty part still says "here".
    pub fn segments(&self) -> u32 {
        let count = (self.range.end - self.range.start).div_ceil(self.segment_bytes);
        u32::try_from(count.max(1)).unwrap_or(u32::MAX)
    }

    /// The bytes of the buffer that segment `index` covers.
    pub fn segment(&self, index: u32) -> Range<u64> {
        let start = self.range.start + u64::from(index) * self.segment_bytes;
        start.min(self.range.end)..(start + self.segment_bytes).min(self.range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::GatewayId;
    use crate::plan::{Algorithm, Tree};
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use units::ByteCount;

    proptest! {
        #[test]
        fn segments_cover_the_buffer_once_and_in_order(
            shares in proptest::collection::vec(1u64..1000, 1..8),
            bytes in 0u64..10_000_000,
            segment in 64u64..2_000_000,
        ) {
            let tree = |share| Tree {
                share,
                crown: vec![GatewayId(0)],
                parents: BTreeMap::new(),
            };
            let plan = Plan {
                algorithm: Algorithm::Local,
                reason: String::new(),
                segment: ByteCount::new(segment),
                trees: shares.into_iter().map(tree).collect(),
            };
            let mut next = 0;
            for part in parts(&plan, bytes) {
                prop_assert_eq!(part.range.start, next);
                for index in 0..part.segments() {
                    let range = part.segment(index);
                    prop_assert_eq!(range.start, next);
                    prop_assert!(range.start.is_multiple_of(CUT_BYTES) || range.is_empty());
                    next = range.end;
                }
                prop_assert_eq!(next, part.range.end);
            }
            prop_assert_eq!(next, bytes);
        }
    }
}
