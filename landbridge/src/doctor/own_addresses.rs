//! Checks of the gateway's own addresses, where it does not run: `landbridge run` must be able to
//! bind them.

use super::finding::Finding;
use gateway::config::{GatewayConfig, RegionFile};
use std::io::{Error, ErrorKind};
use std::net::{SocketAddr, TcpListener, UdpSocket};

/// The name of the check whether the gateway's own addresses can be bound, in all findings of this
/// check that `landbridge doctor` prints.
const OWN_ADDRESSES_CHECK: &str = "own addresses";

/// Checks that the `status` address and the UDP addresses of lanes can be bound. Of WAN and of LAN
/// only the first that cannot is a finding. Call it only where nothing answers at the `status`
/// address.
pub(super) fn diagnose_own_addresses(region: &RegionFile, gateway: &GatewayConfig) -> Vec<Finding> {
    let mut findings: Vec<Finding> = TcpListener::bind(gateway.status)
        .err()
        .map(|error| describe_unbound_own_address("status", gateway.status, &error))
        .into_iter()
        .collect();
    let wan = region.wan_addresses_to_bind(gateway);
    let lan = region.lan_addresses_to_bind(gateway);
    for addresses in wan.iter().chain(&lan) {
        let unbound = addresses
            .all()
            .find_map(|address| UdpSocket::bind(address).err().map(|error| (address, error)));
        findings.extend(
            unbound.map(|(address, error)| describe_unbound_own_address("UDP", address, &error)),
        );
    }
    if findings.is_empty() {
        findings.push(Finding::ok(OWN_ADDRESSES_CHECK, &gateway.name, "can be bound"));
    }
    findings
}

/// Returns the finding on an address that cannot be bound.
fn describe_unbound_own_address(what: &str, address: SocketAddr, error: &Error) -> Finding {
    let advice = match error.kind() {
        ErrorKind::AddrInUse => "stop the program that has it, or give the gateway another port",
        ErrorKind::AddrNotAvailable => "use an address of this host",
        _ => "use an address of this host and a port above 1023",
    };
    Finding::ok(OWN_ADDRESSES_CHECK, format!("{what} {address}"), error).into_failure(advice)
}
