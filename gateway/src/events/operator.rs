//! Requests of an operator to the engine.

use units::BitRate;

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
