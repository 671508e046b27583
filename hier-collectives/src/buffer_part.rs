//! Parts of a buffer: one for each tree by share, and each part divided into segments.
//!
//! Every gateway computes it from the plan, so that all agree without a message.

use crate::plan::{Plan, Tree, TreeDirection};
use std::ops::Range;

/// 64 bytes, one cache line: the parts of a buffer for each tree, and their segments, start at
/// multiples of 64 bytes. Ends of parts are rounded down, lengths of segments up. So no cache line
/// belongs to two parts or segments.
/// Tested by `segments_cover_the_buffer_once_and_in_order`.
pub const CUT_BYTES: u64 = 64;

/// A tree's part of a buffer, in bytes, cut into segments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferPart {
    /// The bytes of the buffer that the part covers.
    pub range: Range<u64>,
    segment_bytes: u64,
    /// Whether the part has a segment although it is empty: an empty buffer is announced too.
    announces: bool,
}

/// Divides a buffer of `bytes` bytes into one part for each tree of the plan, in order and without
/// gaps.
///
/// A tree for results has the part of the tree for partials before it. A buffer up to the plan's
/// express limit goes to the express tree whole, if there is one. An empty part has no segment. Of
/// an empty buffer one part has one segment: that of the express tree, or else the first.
pub fn divide_into_buffer_parts(plan: &Plan, bytes: u64) -> Vec<BufferPart> {
    let express = plan.uses_express(bytes);
    let weight = |tree: &Tree| match (tree.direction, express) {
        (TreeDirection::Results, _) => 0,
        (_, true) => u128::from(tree.is_express()),
        (_, false) => u128::from(tree.share),
    };
    let total: u128 = plan.trees.iter().map(weight).sum();
    let segment_bytes = plan.segment.get().next_multiple_of(CUT_BYTES);
    let (mut sum, mut start) = (0u128, 0u64);
    let mut announces = bytes == 0;
    let mut parts: Vec<BufferPart> = Vec::with_capacity(plan.trees.len());
    let mut cut = |tree: &Tree| {
        let weight = weight(tree);
        sum += weight;
        let ideal = u64::try_from(u128::from(bytes) * sum / total).unwrap_or(bytes);
        let end = if sum == total { bytes } else { ideal / CUT_BYTES * CUT_BYTES };
        let range = start..end;
        start = end;
        let announces = weight > 0 && std::mem::take(&mut announces);
        BufferPart { range, segment_bytes, announces }
    };
    for tree in &plan.trees {
        let part = match parts.last().filter(|_| tree.direction == TreeDirection::Results) {
            Some(partials) => partials.clone(),
            None => cut(tree),
        };
        parts.push(part);
    }
    parts
}

impl BufferPart {
    /// Returns a part with these bytes of a buffer, cut into segments of the plan; without segments
    /// where it is empty.
    pub fn of_block(range: Range<u64>, plan: &Plan) -> Self {
        let segment_bytes = plan.segment.get().next_multiple_of(CUT_BYTES);
        Self { range, segment_bytes, announces: false }
    }

    /// Returns the part with one segment if it is empty, so that its receiver hears of it.
    pub fn announced(self) -> Self {
        Self { announces: true, ..self }
    }

    /// Returns an empty part at the start of this one, without segments.
    pub fn without_bytes(self) -> Self {
        Self { range: self.range.start..self.range.start, announces: false, ..self }
    }

    /// Returns the start of the segment, or the end of the part, that is nearest to byte `at` of the
    /// part; both count from the part's first byte.
    pub fn nearest_cut(&self, at: u64) -> u64 {
        let bytes = self.range.end - self.range.start;
        let nearest = (at + self.segment_bytes / 2) / self.segment_bytes * self.segment_bytes;
        if at >= bytes { bytes } else { nearest.min(bytes) }
    }

    /// Returns the part with these bytes of it alone, counted from its first byte.
    pub fn between(&self, from: u64, to: u64) -> Self {
        Self { range: self.range.start + from..self.range.start + to, ..self.clone() }
    }

    /// Returns the number of segments of the part.
    pub fn segment_count(&self) -> u32 {
        let count = (self.range.end - self.range.start).div_ceil(self.segment_bytes);
        u32::try_from(count.max(u64::from(self.announces))).unwrap_or(u32::MAX)
    }

    /// Returns the length of the part's longest segment, in bytes.
    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes.min(self.range.end - self.range.start)
    }

    /// Returns the range of bytes of the buffer that segment `index` of the part covers.
    pub fn segment_range(&self, index: u32) -> Range<u64> {
        let start = self.range.start + u64::from(index) * self.segment_bytes;
        start.min(self.range.end)..(start + self.segment_bytes).min(self.range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::GatewayId;
    use crate::plan::PlanAlgorithm;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use units::ByteCount;

    proptest! {
        #[test]
        fn segments_cover_the_buffer_once_and_in_order(
            shares in proptest::collection::vec(1u64..1000, 1..8),
            bytes in 0u64..10_000_000,
            segment in 64u64..2_000_000,
            express in proptest::option::of(0u64..4_000_000),
        ) {
            let tree = |share| Tree {
                share,
                direction: TreeDirection::Both,
                roots: vec![GatewayId(0)],
                parents: BTreeMap::new(),
            };
            let plan = Plan {
                algorithm: PlanAlgorithm::Local,
                reason: String::new(),
                segment: ByteCount::new(segment),
                express_bytes: ByteCount::new(express.unwrap_or(0)),
                block_trees: vec![],
                block_bytes_min: ByteCount::default(),
                trees: shares.into_iter().chain(express.map(|_| 0)).map(tree).collect(),
            };
            let mut next = 0;
            for part in divide_into_buffer_parts(&plan, bytes) {
                prop_assert_eq!(part.range.start, next);
                for index in 0..part.segment_count() {
                    let range = part.segment_range(index);
                    prop_assert_eq!(range.start, next);
                    prop_assert!(range.start.is_multiple_of(CUT_BYTES) || range.is_empty());
                    next = range.end;
                }
                prop_assert_eq!(next, part.range.end);
            }
            prop_assert_eq!(next, bytes);
            let parts = divide_into_buffer_parts(&plan, bytes);
            prop_assert!(parts.iter().map(BufferPart::segment_count).sum::<u32>() > 0, "no part has a segment");
            let last = parts.last().map_or(0, BufferPart::segment_count);
            let takes = express.is_some_and(|most| bytes <= most);
            prop_assert_eq!(express.is_some() && last > 0, takes);
        }
    }
}
