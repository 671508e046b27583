//! Checks that need several keys of a fabric file at once.

use super::entry::GatewayEntry;
use crate::config::config_source::ConfigSource;
use crate::wan::connect::peer_addresses::{PeerAddress, PeerAddresses};
use hier_collectives::ids::{GatewayId, RegionId};
use hier_collectives::topology::{Fabric, FabricError, FabricLinkSpec};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// Records a fault for each `wan` or `lan` that has an address of an earlier `wan` or `lan`. That may
/// be of another gateway or of the same one.
pub(super) fn check_fabric_lane_ports(source: &ConfigSource<'_>, gateways: &[GatewayEntry]) {
    let mut earlier: Vec<(&PeerAddress, &str)> = Vec::new();
    for gateway in gateways {
        let addresses = [("wan", &gateway.addresses.wan), ("lan", &gateway.addresses.lan)];
        for (key, addresses) in addresses {
            let Some(addresses) = addresses else { continue };
            let clash = earlier
                .iter()
                .find(|(other, _)| addresses.all().iter().any(|address| address == *other));
            if let Some((_, clash)) = clash {
                let problem = format!("is an address of gateway `{clash}` too");
                let accepted = "another UDP port on that IP address".to_owned();
                source.record_fault(&format!("{}.{key}", gateway.key), problem, accepted);
            }
            earlier.extend(addresses.all().iter().map(|address| (address, &*gateway.name)));
        }
    }
}

/// Records a fault for each gateway with another address family, IPv4 or IPv6, than an earlier
/// gateway to which it connects. The order is that of the fabric. No lane connects the two
/// families.
pub(super) fn check_fabric_address_families(
    source: &ConfigSource<'_>,
    fabric: &Fabric,
    gateways: &[GatewayEntry],
) {
    let entry = |id| gateways.iter().find(|entry| entry.name == fabric.gateway(id).name);
    let entries: Vec<(RegionId, &GatewayEntry)> = fabric
        .gateway_ids()
        .filter_map(|id| Some((fabric.gateway(id).region, entry(id)?)))
        .collect();
    for (index, (region, gateway)) in entries.iter().enumerate() {
        let clash = entries[..index].iter().find_map(|(other_region, other)| {
            let (key, one, two) = fabric_check_addresses(gateway, other, region == other_region)?;
            let joined = region == other_region || fabric.link(*region, *other_region).is_some();
            (one.is_ipv4() != two.is_ipv4() && joined).then_some((key, one, two, &other.name))
        });
        let Some((key, own, theirs, other)) = clash else { continue };
        let family = |address: SocketAddr| if address.is_ipv4() { "IPv4" } else { "IPv6" };
        let problem = format!(
            "is {}, but gateway `{other}`, to which it connects, has {theirs}, which is {}",
            family(own),
            family(theirs)
        );
        let accepted = "an address of one family with those of all gateways that it connects to";
        source.record_fault(&format!("{}.{key}", gateway.key), problem, accepted.to_owned());
    }
}

/// Records a fault for each gateway without `wan` that connects to another without it, since neither
/// could dial. Records one also where its peers have addresses of both families.
pub(super) fn check_fabric_dialling_gateways(
    source: &ConfigSource<'_>,
    fabric: &Fabric,
    gateways: &[GatewayEntry],
) {
    let at_port = |id: &GatewayId| fabric.gateway(*id).wan.is_some();
    let entry = |id| gateways.iter().find(|entry| entry.name == fabric.gateway(id).name);
    for own in fabric.gateway_ids().filter(at_port) {
        let Some(gateway) = entry(own).filter(|entry| entry.addresses.wan.is_none()) else {
            continue;
        };
        let region = |id: GatewayId| fabric.gateway(id).region;
        let is_peer = |id: &GatewayId| fabric.link(region(own), region(*id)).is_some();
        let peers: Vec<&GatewayEntry> =
            fabric.gateway_ids().filter(at_port).filter(is_peer).filter_map(entry).collect();
        let key = format!("{}.wan", gateway.key);
        if let Some(other) = peers.iter().find(|peer| peer.addresses.wan.is_none()) {
            let problem = format!(
                "is missing, and so is that of gateway `{}`, to which it connects: neither can dial \
                 the other",
                other.name
            );
            source.record_fault(&key, problem, "a `wan` for one of both".to_owned());
            continue;
        }
        let first = |peer: &&GatewayEntry| peer.addresses.wan.as_ref()?.first_ip_address();
        let families: BTreeSet<bool> =
            peers.iter().filter_map(first).map(|address| address.is_ipv4()).collect();
        if families.len() > 1 {
            let problem = "is missing, and the gateways that it dials have IPv4 and IPv6 addresses"
                .to_owned();
            source.record_fault(&key, problem, "peers of one family".to_owned());
        }
    }
}

/// Returns the key and the first IP addresses by which two gateways connect: `lan` within a region
/// where both have it, else `wan`. `None` where both have neither.
fn fabric_check_addresses(
    one: &GatewayEntry,
    other: &GatewayEntry,
    same_region: bool,
) -> Option<(&'static str, SocketAddr, SocketAddr)> {
    let first = |addresses: &Option<PeerAddresses>| addresses.as_ref()?.first_ip_address();
    let lan = first(&one.addresses.lan).zip(first(&other.addresses.lan));
    let wan = first(&one.addresses.wan).zip(first(&other.addresses.wan));
    let lan = lan.filter(|_| same_region).map(|(one, other)| ("lan", one, other));
    lan.or(wan.map(|(one, other)| ("wan", one, other)))
}

/// Records a fault of the fabric as a whole at the key that has to change.
pub(super) fn record_fabric_check_fault(
    source: &ConfigSource<'_>,
    fault: &FabricError,
    gateways: &[GatewayEntry],
    links: &[FabricLinkSpec],
) {
    let (key, accepted) = match fault {
        FabricError::NoRegion => ("region".to_owned(), "a table such as [region.east]"),
        FabricError::NameTwice(name) => {
            let last = gateways.iter().rev().find(|gateway| gateway.name == *name);
            let key = last.map_or("region".to_owned(), |gateway| gateway.key.clone());
            (key, "gateway names that differ throughout the fabric")
        }
        FabricError::RanksUnserved { region, .. } => {
            (format!("region.{region}.ranks"), "the sum of its gateways' `ranks`")
        }
        FabricError::NoRank(region) => (format!("region.{region}.ranks"), "at least 1"),
        FabricError::BadWitness { region, .. } => (
            format!("region.{region}"),
            "one witness at most: one gateway with a WAN port, no ranks, and a link to each region",
        ),
        FabricError::BadSpeed(region) => (format!("region.{region}.speeds"), "positive numbers"),
        FabricError::NoPort(region) => (
            format!("region.{region}"),
            "a gateway with `wan`, `egress` and `ingress` in each of several regions",
        ),
        FabricError::BadLink(one, other) | FabricError::LinkTwice(one, other) => {
            (format!("link.{one}-{other}"), "one link between two different regions")
        }
        // A link that could not be read leaves regions apart: one fault, not two.
        FabricError::Unreachable(..) if source.has_fault_under("link") => return,
        FabricError::Unreachable(..) => {
            ("link".to_owned(), "links by which every region reaches every other")
        }
        FabricError::BadQuorum(_) => {
            ("quorum".to_owned(), "a quorum that one part of a partition can have, and no two can")
        }
        FabricError::BadValue { problem, accepted } => {
            (key_of_failed_fabric_check(problem, gateways, links), accepted.as_str())
        }
    };
    source.record_fault(&key, fault.to_string(), accepted.to_owned());
}

/// Returns the path of the key at fault in a [`FabricError::BadValue`], whose problem names the
/// gateway or link first.
fn key_of_failed_fabric_check(
    text: &str,
    gateways: &[GatewayEntry],
    links: &[FabricLinkSpec],
) -> String {
    for gateway in gateways {
        if text.starts_with(&format!("gateway `{}`", gateway.name)) {
            let ingress = gateway.wan.is_some_and(|wan| wan.egress > wan.ingress);
            return format!("{}.{}", gateway.key, if ingress { "ingress" } else { "egress" });
        }
    }
    for link in links {
        let name = format!("{}-{}", link.between.0, link.between.1);
        if let Some(rest) = text.strip_prefix(&format!("link `{name}`: ")) {
            let field = rest.split_once(' ').map_or(rest, |(field, _)| field);
            return format!("link.{name}.{field}");
        }
    }
    text.split_once(' ').map_or(text, |(field, _)| field).to_owned()
}
