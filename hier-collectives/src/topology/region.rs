//! Regions and their gateways.

use crate::ids::RegionId;
use std::ops::Range;
use units::BitRate;

/// One data centre or availability zone.
#[derive(Debug, Clone, PartialEq)]
pub struct Region {
    /// Its name in the fabric.
    pub name: String,
    /// Its gateways, consecutive in the fabric.
    pub gateways: Range<u16>,
    /// Its ranks, consecutive in the fabric.
    pub ranks: Range<u32>,
    /// Relative compute speed of each rank, in rank order.
    pub speeds: Vec<f64>,
}

/// One Landbridge daemon.
#[derive(Debug, Clone, PartialEq)]
pub struct Gateway {
    /// Its name, unique in the fabric; its certificate proves it.
    pub name: String,
    /// Its region.
    pub region: RegionId,
    /// The ranks it serves, consecutive in the fabric.
    pub ranks: Range<u32>,
    /// Its port to the long haul; `None` for a gateway that only serves its ranks.
    pub wan: Option<WanPort>,
}

/// What a gateway's long-haul port carries, in IP bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WanPort {
    /// Out of the region.
    pub egress: BitRate,
    /// Into the region.
    pub ingress: BitRate,
}
