//! The UDP addresses that gateways of a region file bind on their hosts, and clashes between them.

use super::gateway_config::GatewayConfig;
use super::keys;
use crate::config::config_source::ConfigSource;
use crate::config::fabric::FabricFile;
use crate::wan::connect::lane_addresses::LaneAddresses;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// Returns the addresses that a gateway's lanes have on this host for other regions: `listen`, else
/// `wan`, else any with the port of `wan`; `None` without a WAN port.
pub(super) fn wan_bound_addresses(
    file: &FabricFile,
    gateway: &GatewayConfig,
) -> Option<LaneAddresses> {
    let wan = file.lane_addresses(gateway.id);
    let given = gateway.listen.clone().or_else(|| wan?.without_names());
    let port = wan.map_or(0, |wan| wan.first().port());
    let any = || file.any_address(gateway.id, port);
    let has_port = file.fabric().gateway(gateway.id).wan.is_some();
    has_port.then(|| given.unwrap_or_else(any))
}

/// Returns the addresses that a gateway's lanes have on this host for its own region: `lan`, or any
/// with its port; `None` without a `lan`.
pub(super) fn lan_bound_addresses(
    file: &FabricFile,
    gateway: &GatewayConfig,
) -> Option<LaneAddresses> {
    let lan = file.lan_addresses(gateway.id)?;
    let any = || file.any_address(gateway.id, lan.first().port());
    Some(lan.without_names().unwrap_or_else(any))
}

/// Addresses that a gateway binds, and the key that says so.
struct BoundAddresses<'a> {
    gateway: &'a GatewayConfig,
    addresses: LaneAddresses,
    /// The name of the key: `listen`, `wan` or `lan`.
    key: &'static str,
    /// The line of the key, with the file where it is the fabric's.
    line: String,
    /// Whether the fabric file alone says it, whose own check finds clashes of such addresses.
    is_of_fabric: bool,
}

/// Records a fault for each gateway whose lanes bind a UDP port that it, or an earlier gateway on its
/// host, binds too. Two gateways are on one host where they have an IP address in common.
pub(super) fn check_bound_addresses(
    source: &ConfigSource<'_>,
    file: &FabricFile,
    gateways: &BTreeMap<String, GatewayConfig>,
) {
    let all: Vec<BoundAddresses<'_>> = gateways
        .values()
        .flat_map(|gateway| bound_addresses_of_gateway(source, file, gateway))
        .collect();
    for (index, own) in all.iter().enumerate() {
        let clash = all[..index].iter().find_map(|other| {
            let is_checked = own.is_of_fabric && other.is_of_fabric;
            let on_one_host = own.gateway.id == other.gateway.id
                || hosts_of_bound_addresses(file, own.gateway)
                    .intersection(&hosts_of_bound_addresses(file, other.gateway))
                    .next()
                    .is_some();
            let address = clash_of_bound_addresses(&own.addresses, &other.addresses)?;
            (on_one_host && !is_checked).then_some((other, address))
        });
        let Some((other, address)) = clash else { continue };
        // A key of this file is at fault, or a host name, rather than an address of the fabric file.
        let (own, other) = if own.is_of_fabric { (other, own) } else { (own, other) };
        let of = match own.gateway.id == other.gateway.id {
            true => "this gateway".to_owned(),
            false => format!("gateway `{}`", other.gateway.name),
        };
        let problem = format!(
            "takes the UDP port {address}, as `{}` of {of} does ({})",
            other.key, other.line
        );
        let table = format!("{}.{}", keys::GATEWAY_TABLE.name, own.gateway.name);
        let key = match own.key == keys::GATEWAY_LISTEN.name {
            true => format!("{table}.{}", own.key),
            false => table,
        };
        source.record_fault(&key, problem, "another UDP port for one of both".to_owned());
    }
}

/// Returns the addresses that a gateway binds, for the WAN and for the LAN, each with its key.
fn bound_addresses_of_gateway<'a>(
    source: &ConfigSource<'_>,
    file: &FabricFile,
    gateway: &'a GatewayConfig,
) -> Vec<BoundAddresses<'a>> {
    let fabric = file.fabric();
    let region = &fabric.region(fabric.gateway(gateway.id).region).name;
    let of_fabric = |key: &'static str, addresses: Option<LaneAddresses>| {
        let path = format!("region.{region}.gateway.{}.{key}", gateway.name);
        let line = file.line_of_key(&path).map_or(String::new(), |line| format!(":{line}"));
        let line = format!("{}{line}", file.path().display());
        let names = match key {
            "wan" => file.lane_addresses(gateway.id),
            _ => file.lan_addresses(gateway.id),
        };
        // The fabric's check does not know that a host name stands for all addresses of its host.
        let is_of_fabric = names.is_some_and(|names| !names.have_names());
        Some(BoundAddresses { gateway, addresses: addresses?, key, line, is_of_fabric })
    };
    let wan = match &gateway.listen {
        None => of_fabric("wan", wan_bound_addresses(file, gateway)),
        Some(listen) => {
            let key = keys::GATEWAY_LISTEN.name;
            let path = format!("{}.{}.{key}", keys::GATEWAY_TABLE.name, gateway.name);
            let line =
                source.line_of_key(&path).map_or(String::new(), |line| format!("line {line}"));
            Some(BoundAddresses {
                gateway,
                addresses: listen.clone(),
                key,
                line,
                is_of_fabric: false,
            })
        }
    };
    let lan = of_fabric("lan", lan_bound_addresses(file, gateway));
    wan.into_iter().chain(lan).collect()
}

/// Returns the IP addresses that tell the host of a gateway from others: those that it binds. Every host
/// has the unspecified ones, and the loopback addresses of TCP.
fn hosts_of_bound_addresses(file: &FabricFile, gateway: &GatewayConfig) -> BTreeSet<IpAddr> {
    let lanes = [wan_bound_addresses(file, gateway), lan_bound_addresses(file, gateway)];
    let lanes = lanes.iter().flatten().flat_map(LaneAddresses::all);
    let tcp = std::iter::once(gateway.status).chain(gateway.attach);
    let tcp = tcp.filter(|address| !address.ip().is_loopback());
    lanes.chain(tcp).map(|address| address.ip()).filter(|ip| !ip.is_unspecified()).collect()
}

/// Returns an address of the first that takes a UDP port of the second. The port is the same, and one of
/// both has all addresses of the host or both have the same.
fn clash_of_bound_addresses(one: &LaneAddresses, other: &LaneAddresses) -> Option<SocketAddr> {
    let clash = |one: SocketAddr| other.all().any(|other| bound_addresses_overlap(one, other));
    one.all().find(|address| address.port() != 0 && clash(*address))
}

/// Returns whether no two programs can listen at both addresses: they have the port and an IP
/// address in common. The unspecified address has all of the host; that of IPv6 takes IPv4, too.
pub(super) fn bound_addresses_overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let has_all = |all: SocketAddr, of: SocketAddr| {
        all.ip().is_unspecified() && (all.is_ipv6() || of.is_ipv4())
    };
    one.port() == other.port()
        && (one.ip() == other.ip() || has_all(one, other) || has_all(other, one))
}
