//! Checks that need several keys of a fabric file at once.

use super::entry::GatewayEntry;
use crate::config::source::ConfigSource;
use crate::config::values::LANES_MAX;
use hier_collectives::ids::GatewayId;
use hier_collectives::topology::{Fabric, FabricError, LinkSpec};
use std::net::SocketAddr;

/// Records a fault for gateways whose lanes would use the same UDP ports of one IP address.
pub(super) fn check_lane_ports(source: &ConfigSource<'_>, gateways: &[GatewayEntry]) {
    let near = |one: SocketAddr, other: SocketAddr| {
        one.ip() == other.ip() && one.port().abs_diff(other.port()) < LANES_MAX
    };
    let mut earlier: Vec<(SocketAddr, &str)> = Vec::new();
    for gateway in gateways {
        let addresses = [("wan", &gateway.addresses.wan), ("lan", &gateway.addresses.lan)];
        for (key, addresses) in addresses {
            let Some(addresses) = addresses else { continue };
            let clash = earlier
                .iter()
                .find(|(other, _)| addresses.all().any(|address| near(address, *other)));
            if let Some((_, clash)) = clash {
                let problem = format!("its ports overlap those of gateway `{clash}`");
                let accepted = format!("ports at least {LANES_MAX} apart on one IP address");
                source.record_fault(&format!("{}.{key}", gateway.key), problem, accepted);
            }
            earlier.extend(addresses.all().map(|address| (address, &*gateway.name)));
        }
    }
}

/// Records a fault for two gateways of linked regions whose WAN addresses are of different IP
/// families: a lane has one socket, which reaches one family.
pub(super) fn check_address_families(
    source: &ConfigSource<'_>,
    fabric: &Fabric,
    gateways: &[GatewayEntry],
) {
    let entry = |id: u16| {
        let name = &fabric.gateway(GatewayId(id)).name;
        let entry = gateways.iter().find(|entry| entry.name == *name)?;
        Some((entry, entry.addresses.wan.as_ref()?.first()))
    };
    for link in fabric.links() {
        for one in fabric.region(link.a).gateways.clone().filter_map(entry) {
            for other in fabric.region(link.b).gateways.clone().filter_map(entry) {
                if one.1.is_ipv4() == other.1.is_ipv4() {
                    continue;
                }
                let family = |address: SocketAddr| if address.is_ipv4() { "IPv4" } else { "IPv6" };
                let (own, theirs) = (family(other.1), family(one.1));
                let name = &one.0.name;
                let problem =
                    format!("is {own}, but gateway `{name}` of a linked region has {theirs}");
                let accepted = format!("addresses of one IP family, such as {theirs}");
                source.record_fault(&format!("{}.wan", other.0.key), problem, accepted);
            }
        }
    }
}

/// Records a fault of the fabric as a whole at the key that has to change.
pub(super) fn report_fabric_fault(
    source: &ConfigSource<'_>,
    fault: &FabricError,
    gateways: &[GatewayEntry],
    links: &[LinkSpec],
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
        FabricError::BadValue(text) => {
            (key_of_bad_value(text, gateways, links), "a value inside that range")
        }
    };
    source.record_fault(&key, fault.to_string(), accepted.to_owned());
}

/// Returns the path of the key at fault in a [`FabricError::BadValue`], whose text names the
/// gateway or link first.
fn key_of_bad_value(text: &str, gateways: &[GatewayEntry], links: &[LinkSpec]) -> String {
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
