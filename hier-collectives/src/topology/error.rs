//! Faults of a fabric.

/// Why a fabric is invalid; always an error of its author.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// The fabric has no region.
    #[error("a fabric needs at least one region")]
    NoRegion,
    /// Two regions or two gateways have the same name.
    #[error("the name `{0}` is used twice")]
    NameTwice(String),
    /// The gateways of a region serve more or fewer ranks than it has.
    #[error("region `{region}` has {ranks} ranks, but its gateways serve {served}")]
    RanksUnserved {
        /// Name of the region.
        region: String,
        /// Number of ranks of the region.
        ranks: u32,
        /// Number of ranks that its gateways serve in all.
        served: u32,
    },
    /// A region has no rank.
    #[error("region `{0}` has no rank")]
    NoRank(String),
    /// A speed is not a positive number.
    #[error("region `{0}` has a speed that is not a positive number")]
    BadSpeed(String),
    /// A region has no long-haul port, in a fabric of several regions.
    #[error("region `{0}` has no gateway with a WAN port")]
    NoPort(String),
    /// A link leads to an unknown region, or to its own region.
    #[error("link `{0}-{1}` does not join two different regions of the fabric")]
    BadLink(String, String),
    /// Two links join the same regions.
    #[error("regions `{0}` and `{1}` have two links")]
    LinkTwice(String, String),
    /// No path of links reaches a region.
    #[error("region `{0}` cannot be reached from region `{1}`")]
    Unreachable(String, String),
    /// Two parts of a partition could both have the quorum, or no part could.
    #[error("{0}")]
    BadQuorum(String),
    /// A region cannot be the fabric's witness.
    #[error("region `{region}`: {text}")]
    BadWitness {
        /// Name of the region.
        region: String,
        /// Why it cannot.
        text: String,
    },
    /// A rate, RTT, loss or MTU is out of range.
    #[error("{problem}")]
    BadValue {
        /// The key, after the gateway or link that has it, and its value.
        problem: String,
        /// The accepted values.
        accepted: String,
    },
}
