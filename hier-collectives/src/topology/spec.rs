//! Regions and links as a config spells them.

use super::region::WanPort;
use units::{BitRate, Fraction, Span};

/// A region as a config spells it, before numbering.
#[derive(Debug, Clone, PartialEq)]
pub struct RegionSpec {
    /// Its name.
    pub name: String,
    /// Relative speed of each rank: as many as it has ranks.
    pub speeds: Vec<f64>,
    /// Its gateways: name, ranks served, long-haul port.
    pub gateways: Vec<(String, u32, Option<WanPort>)>,
}

/// A link as a config spells it.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkSpec {
    /// The two regions, in any order.
    pub between: (String, String),
    /// Capacity each way, in IP bytes.
    pub rate: BitRate,
    /// Round-trip time without queueing.
    pub rtt: Span,
    /// Random loss expected of it.
    pub loss: Fraction,
}
