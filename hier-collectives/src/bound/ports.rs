//! Rates of a region's ports and links.

use crate::ids::RegionId;
use crate::topology::Fabric;

/// Bits per second out of a region's ports, into them, and over its links.
pub(super) fn port_bits(fabric: &Fabric, region: usize) -> (u64, u64, u64) {
    let of_region = |id: RegionId| usize::from(id.0) == region;
    let wans = fabric.gateways().iter().filter(|gateway| of_region(gateway.region));
    let wans: Vec<_> = wans.filter_map(|gateway| gateway.wan).collect();
    let links = fabric.links().iter().filter(|link| of_region(link.a) || of_region(link.b));
    (
        wans.iter().map(|wan| wan.egress.bits_per_second()).sum(),
        wans.iter().map(|wan| wan.ingress.bits_per_second()).sum(),
        links.map(|link| link.rate.bits_per_second()).sum(),
    )
}
