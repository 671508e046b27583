//! Addresses of simulated gateways.

use hier_collectives::ids::{GatewayId, RegionId};
use hier_collectives::topology::Fabric;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use wan_sim::EPHEMERAL_PORT_FIRST;

/// Returns the WAN address `10.0.x.y:7400` of a simulated gateway, unless its setup has another.
pub fn simulated_address(gateway: GatewayId) -> SocketAddr {
    let [high, low] = (gateway.0 + 1).to_be_bytes();
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, high, low)), 7400)
}

/// Returns the LAN address `10.1.x.y:7400` of a simulated gateway, for gateways of its region.
pub fn simulated_lan_address(gateway: GatewayId) -> SocketAddr {
    let [high, low] = (gateway.0 + 1).to_be_bytes();
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 1, high, low)), 7400)
}

/// Returns the address from which a simulated gateway dials by a lane, where it dials over the WAN alone
/// and no other gateway has its IP address. Sockets of a virtual network get free ports in order.
pub fn simulated_dialling_address(gateway: GatewayId, lane: u16) -> SocketAddr {
    SocketAddr::new(simulated_address(gateway).ip(), EPHEMERAL_PORT_FIRST + lane)
}

/// Returns the WAN address of a region's first gateway. Other gateways of the region have other
/// ports of its IP address, so that all share the region's links.
pub(super) fn simulated_region_address(fabric: &Fabric, region: RegionId) -> SocketAddr {
    simulated_address(GatewayId(fabric.region(region).gateways.start))
}
