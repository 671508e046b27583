//! A block: bytes that travel whole, from the contributions of some ranks to the results of some.

use crate::buffer_part::BufferPart;
use crate::ids::RankId;
use std::ops::Range;

/// The ranks at one end of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockRanks {
    /// All ranks of the job.
    All,
    /// One rank.
    One(RankId),
}

/// Bytes of the contributions of some ranks that become bytes of the results of some ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The bytes of each contribution, cut into segments.
    pub part: BufferPart,
    /// The first byte in each result.
    pub result_start: u64,
    /// The ranks whose contributions these are.
    pub contributors: BlockRanks,
    /// The ranks that get the result.
    pub receivers: BlockRanks,
}

impl BlockRanks {
    /// Whether a rank is one of these.
    pub fn contains(self, rank: RankId) -> bool {
        match self {
            Self::All => true,
            Self::One(one) => one == rank,
        }
    }
}

impl Block {
    /// Returns the bytes of each result that segment `index` of the block becomes.
    pub fn result_range(&self, index: u32) -> Range<u64> {
        let Range { start, end } = self.part.segment_range(index);
        let moved = |at: u64| at - self.part.range.start + self.result_start;
        moved(start)..moved(end)
    }

    /// Returns the block with these bytes of it alone, counted from its first byte.
    pub fn between(&self, from: u64, to: u64) -> Self {
        let part = self.part.between(from, to);
        Self { part, result_start: self.result_start + from, ..self.clone() }
    }

    /// Returns the length of the block in bytes.
    pub fn bytes(&self) -> u64 {
        self.part.range.end - self.part.range.start
    }
}
