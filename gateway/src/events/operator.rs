//! Requests of an operator to the engine.

use hier_collectives::membership::RegionIntentError;
use units::{BitRate, Span};

/// An operator's request to limit a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateChange {
    /// The link, as two region names joined by a hyphen, in any order.
    pub link: String,
    /// The limit, up to the fabric's rate; `None` returns the link to its schedule.
    pub rate: Option<BitRate>,
}

/// Why a rate change was refused: always the caller's fault, and nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// The gateway has no such link.
    #[error("this gateway has no link `{link}`; it has: {known}")]
    NoLink {
        /// The name given.
        link: String,
        /// The names of this gateway's links.
        known: String,
    },
    /// The rate exceeds the link's rate in the fabric.
    #[error(
        "link `{link}` has {whole} in the fabric, {wanted} is more; a link that became faster \
         needs its new rate in fabric.toml, on all gateways"
    )]
    TooFast {
        /// The link.
        link: String,
        /// Its rate in the fabric.
        whole: BitRate,
        /// The rate asked for.
        wanted: BitRate,
    },
    /// The rate is below the least rate of any link.
    #[error("{0} is less than 8 kbit/s, the least rate of a link")]
    TooSlow(BitRate),
}

/// An operator's request that a region leaves the world of all jobs, or joins it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MembershipChange {
    /// The name of the region.
    pub region: String,
    /// Whether it leaves; otherwise it joins.
    pub leaves: bool,
    /// The time for which a step's boundary is awaited.
    pub within: Span,
}

/// Why a change of the members was refused: always the caller's fault, and nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MembershipChangeError {
    /// The fabric has no such region with ranks.
    #[error("the fabric has no region `{region}` with ranks; it has: {known}")]
    NoRegion {
        /// The name given.
        region: String,
        /// The names of the regions with ranks.
        known: String,
    },
    /// All regions of the fabric have to take part.
    #[error(
        "region `{0}`: the quorum of this fabric is all regions, so that nobody goes on without it; write `quorum` in all fabric files, such as \"majority\" or the regions that have to be there"
    )]
    AllNeeded(String),
    /// This gateway has no part in who goes on.
    #[error("this gateway is the witness, which is no member: ask a gateway with ranks")]
    AtWitness,
    /// The regions cannot change like that now.
    #[error("region `{region}`: {error}")]
    Intent {
        /// The region.
        region: String,
        /// The reason.
        error: RegionIntentError,
    },
}
