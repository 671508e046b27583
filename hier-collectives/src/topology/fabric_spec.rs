//! Regions, gateways and links as a config spells them, before they are numbered.

use super::region::WanPort;
use units::{BitRate, Fraction, Span};

/// A region as a config spells it.
#[derive(Debug, Clone, PartialEq)]
pub struct FabricRegionSpec {
    /// Name, unique in the fabric.
    pub name: String,
    /// Relative compute speed of each rank: one for each rank of the region.
    pub speeds: Vec<f64>,
    /// The region's gateways, in any order.
    pub gateways: Vec<FabricGatewaySpec>,
}

/// A gateway as a config spells it.
#[derive(Debug, Clone, PartialEq)]
pub struct FabricGatewaySpec {
    /// Name, unique in the fabric.
    pub name: String,
    /// Number of ranks that the gateway serves.
    pub ranks: u32,
    /// Long-haul port; `None` for a gateway that only serves its ranks.
    pub wan: Option<WanPort>,
}

impl FabricGatewaySpec {
    /// Makes a gateway with this name, number of ranks and long-haul port.
    pub fn new(name: impl Into<String>, ranks: u32, wan: Option<WanPort>) -> Self {
        Self { name: name.into(), ranks, wan }
    }
}

/// A link as a config spells it.
#[derive(Debug, Clone, PartialEq)]
pub struct FabricLinkSpec {
    /// Names of the two regions, in any order.
    pub between: (String, String),
    /// Capacity of each direction, in IP bytes.
    pub rate: BitRate,
    /// Round-trip time without queueing.
    pub rtt: Span,
    /// Expected random loss.
    pub loss: Fraction,
}
