//! Regions and their gateways.

use crate::ids::RegionId;
use std::ops::Range;
use units::BitRate;

/// One data centre or availability zone.
#[derive(Debug, Clone, PartialEq)]
pub struct Region {
    /// Name, unique in the fabric.
    pub name: String,
    /// Numbers of its gateways, consecutive in the fabric.
    pub gateways: Range<u16>,
    /// Numbers of its ranks, consecutive in the fabric.
    pub ranks: Range<u32>,
    /// Relative compute speed of each rank, in rank order.
    pub speeds: Vec<f64>,
}

/// One Landbridge daemon.
#[derive(Debug, Clone, PartialEq)]
pub struct Gateway {
    /// Name, unique in the fabric and proved by the gateway's certificate.
    pub name: String,
    /// The region of the gateway.
    pub region: RegionId,
    /// Numbers of the ranks that it serves, consecutive in the fabric.
    pub ranks: Range<u32>,
    /// Long-haul port; `None` for a gateway that only serves its ranks.
    pub wan: Option<WanPort>,
}

/// Rates of a gateway's long-haul port, in IP bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WanPort {
    /// Rate out of the region.
    pub egress: BitRate,
    /// Rate into the region.
    pub ingress: BitRate,
}

/// 8,000 bit/s, one byte a millisecond: a fabric with a WAN port or a link of a lower rate is
/// refused. The limit is chosen; a lower rate is taken for a mistake.
pub(super) const RATE_MIN_BITS_PER_SECOND: u64 = 8_000;
