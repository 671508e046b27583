//! Operations as a plan sees them: by gateways, and as phases along a tree.
//!
//! [`crate::descriptor::Pattern`] names the same operations by ranks.

use crate::ids::GatewayId;
use crate::plan::Tree;

/// A collective operation over the gateways of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Partials go up and results come down.
    AllReduce,
    /// Partials go up to one gateway.
    Reduce {
        /// Gateway of the rank that gets the result.
        to: GatewayId,
    },
    /// Data come down from one gateway.
    Broadcast {
        /// Gateway of the rank that has the data.
        from: GatewayId,
    },
    /// Both phases without data: no rank is done before all ranks have begun.
    Barrier,
    /// Each gateway's data come down from it to all.
    AllGather,
    /// Partials go up to each gateway, for its ranks.
    ReduceScatter,
    /// Each gateway's data go to one gateway.
    Gather {
        /// Gateway of the rank that gets the data.
        to: GatewayId,
    },
    /// Data go from one gateway to each other one.
    Scatter {
        /// Gateway of the rank that has the data.
        from: GatewayId,
    },
    /// Data go from each gateway to each other one.
    AllToAll,
    /// Data go from one gateway to one other, which alone take part.
    Send {
        /// Gateway of the rank that has the data.
        from: GatewayId,
        /// Gateway of the rank that gets the data.
        to: GatewayId,
    },
}

impl Operation {
    /// Returns the gateway at which all trees of the plan are rooted; none where each keeps its root
    /// set.
    pub fn root(self) -> Option<GatewayId> {
        match self {
            Self::Reduce { to: root } | Self::Broadcast { from: root } => Some(root),
            _ => None,
        }
    }

    /// Whether partials go up the trees, towards the roots.
    pub fn has_up_phase(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce { .. } | Self::Barrier | Self::ReduceScatter)
    }

    /// Whether results come down the trees, from the roots.
    pub fn has_down_phase(self) -> bool {
        !matches!(self, Self::Reduce { .. } | Self::ReduceScatter)
    }

    /// Whether the buffer is divided into blocks by rank.
    pub fn has_blocks(self) -> bool {
        use Operation::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        matches!(self, AllGather | ReduceScatter | Gather { .. } | Scatter { .. } | AllToAll)
    }

    /// Whether data take the trees of single gateways, in place of those that divide a buffer.
    pub fn uses_owner_trees(self) -> bool {
        self.has_blocks() || matches!(self, Self::Send { .. })
    }

    /// Whether the operation carries data: all but a barrier do.
    pub fn has_data(self) -> bool {
        self != Self::Barrier
    }

    /// Returns the phases that the operation has along `tree`.
    pub fn phases_along(self, tree: &Tree) -> OperationPhases {
        OperationPhases {
            up: self.has_up_phase() && tree.direction.has_partials(),
            down: self.has_down_phase() && tree.direction.has_results(),
        }
    }

    /// Returns the operation's name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::Reduce { .. } => "reduce",
            Self::Broadcast { .. } => "broadcast",
            Self::Barrier => "barrier",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::Gather { .. } => "gather",
            Self::Scatter { .. } => "scatter",
            Self::AllToAll => "all-to-all",
            Self::Send { .. } => "send",
        }
    }
}

/// The phases of an operation along one tree; a tree may have neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationPhases {
    /// Partials go up.
    pub up: bool,
    /// Results come down.
    pub down: bool,
}
