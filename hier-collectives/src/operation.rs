//! Operations as the phases of a tree.

use crate::ids::GatewayId;

/// What a collective does with the trees of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Partials up, results down.
    AllReduce,
    /// Partials up, to one gateway.
    Reduce {
        /// Whose ranks get the result.
        to: GatewayId,
    },
    /// Results down, from one gateway.
    Broadcast {
        /// Whose rank has the data.
        from: GatewayId,
    },
    /// Up and down without data: nobody is done before all have begun.
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

    /// Whether it carries data.
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

/// The ways that an operation takes along a tree; none along one that carries nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phases {
    /// Partials go up.
    pub up: bool,
    /// Results come down.
    pub down: bool,
}
