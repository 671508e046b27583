//! Communication patterns of collectives, by ranks.

use crate::ids::RankId;
use crate::operation::Operation;
use crate::topology::Fabric;
use std::fmt;

/// Communication pattern of a collective: the ranks that contribute and those that get the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Pattern {
    /// All ranks contribute and all get the result.
    #[default]
    AllReduce,
    /// All ranks contribute and one gets the result.
    Reduce {
        /// The rank that gets the result.
        to: RankId,
    },
    /// One rank contributes and all get its data.
    Broadcast {
        /// The rank that has the data.
        from: RankId,
    },
    /// No rank contributes data; no rank is done before all have begun.
    Barrier,
    /// Each rank contributes a block, and all get all blocks, in rank order.
    AllGather,
    /// All ranks contribute, and each gets its own block of the reduction.
    ReduceScatter,
    /// Each rank contributes a block, and one gets all blocks, in rank order.
    Gather {
        /// The rank that gets the blocks.
        to: RankId,
    },
    /// One rank contributes a block for each rank, which gets it.
    Scatter {
        /// The rank that has the blocks.
        from: RankId,
    },
    /// Each rank contributes a block for each rank, which gets it.
    AllToAll,
    /// One of the two ranks of a group contributes, and the other gets its data.
    Send {
        /// The rank that has the data.
        from: RankId,
    },
}

impl Pattern {
    /// Returns the name of the communication pattern, such as `all-reduce`, in flags, output and
    /// errors.
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
    /// Returns the pattern's wire code and its root rank; rank 0 for a pattern without a root.
    pub const fn wire_code(self) -> (u8, RankId) {
        match self {
            Self::AllReduce => (1, RankId(0)),
            Self::Reduce { to } => (2, to),
            Self::Broadcast { from } => (3, from),
            Self::Barrier => (4, RankId(0)),
            Self::AllGather => (5, RankId(0)),
            Self::ReduceScatter => (6, RankId(0)),
            Self::Gather { to } => (7, to),
            Self::Scatter { from } => (8, from),
            Self::AllToAll => (9, RankId(0)),
            Self::Send { from } => (10, from),
        }
    }
    /// Returns the pattern with wire code `code` and root `rank`. `None` for an unknown code, and
    /// for another rank than 0 where the pattern has no root.
    pub fn from_code(code: u8, rank: RankId) -> Option<Self> {
        let found = match code {
            1 => Self::AllReduce,
            2 => Self::Reduce { to: rank },
            3 => Self::Broadcast { from: rank },
            4 => Self::Barrier,
            5 => Self::AllGather,
            6 => Self::ReduceScatter,
            7 => Self::Gather { to: rank },
            8 => Self::Scatter { from: rank },
            9 => Self::AllToAll,
            10 => Self::Send { from: rank },
            _ => return None,
        };
        (found.wire_code() == (code, rank)).then_some(found)
    }
    /// Returns the pattern of an operation over gateways, with the first rank of its root gateway as
    /// the root.
    pub fn of_operation(operation: Operation, fabric: &Fabric) -> Self {
        let first = |id| RankId(fabric.gateway(id).ranks.start);
        match operation {
            Operation::AllReduce => Self::AllReduce,
            Operation::Reduce { to } => Self::Reduce { to: first(to) },
            Operation::Broadcast { from } => Self::Broadcast { from: first(from) },
            Operation::Barrier => Self::Barrier,
            Operation::AllGather => Self::AllGather,
            Operation::ReduceScatter => Self::ReduceScatter,
            Operation::Gather { to } => Self::Gather { to: first(to) },
            Operation::Scatter { from } => Self::Scatter { from: first(from) },
            Operation::AllToAll => Self::AllToAll,
            Operation::Send { from, .. } => Self::Send { from: first(from) },
        }
    }
    /// Returns the pattern as an operation over gateways; `None` when the fabric has no such root
    /// rank.
    pub fn over_gateways(self, fabric: &Fabric) -> Option<Operation> {
        Some(match self {
            Self::AllReduce => Operation::AllReduce,
            Self::Reduce { to } => Operation::Reduce { to: fabric.gateway_of(to)? },
            Self::Broadcast { from } => Operation::Broadcast { from: fabric.gateway_of(from)? },
            Self::Barrier => Operation::Barrier,
            Self::AllGather => Operation::AllGather,
            Self::ReduceScatter => Operation::ReduceScatter,
            Self::Gather { to } => Operation::Gather { to: fabric.gateway_of(to)? },
            Self::Scatter { from } => Operation::Scatter { from: fabric.gateway_of(from)? },
            Self::AllToAll => Operation::AllToAll,
            Self::Send { from } => {
                let [from, to] = [from, self.receiver()?].map(|rank| fabric.gateway_of(rank));
                Operation::Send { from: from?, to: to? }
            }
        })
    }
    /// Returns the root rank; `None` for a pattern without one.
    pub const fn root(self) -> Option<RankId> {
        match self {
            Self::Reduce { to: rank }
            | Self::Broadcast { from: rank }
            | Self::Gather { to: rank }
            | Self::Scatter { from: rank }
            | Self::Send { from: rank } => Some(rank),
            Self::AllReduce
            | Self::Barrier
            | Self::AllGather
            | Self::ReduceScatter
            | Self::AllToAll => None,
        }
    }
    /// Returns the rank that gets a send: the other one of the two ranks of its group. `None` for
    /// all other patterns.
    pub const fn receiver(self) -> Option<RankId> {
        match self {
            Self::Send { from } => Some(RankId(if from.0 == 0 { 1 } else { 0 })),
            _ => None,
        }
    }
    /// Whether a rank that only contributes is done only once all others have their results, so
    /// that it hears of each failure.
    pub const fn ends_with_receipts(self) -> bool {
        matches!(self, Self::Send { .. })
    }
    /// Whether a rank is done with what goes up once it is reduced here. Where it only contributes, it
    /// hears of a later failure at its next post or commit.
    pub const fn ends_with_partials(self) -> bool {
        self.has_blocks() || matches!(self, Self::Reduce { .. })
    }
    /// Whether contributions are reduced, so that the reduce operation has a meaning.
    pub const fn is_reduced(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce { .. } | Self::ReduceScatter)
    }
    /// Whether the buffer is divided into blocks by rank.
    pub const fn has_blocks(self) -> bool {
        self.has_rank_counts() || matches!(self, Self::AllToAll)
    }
    /// Whether the buffer is divided into one block for each rank, so that counts may be by rank.
    pub const fn has_rank_counts(self) -> bool {
        use Pattern::{AllGather, Gather, ReduceScatter, Scatter};
        matches!(self, AllGather | ReduceScatter | Gather { .. } | Scatter { .. })
    }
}

impl fmt::Display for Pattern {
    /// Prints the name and the root rank, if there is one: `all-reduce`, `barrier`,
    /// `reduce to rank 3`, `broadcast from rank 3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reduce { to } | Self::Gather { to } => write!(f, "{} to rank {to}", self.name()),
            Self::Broadcast { from } | Self::Scatter { from } | Self::Send { from } => {
                write!(f, "{} from rank {from}", self.name())
            }
            _ => f.write_str(self.name()),
        }
    }
}
