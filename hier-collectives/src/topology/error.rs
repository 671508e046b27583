//! Faults of a fabric.

/// Why a fabric is none. The fault of whoever wrote it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// Fewer than one region.
    #[error("a fabric needs at least one region")]
    NoRegion,
    /// A name used twice.
    #[error("the name `{0}` is used twice")]
    NameTwice(String),
    /// Gateways that do not serve the region's ranks exactly.
    #[error("region `{region}` has {ranks} ranks, but its gateways serve {served}")]
    RanksUnserved {
        /// The region.
        region: String,
        /// Ranks it has.
        ranks: u32,
        /// Ranks its gateways serve in all.
        served: u32,
    },
    /// A region with no rank.
    #[error("region `{0}` has no rank")]
    NoRank(String),
    /// A speed that is no positive number.
    #[error("region `{0}` has a speed that is not a positive number")]
    BadSpeed(String),
    /// A region without a long-haul port in a fabric of several.
    #[error("region `{0}` has no gateway with a WAN port")]
    NoPort(String),
    /// A link to a region that is not there, or to itself.
    #[error("link `{0}-{1}` does not join two different regions of the fabric")]
    BadLink(String, String),
    /// Two links between the same regions.
    #[error("regions `{0}` and `{1}` have two links")]
    LinkTwice(String, String),
    /// A region that no link reaches.
    #[error("region `{0}` cannot be reached from region `{1}`")]
    Unreachable(String, String),
    /// A rate, RTT or MTU of no use.
    #[error("{0}")]
    BadValue(String),
}
