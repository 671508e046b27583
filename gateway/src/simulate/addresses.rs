//! Addresses of simulated gateways.

use hier_collectives::ids::{GatewayId, RegionId};
use hier_collectives::topology::Fabric;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The WAN address of a gateway in a simulated network, unless a setup says otherwise.
pub fn address(gateway: GatewayId) -> SocketAddr {
    let [high, low] = (gateway.0 + 1).to_be_bytes();
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, high, low)), 7400)
}

/// The LAN address of a gateway, at which the other gateways of its region reach it.
pub fn lan_address(gateway: GatewayId) -> SocketAddr {
    let [high, low] = (gateway.0 + 1).to_be_bytes();
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 1, high, low)), 7400)
}

/// The address of a region's first gateway. The others have other ports of the same IP address, so
/// that all share the region's links.
pub(super) fn region_address(fabric: &Fabric, region: RegionId) -> SocketAddr {
    address(GatewayId(fabric.region(region).gateways.start))
}
