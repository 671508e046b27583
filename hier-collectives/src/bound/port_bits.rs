//! Rates of a region's ports and links.

use crate::ids::RegionId;
use crate::topology::Fabric;

/// Rates of one region, in bits per second.
#[derive(Debug, Clone, Copy)]
pub(super) struct PortBits {
    /// Sum of the egress rates of its ports.
    pub egress: u64,
    /// Sum of the ingress rates of its ports.
    pub ingress: u64,
    /// Sum of the rates of its links.
    pub links: u64,
}

impl PortBits {
    /// Sums the rates of the ports and links of the region with index `region`.
    pub fn of_region(fabric: &Fabric, region: usize) -> Self {
        let is_region = |id: RegionId| usize::from(id.0) == region;
        let gateways = fabric.gateways().iter().filter(|gateway| is_region(gateway.region));
        let ports: Vec<_> = gateways.filter_map(|gateway| gateway.wan).collect();
        let links = fabric.links().iter().filter(|link| is_region(link.a) || is_region(link.b));
        Self {
            egress: ports.iter().map(|port| port.egress.bits_per_second()).sum(),
            ingress: ports.iter().map(|port| port.ingress.bits_per_second()).sum(),
            links: links.map(|link| link.rate.bits_per_second()).sum(),
        }
    }
}
