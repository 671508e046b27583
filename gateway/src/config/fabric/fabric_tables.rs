//! Reads the tables of a fabric file.

use super::entry::{GatewayAddresses, GatewayEntry};
use super::fabric_check::{
    check_fabric_address_families, check_fabric_dialling_gateways, check_fabric_lane_ports,
    record_fabric_check_fault,
};
use super::keys;
use crate::config::config_source::ConfigSource;
use crate::config::config_value::{FromConfigValue, Name, is_valid_config_name_value};
use crate::config::section::Section;
use crate::wan::link::controller_policy::{
    ControllerPolicy, LINK_RATE_MIN_BITS_PER_S, LinkPolicies, LinkPolicy,
};
use crate::wan::link::rate_schedule::RateSchedule;
use hier_collectives::ids::RegionId;
use hier_collectives::topology::{
    Fabric, FabricError, FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, Patience, WanPort,
};
use std::collections::BTreeMap;
use units::{BitRate, Span};

/// The content of a fabric file.
pub(super) struct FabricTables {
    /// The fabric.
    pub fabric: Fabric,
    /// Addresses by the gateways' names.
    pub addresses: BTreeMap<String, GatewayAddresses>,
    /// Whether the file gives the MTU.
    pub mtu_pinned: bool,
    /// The policies of the links.
    pub policies: LinkPolicies,
    /// The number of the version; 0 without one.
    pub number: u64,
}

/// Reads all tables of a fabric file; `None` when faults were recorded.
pub(super) fn read_fabric_tables(
    source: &ConfigSource<'_>,
    root: &Section<'_>,
) -> Option<FabricTables> {
    let name = root.read_required(&keys::FABRIC_NAME);
    let mtu = root.read_optional(&keys::FABRIC_MTU);
    let lanes = root.read_optional(&keys::FABRIC_LANES).map_or(1, |lanes| lanes.0);
    let quorum = root.read_optional(&keys::FABRIC_QUORUM).unwrap_or_default();
    let silence = root.read_optional(&keys::FABRIC_SILENCE).map(|silence| silence.0);
    let patience = root.read_optional(&keys::FABRIC_PATIENCE);
    let number = root.read_optional(&keys::FABRIC_VERSION).map_or(0, |number| number.0);
    let (mut regions, mut witnesses, mut gateways) = (Vec::new(), Vec::new(), Vec::new());
    let mut votes = BTreeMap::new();
    for (name, section) in root.read_subtables(&keys::REGION_TABLE) {
        let is_witness = section.read_optional(&keys::REGION_WITNESS).unwrap_or(false);
        if is_witness {
            witnesses.push(name.clone());
        }
        let own_votes = section.read_optional(&keys::REGION_VOTES);
        votes.extend(own_votes.map(|votes| (name.clone(), votes.0)));
        let (region, entries) = match is_witness {
            true => read_fabric_witness_table(source, name, &section),
            false => read_fabric_region_table(source, name, &section),
        };
        regions.push(region);
        gateways.extend(entries);
    }
    let (links, policies): (Vec<_>, Vec<_>) =
        read_fabric_link_tables(source, root, &regions).into_iter().unzip();
    check_fabric_lane_ports(source, &gateways);
    let name = name.map_or_else(String::new, |name| name.0);
    let mtu_planned = mtu.unwrap_or(MTU_DEFAULT);
    let fabric = fabric_of_tables(&name, mtu_planned, regions, &witnesses, &links);
    let with_quorum =
        |fabric: Fabric| fabric.with_weighted_quorum(&quorum, &votes).map_err(|fault| vec![fault]);
    let with_patience = |fabric: Fabric| fabric_of_tables_with_patience(fabric, patience, silence);
    match fabric.and_then(with_quorum).and_then(with_patience) {
        Ok(fabric) => {
            let fabric = fabric.with_lanes_min(lanes);
            check_fabric_address_families(source, &fabric, &gateways);
            check_fabric_dialling_gateways(source, &fabric, &gateways);
            let addresses = gateways.into_iter().map(|entry| (entry.name, entry.addresses));
            let policies = policies_of_fabric_tables(&fabric, &links, policies);
            let (addresses, mtu_pinned) = (addresses.collect(), mtu.is_some());
            Some(FabricTables { fabric, addresses, mtu_pinned, policies, number })
        }
        Err(faults) => {
            for fault in faults {
                record_fabric_check_fault(source, &fault, &gateways, &links);
            }
            None
        }
    }
}

/// Makes the fabric of all regions and links. `witnesses` names those regions that are witnesses.
///
/// # Errors
/// All faults of the fabric.
fn fabric_of_tables(
    name: &str,
    mtu: u16,
    regions: Vec<FabricRegionSpec>,
    witnesses: &[String],
    links: &[FabricLinkSpec],
) -> Result<Fabric, Vec<FabricError>> {
    let is_witness = |name: &String| witnesses.contains(name);
    let (witnesses, ranked): (Vec<_>, Vec<_>) =
        regions.into_iter().partition(|region| is_witness(&region.name));
    let of = |one: &str, link: &FabricLinkSpec| link.between.0 == one || link.between.1 == one;
    let of_witness = |link: &&FabricLinkSpec| witnesses.iter().any(|region| of(&region.name, link));
    let between_ranked = links.iter().filter(|link| !of_witness(link)).cloned().collect();
    let mut fabric = Fabric::new(name, mtu, ranked, between_ranked)?;
    for witness in witnesses.clone() {
        let links = links.iter().filter(|link| of(&witness.name, link)).cloned().collect();
        fabric = fabric.with_witness(witness, links)?;
    }
    Ok(fabric)
}

/// Sets the patience of a fabric, if the file states one, and its silence.
///
/// # Errors
/// All faults of a patience that is stated.
fn fabric_of_tables_with_patience(
    fabric: Fabric,
    patience: Option<Patience>,
    silence: Option<Span>,
) -> Result<Fabric, Vec<FabricError>> {
    let fabric = fabric.with_silence(silence);
    let Some(patience) = patience else { return Ok(fabric) };
    let fabric = fabric.with_patience(patience);
    fabric.check_patience().map(|()| fabric)
}

/// Reads a table `[region.NAME]` of a witness.
fn read_fabric_witness_table(
    source: &ConfigSource<'_>,
    name: String,
    section: &Section<'_>,
) -> (FabricRegionSpec, Vec<GatewayEntry>) {
    check_fabric_table_name(source, section.key(), &name);
    let refuse_ranks = |section: &Section<'_>, key: &str| {
        if section.has_key(key) {
            let problem = "is a key of a witness, which has no ranks".to_owned();
            source.record_fault(&section.key_path(key), problem, "no such key".to_owned());
        }
    };
    refuse_ranks(section, keys::REGION_RANKS.name);
    refuse_ranks(section, keys::REGION_SPEEDS.name);
    let mut gateways = Vec::new();
    for (name, table) in section.read_subtables(&keys::GATEWAY_TABLE) {
        refuse_ranks(&table, keys::GATEWAY_RANKS.name);
        gateways.push(read_fabric_gateway_table(source, name, &table, false));
    }
    section.report_unknown_keys();
    let spec = gateways.iter().map(|entry| FabricGatewaySpec::new(&entry.name, 0, entry.wan));
    (FabricRegionSpec { name, speeds: vec![], gateways: spec.collect() }, gateways)
}

/// Reads a table `[region.NAME]`. Values at fault are replaced, so that they cause no second fault.
fn read_fabric_region_table(
    source: &ConfigSource<'_>,
    name: String,
    section: &Section<'_>,
) -> (FabricRegionSpec, Vec<GatewayEntry>) {
    check_fabric_table_name(source, section.key(), &name);
    let ranks_given = section.has_key("ranks");
    let ranks = section.read_required(&keys::REGION_RANKS).map(|ranks| ranks.0);
    let speeds = section.read_optional(&keys::REGION_SPEEDS).map(|speeds| speeds.0);
    let tables = section.read_subtables(&keys::GATEWAY_TABLE);
    let several = tables.len() > 1;
    if tables.is_empty() && !section.has_key("gateway") {
        section.report_missing(keys::GATEWAY_TABLE.name, keys::GATEWAY_TABLE.accepted);
    }
    let mut gateways: Vec<GatewayEntry> = tables
        .into_iter()
        .map(|(name, table)| read_fabric_gateway_table(source, name, &table, several))
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
        source.record_fault(&section.key_path("speeds"), problem, accepted);
    }
    let speeds = speeds.filter(|speeds| speeds.len() == width).unwrap_or(vec![1.0; width]);
    let spec = gateways
        .iter()
        .map(|gateway| FabricGatewaySpec::new(gateway.name.clone(), served(gateway), gateway.wan));
    let mut spec: Vec<FabricGatewaySpec> = spec.collect();
    if spec.is_empty() {
        spec.push(FabricGatewaySpec::new(format!("{name}-"), count, Some(FAULTY_PORT_SUBSTITUTE)));
    }
    section.report_unknown_keys();
    (FabricRegionSpec { name, speeds, gateways: spec }, gateways)
}

/// Reads a table `[region.NAME.gateway.NAME]`; `several` says whether the region has several
/// gateways.
fn read_fabric_gateway_table(
    source: &ConfigSource<'_>,
    name: String,
    section: &Section<'_>,
    several: bool,
) -> GatewayEntry {
    check_fabric_table_name(source, section.key(), &name);
    if name == "ca" {
        let problem = "would give its certificate the file of the CA, ca.pem".to_owned();
        source.record_fault(section.key(), problem, "another name".to_owned());
    }
    let key = section.key().to_owned();
    let ranks = if several {
        section.read_required(&keys::GATEWAY_RANKS)
    } else {
        section.read_optional(&keys::GATEWAY_RANKS)
    };
    let ranks_at_fault = ranks.is_none() && (several || section.has_key("ranks"));
    let (mut wan, mut addresses) = (None, GatewayAddresses::default());
    addresses.lan = section.read_optional(&keys::GATEWAY_LAN).map(|peer| peer.0);
    let has_port = ["wan", "egress", "ingress"].iter().any(|name| section.has_key(name));
    if has_port {
        addresses.wan = section.read_optional(&keys::GATEWAY_WAN).map(|peer| peer.0);
        let egress =
            section.read_required(&keys::GATEWAY_EGRESS).unwrap_or(FAULTY_PORT_SUBSTITUTE.egress);
        let ingress =
            section.read_required(&keys::GATEWAY_INGRESS).unwrap_or(FAULTY_PORT_SUBSTITUTE.ingress);
        wan = Some(WanPort { egress, ingress });
    }
    // A misspelt key such as `wann` may hide the port: one fault, not two.
    if section.has_unknown_key() {
        wan = wan.or(Some(FAULTY_PORT_SUBSTITUTE));
    }
    section.report_unknown_keys();
    GatewayEntry { name, key, ranks: ranks.map(|ranks| ranks.0), ranks_at_fault, wan, addresses }
}

/// Reads all tables `[link.A-B]` whose names join two regions.
fn read_fabric_link_tables(
    source: &ConfigSource<'_>,
    root: &Section<'_>,
    regions: &[FabricRegionSpec],
) -> Vec<(FabricLinkSpec, LinkPolicy)> {
    let mut links = Vec::new();
    for (name, section) in root.read_subtables(&keys::LINK_TABLE) {
        let given = section.read_optional(&keys::LINK_RATE);
        let rtt = section.read_required(&keys::LINK_RTT).unwrap_or(Span::ZERO);
        let loss = section.read_optional(&keys::LINK_LOSS).map(|loss| loss.0).unwrap_or_default();
        let ends = split_fabric_table_name(&name, regions);
        let ports = ends.first().and_then(|between| port_rate_of_fabric_tables(between, regions));
        let rate = given.or(ports).unwrap_or(FAULTY_PORT_SUBSTITUTE.egress);
        let policy = read_fabric_table_link_policy(source, &section, rate);
        match ends.as_slice() {
            [between] => {
                links.push((FabricLinkSpec { between: between.clone(), rate, rtt, loss }, policy));
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
                source.record_fault(section.key(), problem, accepted);
            }
        }
        section.report_unknown_keys();
    }
    links
}

/// Returns the bit rate that the WAN ports of two regions allow in the faster direction; `None` if
/// it is 0. In each direction it is the senders' egress or the receivers' ingress, whichever sum is
/// less.
fn port_rate_of_fabric_tables(
    between: &(String, String),
    regions: &[FabricRegionSpec],
) -> Option<BitRate> {
    let ports = |name: &String| {
        let region = regions.iter().find(|region| region.name == *name);
        let ports = region.into_iter().flat_map(|region| &region.gateways).filter_map(|of| of.wan);
        ports.fold((0, 0), |(out, inward): (u64, u64), port| {
            let (egress, ingress) = (port.egress, port.ingress);
            let out = out.saturating_add(egress.bits_per_second());
            (out, inward.saturating_add(ingress.bits_per_second()))
        })
    };
    let (one, other) = (ports(&between.0), ports(&between.1));
    let bits = one.0.min(other.1).max(other.0.min(one.1));
    (bits > 0).then(|| BitRate::from_bits_per_second(bits))
}

/// Reads the schedule and the congestion controller of a link whose capacity is `rate`. Records
/// faults for a scheduled rate outside the limits, and for `dedicated` without a `rate` in the
/// file.
fn read_fabric_table_link_policy(
    source: &ConfigSource<'_>,
    section: &Section<'_>,
    rate: BitRate,
) -> LinkPolicy {
    let schedule = section.read_optional(&keys::LINK_SCHEDULE);
    let rates = schedule.iter().flat_map(RateSchedule::entries).map(|(_, rate)| rate);
    let fits = |one: &BitRate| one.bits_per_second() >= LINK_RATE_MIN_BITS_PER_S && *one <= rate;
    if let Some(bad) = rates.filter(|rate| !fits(rate)).last() {
        let accepted = format!("rates from 8 kbit/s to the link's {rate}");
        source.record_fault(
            &section.key_path("schedule"),
            format!("has a rate of {bad}"),
            accepted,
        );
    }
    let controller = section.read_optional(&keys::LINK_CONTROLLER);
    let has_rate = section.has_key(keys::LINK_RATE.name);
    if controller == Some(ControllerPolicy::Dedicated) && !has_rate {
        section.report_missing(
            keys::LINK_RATE.name,
            <BitRate as FromConfigValue>::VALUE_TYPE.accepted,
        );
    }
    let default = if has_rate { ControllerPolicy::Dedicated } else { ControllerPolicy::Shared };
    LinkPolicy { schedule, controller: controller.unwrap_or(default) }
}

/// Returns the policy of each link by the numbers of the two regions that the link joins.
fn policies_of_fabric_tables(
    fabric: &Fabric,
    links: &[FabricLinkSpec],
    policies: Vec<LinkPolicy>,
) -> LinkPolicies {
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

/// Returns all ways to split a link's name into two regions, whose names may contain hyphens.
fn split_fabric_table_name(name: &str, regions: &[FabricRegionSpec]) -> Vec<(String, String)> {
    let known = |name: &str| regions.iter().any(|region| region.name == name);
    let splits = name.match_indices('-').map(|(at, _)| (&name[..at], &name[at + 1..]));
    let joined = splits.filter(|(one, other)| known(one) && known(other) && one != other);
    joined.map(|(one, other)| (one.to_owned(), other.to_owned())).collect()
}

/// Records a fault of the table `key` whose `name` is not valid for a region or gateway.
fn check_fabric_table_name(source: &ConfigSource<'_>, key: &str, name: &str) {
    if !is_valid_config_name_value(name) {
        let problem = format!("`{name}` is not a valid name");
        source.record_fault(key, problem, Name::VALUE_TYPE.accepted.to_owned());
    }
}

/// 1,500 bytes: the IP MTU that plans assume for a fabric whose file gives none. Lanes of that
/// fabric probe for the largest packet that arrives.
const MTU_DEFAULT: u16 = 1500;

/// 1 Gbit/s in each direction: stands for a WAN port or link rate that the fabric file gives
/// wrongly or not at all. So reading goes on and finds further faults; the file is refused in any
/// case.
const FAULTY_PORT_SUBSTITUTE: WanPort = WanPort {
    egress: BitRate::from_bits_per_second(1_000_000_000),
    ingress: BitRate::from_bits_per_second(1_000_000_000),
};
