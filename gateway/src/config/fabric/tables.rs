//! Reads the tables of a fabric file.

use super::check::{check_ports, report};
use super::entry::{Addresses, GatewayEntry};
use super::keys;
use crate::config::reader::{Section, Source};
use crate::config::values::{FromValue, Name, is_name};
use crate::wan::link::policy::{LINK_RATE_MIN_BITS_PER_S, LinkPolicy, Policies, Schedule};
use hier_collectives::ids::RegionId;
use hier_collectives::topology::{Fabric, LinkSpec, RegionGateway, RegionSpec, WanPort};
use std::collections::BTreeMap;
use units::{BitRate, Span};

/// The content of a fabric file.
pub(super) struct FabricTables {
    /// The fabric.
    pub fabric: Fabric,
    /// Addresses by the gateways' names.
    pub addresses: BTreeMap<String, Addresses>,
    /// Whether the file gives the MTU.
    pub mtu_pinned: bool,
    /// The policies of the links.
    pub policies: Policies,
}

/// Reads all tables of a fabric file; `None` when faults were recorded.
pub(super) fn read_fabric(source: &Source<'_>, root: &Section<'_>) -> Option<FabricTables> {
    let name = root.required(&keys::NAME);
    let mtu = root.optional(&keys::MTU);
    let mut regions = Vec::new();
    let mut gateways = Vec::new();
    for (name, section) in root.tables(&keys::REGION) {
        let (region, entries) = read_region(source, name, &section);
        regions.push(region);
        gateways.extend(entries);
    }
    let (links, policies): (Vec<_>, Vec<_>) =
        read_links(source, root, &regions).into_iter().unzip();
    check_ports(source, &gateways);
    let name = name.map_or_else(String::new, |name| name.0);
    match Fabric::new(&name, mtu.unwrap_or(MTU_DEFAULT), regions, links.clone()) {
        Ok(fabric) => {
            let addresses = gateways.into_iter().map(|entry| (entry.name, entry.addresses));
            let policies = by_regions(&fabric, &links, policies);
            let (addresses, mtu_pinned) = (addresses.collect(), mtu.is_some());
            Some(FabricTables { fabric, addresses, mtu_pinned, policies })
        }
        Err(faults) => {
            for fault in faults {
                report(source, &fault, &gateways, &links);
            }
            None
        }
    }
}

fn read_region(
    source: &Source<'_>,
    name: String,
    section: &Section<'_>,
) -> (RegionSpec, Vec<GatewayEntry>) {
    check_name(source, section.key(), &name);
    let ranks_given = section.has("ranks");
    let ranks = section.required(&keys::REGION_RANKS).map(|ranks| ranks.0);
    let speeds = section.optional(&keys::SPEEDS).map(|speeds| speeds.0);
    let tables = section.tables(&keys::GATEWAY);
    let several = tables.len() > 1;
    if tables.is_empty() && !section.has("gateway") {
        section.missing(keys::GATEWAY.name, keys::GATEWAY.accepted);
    }
    let mut gateways: Vec<GatewayEntry> = tables
        .into_iter()
        .map(|(name, table)| read_gateway(source, name, &table, several))
        .collect();
    if let [only] = gateways.as_mut_slice()
        && only.ranks.is_none()
    {
        only.ranks = ranks;
    }
    let at_fault = ranks.is_none() || gateways.iter().any(|gateway| gateway.ranks_at_fault);
    let served = |gateway: &GatewayEntry| gateway.ranks.unwrap_or(1);
    // Where a count is at fault or no gateway is given, the sum makes no second fault.
    let count = match ranks {
        Some(ranks) if !at_fault && !gateways.is_empty() => ranks,
        _ => gateways.iter().map(served).sum::<u32>().max(1),
    };
    let width = usize::try_from(count).unwrap_or(usize::MAX);
    if let (Some(speeds), false, true) = (&speeds, at_fault, ranks_given)
        && speeds.len() != width
    {
        let problem = format!("has {} values for {count} ranks", speeds.len());
        let accepted = format!("an array of {count} positive numbers");
        source.fault_at(&section.key_of("speeds"), problem, accepted);
    }
    let speeds = speeds.filter(|speeds| speeds.len() == width).unwrap_or(vec![1.0; width]);
    let spec = gateways
        .iter()
        .map(|gateway| RegionGateway::new(gateway.name.clone(), served(gateway), gateway.wan));
    let mut spec: Vec<RegionGateway> = spec.collect();
    if spec.is_empty() {
        spec.push(RegionGateway::new(format!("{name}-"), count, Some(PORT_AT_FAULT)));
    }
    section.close();
    (RegionSpec { name, speeds, gateways: spec }, gateways)
}

fn read_gateway(
    source: &Source<'_>,
    name: String,
    section: &Section<'_>,
    several: bool,
) -> GatewayEntry {
    check_name(source, section.key(), &name);
    let key = section.key().to_owned();
    let ranks = if several {
        section.required(&keys::GATEWAY_RANKS)
    } else {
        section.optional(&keys::GATEWAY_RANKS)
    };
    let ranks_at_fault = ranks.is_none() && (several || section.has("ranks"));
    let (mut wan, mut addresses) = (None, Addresses::default());
    addresses.lan = section.optional(&keys::LAN).map(|peer| peer.0);
    let has_port = ["wan", "egress", "ingress"].iter().any(|name| section.has(name));
    if has_port {
        addresses.wan = section.required(&keys::WAN).map(|peer| peer.0);
        let egress = section.required(&keys::EGRESS).unwrap_or(PORT_AT_FAULT.egress);
        let ingress = section.required(&keys::INGRESS).unwrap_or(PORT_AT_FAULT.ingress);
        wan = Some(WanPort { egress, ingress });
    }
    // A misspelt key such as `wann` may hide the port: one fault, not two.
    if section.has_unknown() {
        wan = wan.or(Some(PORT_AT_FAULT));
    }
    section.close();
    GatewayEntry { name, key, ranks: ranks.map(|ranks| ranks.0), ranks_at_fault, wan, addresses }
}

fn read_links(
    source: &Source<'_>,
    root: &Section<'_>,
    regions: &[RegionSpec],
) -> Vec<(LinkSpec, LinkPolicy)> {
    let mut links = Vec::new();
    for (name, section) in root.tables(&keys::LINK) {
        let rate = section.required(&keys::RATE).unwrap_or(PORT_AT_FAULT.egress);
        let rtt = section.required(&keys::RTT).unwrap_or(Span::ZERO);
        let loss = section.optional(&keys::LOSS).unwrap_or_default();
        let policy = read_policy(source, &section, rate);
        match split_name(&name, regions).as_slice() {
            [between] => {
                links.push((LinkSpec { between: between.clone(), rate, rtt, loss }, policy));
            }
            found => {
                let problem = match found {
                    [] => "does not join two regions of the fabric".to_owned(),
                    _ => "can be split into two regions in several ways".to_owned(),
                };
                let names: Vec<&str> = regions.iter().map(|region| region.name.as_str()).collect();
                let accepted = format!(
                    "two different regions joined by a hyphen; regions: {}",
                    names.join(", ")
                );
                source.fault_at(section.key(), problem, accepted);
            }
        }
        section.close();
    }
    links
}

fn read_policy(source: &Source<'_>, section: &Section<'_>, rate: BitRate) -> LinkPolicy {
    let schedule = section.optional(&keys::SCHEDULE);
    let rates = schedule.iter().flat_map(Schedule::entries).map(|(_, rate)| rate);
    let fits = |one: &BitRate| one.bits_per_second() >= LINK_RATE_MIN_BITS_PER_S && *one <= rate;
    if let Some(bad) = rates.filter(|rate| !fits(rate)).last() {
        let accepted = format!("rates from 8 kbit/s to the link's {rate}");
        source.fault_at(&section.key_of("schedule"), format!("has a rate of {bad}"), accepted);
    }
    let controller = section.optional(&keys::CONTROLLER).unwrap_or_default();
    LinkPolicy { schedule, controller }
}

/// The policies by the numbers of the regions that their links join.
fn by_regions(fabric: &Fabric, links: &[LinkSpec], policies: Vec<LinkPolicy>) -> Policies {
    let number = |name: &str| {
        let index = fabric.regions().iter().position(|region| region.name == name)?;
        u16::try_from(index).ok().map(RegionId)
    };
    let ends = links.iter().filter_map(|link| {
        let (one, other) = (number(&link.between.0)?, number(&link.between.1)?);
        Some((one.min(other), one.max(other)))
    });
    ends.zip(policies).collect()
}

/// All ways to split a link's name into two regions, whose names may contain hyphens.
fn split_name(name: &str, regions: &[RegionSpec]) -> Vec<(String, String)> {
    let known = |name: &str| regions.iter().any(|region| region.name == name);
    let splits = name.match_indices('-').map(|(at, _)| (&name[..at], &name[at + 1..]));
    let joined = splits.filter(|(one, other)| known(one) && known(other) && one != other);
    joined.map(|(one, other)| (one.to_owned(), other.to_owned())).collect()
}

fn check_name(source: &Source<'_>, key: &str, name: &str) {
    if !is_name(name) {
        let problem = format!("`{name}` is not a valid name");
        source.fault_at(key, problem, Name::TYPE.accepted.to_owned());
    }
}

/// 1500 bytes: the IP MTU for which plans are made when the file gives none.
const MTU_DEFAULT: u16 = 1500;

/// 1 Gbit/s: replaces a port or rate whose fault is already recorded.
const PORT_AT_FAULT: WanPort = WanPort {
    egress: BitRate::from_bits_per_second(1_000_000_000),
    ingress: BitRate::from_bits_per_second(1_000_000_000),
};
