//! Operations as a plan sees them: by gateways, and as phases along a tree.
//!
//! [`crate::descriptor::Pattern`] names the same operations by ranks.

use crate::ids::GatewayId;

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
    /// Whether partials go up.
    pub fn goes_up(self) -> bool {
        !matches!(self, Self::Broadcast { .. })
    }

    /// Whether results come down.
    pub fn comes_down(self) -> bool {
        !matches!(self, Self::Reduce { .. })
    }

    /// Whether the operation carries data.
    pub fn has_data(self) -> bool {
        self != Self::Barrier
    }

    /// The name in output.
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
