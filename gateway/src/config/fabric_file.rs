//! `fabric.toml`: the same in every region.

use super::fault::Faults;
use super::reader::{self, Section, Source};
use super::values::{Name, Peer, RankCount, Speeds, is_name};
use crate::wan::connect::addresses::LaneAddresses;
use crate::wan::link::policy::LINK_RATE_MIN_BITS_PER_S;
use crate::wan::link::policy::{ControllerKind, LinkPolicy, Policies, Schedule};
use hier_collectives::ids::{GatewayId, RegionId};
use hier_collectives::topology::{Fabric, FabricError, GatewaySpec, LinkSpec, RegionSpec, WanPort};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use units::{BitRate, Fraction, Span};

/// Lanes a gateway may open at most: lane `i` uses the port of its address plus `i`.
pub const LANES_MAX: u16 = 16;

/// A fabric and where its gateways are reached.
#[derive(Debug, Clone, PartialEq)]
pub struct FabricFile {
    path: PathBuf,
    fabric: Fabric,
    addresses: Vec<Addresses>,
    mtu_pinned: bool,
    policies: Policies,
}

/// Where one gateway's lanes are reached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Addresses {
    wan: Option<LaneAddresses>,
    lan: Option<LaneAddresses>,
}

impl FabricFile {
    /// Reads and checks a fabric file.
    ///
    /// # Errors
    /// Every fault of the file.
    pub fn load(path: &Path) -> Result<Self, Faults> {
        let text = reader::read_text(path)?;
        Self::parse(path, &text)
    }

    /// Checks the text of a fabric file; `path` is only named in faults.
    ///
    /// # Errors
    /// Every fault of the text.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Faults> {
        let Read { fabric, mut addresses, mtu_pinned, policies } =
            Source::new(path, text).read(read_fabric)?;
        let of_gateway = |id| addresses.remove(&fabric.gateway(id).name).unwrap_or_default();
        let addresses = fabric.gateway_ids().map(of_gateway).collect();
        Ok(Self { path: path.to_owned(), fabric, addresses, mtu_pinned, policies })
    }

    /// The file it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The checked fabric.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Where a gateway's first lane is reached; `None` for one without a WAN port.
    pub fn address(&self, gateway: GatewayId) -> Option<SocketAddr> {
        self.lane_addresses(gateway).map(LaneAddresses::first)
    }

    /// Where a gateway's lanes are reached; `None` for one without a WAN port.
    pub fn lane_addresses(&self, gateway: GatewayId) -> Option<&LaneAddresses> {
        self.addresses.get(usize::from(gateway.0))?.wan.as_ref()
    }

    /// Where the other gateways of its region reach a gateway's lanes, if the file says so.
    pub fn lan_addresses(&self, gateway: GatewayId) -> Option<&LaneAddresses> {
        self.addresses.get(usize::from(gateway.0))?.lan.as_ref()
    }

    /// Where a gateway reaches the first lane of another one of its region: over the LAN, or from
    /// port to port where not both say how they are reached over the LAN.
    pub fn meets_at(&self, one: GatewayId, other: GatewayId) -> Option<SocketAddr> {
        let lan = self.lan_addresses(other).filter(|_| self.lan_addresses(one).is_some());
        let port = || self.lane_addresses(other).filter(|_| self.lane_addresses(one).is_some());
        lan.or_else(port).map(LaneAddresses::first)
    }

    /// Sides that a gateway has lanes on: its port and the LAN, where it meets somebody there.
    pub fn sides(&self, me: GatewayId) -> usize {
        let fabric = &self.fabric;
        let on_both = |of: &dyn Fn(GatewayId) -> bool, other| of(me) && of(other);
        let (at_port, on_lan) =
            (|id| self.lane_addresses(id).is_some(), |id| self.lan_addresses(id).is_some());
        let region = |id| fabric.gateway(id).region;
        let over_lan = |id| region(id) == region(me) && on_both(&on_lan, id);
        let over_port = |id| {
            let joined = region(id) == region(me) || fabric.link(region(me), region(id)).is_some();
            joined && on_both(&at_port, id) && !over_lan(id)
        };
        let others = || fabric.gateway_ids().filter(|id| *id != me);
        usize::from(others().any(over_port)) + usize::from(others().any(over_lan))
    }

    /// Whether the file says the MTU; otherwise lanes look for what gets through, up to what
    /// their host sends.
    pub fn mtu_pinned(&self) -> bool {
        self.mtu_pinned
    }

    /// How its links are used.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// SHA-256 of what all members must agree on before they meet: the fabric's name and MTU,
    /// every region's and gateway's name, ranks and whether it has a WAN port, and which regions
    /// are linked. Addresses and the links' rates are not part of it.
    pub fn identity(&self) -> [u8; 32] {
        let mut text =
            format!("landbridge fabric 1\n{} {}\n", self.fabric.name(), self.fabric.mtu());
        for region in self.fabric.regions() {
            text.push_str(&format!("region {}\n", region.name));
            for id in region.gateways.clone().map(GatewayId) {
                let gateway = self.fabric.gateway(id);
                let (ranks, wan) = (&gateway.ranks, gateway.wan.is_some());
                let line = format!("{} {} {} {wan}\n", gateway.name, ranks.start, ranks.end);
                text.push_str(&line);
            }
        }
        for link in self.fabric.links() {
            let ends = [link.a, link.b].map(|end| &*self.fabric.region(end).name);
            text.push_str(&format!("link {} {}\n", ends[0], ends[1]));
        }
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        bytes
    }
}

/// A gateway as the file has it. What was at fault stands in a form that makes no second fault.
struct GatewayEntry {
    name: String,
    key: String,
    ranks: Option<u32>,
    ranks_at_fault: bool,
    wan: Option<WanPort>,
    addresses: Addresses,
}

/// What a file holds, addresses by the gateways' names.
struct Read {
    fabric: Fabric,
    addresses: BTreeMap<String, Addresses>,
    mtu_pinned: bool,
    policies: Policies,
}

fn read_fabric(source: &Source<'_>, root: &mut Section<'_>) -> Option<Read> {
    let name = root.required::<Name>("name");
    let mtu = root.optional::<u16>("mtu");
    let mut regions = Vec::new();
    let mut gateways = Vec::new();
    for (name, section) in root.tables("region") {
        let (region, entries) = read_region(source, name, section);
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
            let policies = numbered(&fabric, &links, policies);
            let (addresses, mtu_pinned) = (addresses.collect(), mtu.is_some());
            Some(Read { fabric, addresses, mtu_pinned, policies })
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
    mut section: Section<'_>,
) -> (RegionSpec, Vec<GatewayEntry>) {
    check_name(source, section.key(), &name);
    let ranks_given = section.has("ranks");
    let ranks = section.required::<RankCount>("ranks").map(|ranks| ranks.0);
    let speeds = section.optional::<Speeds>("speeds").map(|speeds| speeds.0);
    let tables = section.tables("gateway");
    let several = tables.len() > 1;
    if tables.is_empty() && !section.has("gateway") {
        section.missing("gateway", "at least one table such as [region.east.gateway.east-0]");
    }
    let mut gateways: Vec<GatewayEntry> = tables
        .into_iter()
        .map(|(name, table)| read_gateway(source, name, table, several))
        .collect();
    if let [only] = gateways.as_mut_slice()
        && only.ranks.is_none()
    {
        only.ranks = ranks;
    }
    let unsure = ranks.is_none() || gateways.iter().any(|gateway| gateway.ranks_at_fault);
    let served = |gateway: &GatewayEntry| gateway.ranks.unwrap_or(1);
    // Where a count is at fault or nobody serves, no second fault about the sum.
    let count = match ranks {
        Some(ranks) if !unsure && !gateways.is_empty() => ranks,
        _ => gateways.iter().map(served).sum::<u32>().max(1),
    };
    let width = usize::try_from(count).unwrap_or(usize::MAX);
    if let (Some(speeds), false, true) = (&speeds, unsure, ranks_given)
        && speeds.len() != width
    {
        let problem = format!("has {} values for {count} ranks", speeds.len());
        let accepted = format!("an array of {count} positive numbers");
        source.fault_at(&section.key_of("speeds"), problem, accepted);
    }
    let speeds = speeds.filter(|speeds| speeds.len() == width).unwrap_or(vec![1.0; width]);
    let spec = gateways
        .iter()
        .map(|gateway| GatewaySpec::new(gateway.name.clone(), served(gateway), gateway.wan));
    let mut spec: Vec<GatewaySpec> = spec.collect();
    if spec.is_empty() {
        spec.push(GatewaySpec::new(format!("{name}-"), count, Some(PORT_AT_FAULT)));
    }
    section.close();
    (RegionSpec { name, speeds, gateways: spec }, gateways)
}

fn read_gateway(
    source: &Source<'_>,
    name: String,
    mut section: Section<'_>,
    several: bool,
) -> GatewayEntry {
    check_name(source, section.key(), &name);
    let key = section.key().to_owned();
    let ranks = if several {
        section.required::<RankCount>("ranks")
    } else {
        section.optional::<RankCount>("ranks")
    };
    let ranks_at_fault = ranks.is_none() && (several || section.has("ranks"));
    let (mut wan, mut addresses) = (None, Addresses::default());
    addresses.lan = section.optional::<Peer>("lan").map(|peer| peer.0);
    let has_port = ["wan", "egress", "ingress"].iter().any(|name| section.has(name));
    if has_port {
        addresses.wan = section.required::<Peer>("wan").map(|peer| peer.0);
        let egress = section.required::<BitRate>("egress").unwrap_or(PORT_AT_FAULT.egress);
        let ingress = section.required::<BitRate>("ingress").unwrap_or(PORT_AT_FAULT.ingress);
        wan = Some(WanPort { egress, ingress });
    } else {
        // Asked for all the same, so that a slip such as `wann` is told the known keys.
        section.optional::<Peer>("wan");
        section.optional::<BitRate>("egress");
        section.optional::<BitRate>("ingress");
    }
    // A slip may hide the port; that is one fault, not two.
    if section.has_unasked() {
        wan = wan.or(Some(PORT_AT_FAULT));
    }
    section.close();
    GatewayEntry { name, key, ranks: ranks.map(|ranks| ranks.0), ranks_at_fault, wan, addresses }
}

fn read_links(
    source: &Source<'_>,
    root: &mut Section<'_>,
    regions: &[RegionSpec],
) -> Vec<(LinkSpec, LinkPolicy)> {
    let mut links = Vec::new();
    for (name, mut section) in root.tables("link") {
        let rate = section.required::<BitRate>("rate").unwrap_or(PORT_AT_FAULT.egress);
        let rtt = section.required::<Span>("rtt").unwrap_or(Span::ZERO);
        let loss = section.optional::<Fraction>("loss").unwrap_or_default();
        let policy = read_policy(source, &mut section, rate);
        match resolve(&name, regions).as_slice() {
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

fn read_policy(source: &Source<'_>, section: &mut Section<'_>, whole: BitRate) -> LinkPolicy {
    let schedule = section.optional::<Schedule>("schedule");
    let rates = schedule.iter().flat_map(Schedule::entries).map(|(_, rate)| rate);
    let fits =
        |rate: &BitRate| rate.bits_per_second() >= LINK_RATE_MIN_BITS_PER_S && *rate <= whole;
    if let Some(bad) = rates.filter(|rate| !fits(rate)).last() {
        let accepted = format!("rates from 8 kbit/s to the link's {whole}");
        source.fault_at(&section.key_of("schedule"), format!("has a rate of {bad}"), accepted);
    }
    let controller = section.optional::<ControllerKind>("controller").unwrap_or_default();
    LinkPolicy { schedule, controller }
}

/// The policies by the numbers of their links.
fn numbered(fabric: &Fabric, links: &[LinkSpec], policies: Vec<LinkPolicy>) -> Policies {
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

/// All ways to read a link's name as two regions. Regions may have hyphens of their own.
fn resolve(name: &str, regions: &[RegionSpec]) -> Vec<(String, String)> {
    let known = |name: &str| regions.iter().any(|region| region.name == name);
    let splits = name.match_indices('-').map(|(at, _)| (&name[..at], &name[at + 1..]));
    let joined = splits.filter(|(one, other)| known(one) && known(other) && one != other);
    joined.map(|(one, other)| (one.to_owned(), other.to_owned())).collect()
}

fn check_name(source: &Source<'_>, key: &str, name: &str) {
    if !is_name(name) {
        let problem = format!("`{name}` is no usable name");
        let accepted = <Name as super::values::FromValue>::ACCEPTED.to_owned();
        source.fault_at(key, problem, accepted);
    }
}

/// Two addresses on one IP need ports that leave room for the lanes of both.
fn check_ports(source: &Source<'_>, gateways: &[GatewayEntry]) {
    let near = |one: SocketAddr, other: SocketAddr| {
        one.ip() == other.ip() && one.port().abs_diff(other.port()) < LANES_MAX
    };
    let mut earlier: Vec<(SocketAddr, &str)> = Vec::new();
    for gateway in gateways {
        let Addresses { wan, lan } = &gateway.addresses;
        for (key, addresses) in [("wan", wan), ("lan", lan)] {
            let Some(addresses) = addresses else { continue };
            let clash = earlier
                .iter()
                .find(|(other, _)| addresses.all().any(|address| near(address, *other)));
            if let Some((_, clash)) = clash {
                let problem = format!("its ports overlap those of gateway `{clash}`");
                let accepted = format!("ports at least {LANES_MAX} apart on one IP address");
                source.fault_at(&format!("{}.{key}", gateway.key), problem, accepted);
            }
            earlier.extend(addresses.all().map(|address| (address, &*gateway.name)));
        }
    }
}

/// Records a fault of the fabric as a whole at the key that has to change.
fn report(source: &Source<'_>, fault: &FabricError, gateways: &[GatewayEntry], links: &[LinkSpec]) {
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
        // A link that could not be read is the fault; that it leads nowhere follows.
        FabricError::Unreachable(..) if source.has_fault_under("link") => return,
        FabricError::Unreachable(..) => {
            ("link".to_owned(), "links by which every region reaches every other")
        }
        FabricError::BadValue(text) => (key_of(text, gateways, links), "a value inside that range"),
    };
    source.fault_at(&key, fault.to_string(), accepted.to_owned());
}

/// The key that a [`FabricError::BadValue`] speaks of: its text names the subject first.
fn key_of(text: &str, gateways: &[GatewayEntry], links: &[LinkSpec]) -> String {
    for gateway in gateways {
        if text.starts_with(&format!("gateway `{}`", gateway.name)) {
            let slow = gateway.wan.is_some_and(|wan| wan.egress > wan.ingress);
            return format!("{}.{}", gateway.key, if slow { "ingress" } else { "egress" });
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

/// IP MTU that every path of the public Internet is expected to carry.
const MTU_DEFAULT: u16 = 1500;

/// Stands for a port or rate whose fault is already recorded.
const PORT_AT_FAULT: WanPort = WanPort {
    egress: BitRate::from_bits_per_second(1_000_000_000),
    ingress: BitRate::from_bits_per_second(1_000_000_000),
};
