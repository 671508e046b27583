//! The data of a plan: its algorithm, its segments and its trees.
//!
//! The planner makes it, the session follows it, and the wire carries it. It calls nothing.

use super::tree::{Tree, TreeDirection, TreeRole};
use crate::ids::{GatewayId, RegionId};
use std::collections::BTreeMap;
use units::ByteCount;

/// The plan of an epoch: the trees over which every collective of the epoch runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The algorithm chosen.
    pub algorithm: PlanAlgorithm,
    /// The reason for the choice, for people; no part of [`Plan::encoding_hash`].
    pub reason: String,
    /// Bytes of a segment, the unit of pipelining.
    pub segment: ByteCount,
    /// The largest buffer that takes the express tree; 0 where there is none.
    pub express_bytes: ByteCount,
    /// The trees. Those with a share divide a buffer; one without is the express tree.
    pub trees: Vec<Tree>,
    /// The trees that divide the blocks of each region which all ranks get, or contribute to, in the
    /// order of regions. None where each region's blocks take one tree, which follows from `trees`.
    pub block_trees: Vec<BlockTree>,
    /// The least bytes of all blocks together that take them: with fewer, the delay of more hops would
    /// take longer than ports save. 0 without such trees.
    pub block_bytes_min: ByteCount,
}

/// A tree over regions for a part of one region's blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockTree {
    /// The region whose blocks they are.
    pub root: RegionId,
    /// Part of its blocks, relative to the shares of its other trees.
    pub share: u32,
    /// The parent of each other region.
    pub parents: BTreeMap<RegionId, RegionId>,
}

/// The algorithm by which regions exchange partials and results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum PlanAlgorithm {
    /// One region; nothing crosses the long haul.
    Local = 1,
    /// Two regions; both send their partial, and both add.
    Swap = 2,
    /// Each region owns a share, reduces it and sends the result to all others.
    Direct = 3,
    /// Several trees, in which some regions relay for pairs without a good link.
    Relay = 4,
    /// One region reduces for all.
    Hub = 5,
}

impl PlanAlgorithm {
    /// Returns the algorithm's name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Swap => "swap",
            Self::Direct => "direct",
            Self::Relay => "relay",
            Self::Hub => "hub",
        }
    }
    /// Returns the algorithm with wire code `code`, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        let all = [Self::Local, Self::Swap, Self::Direct, Self::Relay, Self::Hub];
        all.into_iter().find(|known| *known as u8 == code)
    }
}

impl Plan {
    /// Makes a plan of these trees, without an express tree and without trees of blocks.
    pub(super) fn of_trees(
        algorithm: PlanAlgorithm,
        reason: String,
        segment: ByteCount,
        trees: Vec<Tree>,
    ) -> Self {
        Self {
            algorithm,
            reason,
            segment,
            express_bytes: ByteCount::default(),
            trees,
            block_trees: vec![],
            block_bytes_min: ByteCount::default(),
        }
    }

    /// Returns the role of `gateway` in each tree of the plan.
    pub fn roles(&self, gateway: GatewayId) -> Vec<TreeRole> {
        self.trees.iter().map(|tree| tree.role(gateway)).collect()
    }

    /// Whether some partials and results take separate trees.
    pub fn has_separate_trees(&self) -> bool {
        self.trees.iter().any(|tree| tree.direction == TreeDirection::Results)
    }
}
