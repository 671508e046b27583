//! The blocks of a part, by the numbers of their segments.

use crate::parts::{Block, BlockRanks};
use std::ops::Range;

/// The blocks of a part. Their segments are numbered through, in the order of the blocks.
#[derive(Debug)]
pub(super) struct BlockTable {
    /// Each block with the number of its first segment.
    blocks: Vec<(u32, Block)>,
    segments: u32,
}

impl BlockTable {
    /// Numbers the segments of some blocks.
    pub fn new(blocks: Vec<Block>) -> Self {
        let mut segments = 0u32;
        let number = |block: Block| {
            let first = segments;
            segments = segments.saturating_add(block.part.segment_count());
            (first, block)
        };
        let blocks = blocks.into_iter().map(number).collect();
        Self { blocks, segments }
    }

    /// Returns the number of segments.
    pub fn segment_count(&self) -> u32 {
        self.segments
    }

    /// Whether some of these ranks get a block.
    pub fn reaches_one_of(&self, ranks: &Range<u32>) -> bool {
        self.blocks.iter().any(|(_, block)| match block.receivers {
            BlockRanks::All => !ranks.is_empty(),
            BlockRanks::One(rank) => ranks.contains(&rank.0),
        })
    }

    /// Returns the block of a segment; none beyond the last segment.
    pub fn block_of(&self, index: u32) -> Option<&Block> {
        self.entry_of(index).map(|(_, block)| block)
    }

    /// Returns the bytes of a segment in the contributions; empty beyond the last segment.
    pub fn contribution_range(&self, index: u32) -> Range<u64> {
        self.entry_of(index).map_or(0..0, |(first, block)| block.part.segment_range(index - first))
    }

    /// Returns the bytes of a segment in the results; empty beyond the last segment.
    pub fn result_range(&self, index: u32) -> Range<u64> {
        self.entry_of(index).map_or(0..0, |(first, block)| block.result_range(index - first))
    }

    /// Returns the block of a segment and the number of the block's first segment; `None` beyond
    /// the last segment.
    fn entry_of(&self, index: u32) -> Option<&(u32, Block)> {
        let behind = self.blocks.partition_point(|(first, _)| *first <= index);
        self.blocks[..behind].last().filter(|_| index < self.segments)
    }
}
