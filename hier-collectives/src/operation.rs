//! Operations as a plan sees them: by gateways, and as phases along a tree.
//!
//! [`crate::descriptor::Pattern`] names the same operations by ranks.

use crate::ids::GatewayId;
use crate::plan::Tree;

/// A collective operation over the gateways of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
}

impl Operation {
    /// Whether partials go up the trees, towards the roots.
    pub fn has_up_phase(self) -> bool {
        !matches!(self, Self::Broadcast { .. })
    }

    /// Whether results come down the trees, from the roots.
    pub fn has_down_phase(self) -> bool {
        !matches!(self, Self::Reduce { .. })
    }

    /// Whether the operation carries data: all but a barrier do.
    pub fn has_data(self) -> bool {
        self != Self::Barrier
    }

    /// Returns the phases that the operation has along `tree`.
    pub fn phases_along(self, tree: &Tree) -> Phases {
        Phases {
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
        }
    }
}

/// The phases of an operation along one tree; a tree may have neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phases {
    /// Partials go up.
    pub up: bool,
    /// Results come down.
    pub down: bool,
}
