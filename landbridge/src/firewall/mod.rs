//! The rules that a firewall on the way between gateways needs.
//!
//! `landbridge ports` prints them. They follow from the files alone; nothing is sent.

mod nftables;

pub(crate) use nftables::nftables_script;

use gateway::config::{GatewayConfig, LanePeer, RegionFile};
use gateway::wan::connect::peer_addresses::{PeerAddress, PeerAddresses};
use hier_collectives::plan;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// Direction of packets, as the host of the gateway sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    /// To the host.
    In,
    /// From the host.
    Out,
    /// To an address of a NAT or relay, which passes them on to the host.
    Forward,
}

/// Packets that a firewall has to let through. The field names are keys of the JSON output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct FirewallRule {
    /// Direction of the packets.
    pub direction: Direction,
    /// `udp` or `tcp`.
    pub protocol: &'static str,
    /// Address that they come from; `None` for any address.
    pub source: Option<IpAddr>,
    /// Ports that they come from, ascending; empty for any port.
    pub source_ports: BTreeSet<u16>,
    /// Address that they go to; `None` for any address.
    pub destination: Option<IpAddr>,
    /// Ports that they go to, ascending; empty for any port.
    pub destination_ports: BTreeSet<u16>,
    /// Use of these packets.
    pub purpose: String,
}

/// Returns the rules for one gateway of a region file: its lanes, in both directions, and the addresses
/// for trainers and for its status if other hosts can reach those. Firewalls that track connections
/// let answers through without their rules.
pub(crate) fn firewall_rules(region: &RegionFile, gateway: &GatewayConfig) -> Vec<FirewallRule> {
    let fabric = region.fabric().fabric();
    let lanes = plan::plan_lanes_limit(fabric);
    let mut rules = Vec::new();
    for peer in region.lane_peers(gateway) {
        rules.extend(lane_firewall_rules(&peer, lanes, &fabric.gateway(peer.id).name));
    }
    let attach = gateway.attach.map(|address| (address, "trainers of other hosts of the site"));
    let status = (gateway.status, "status and metrics, for those who read them");
    rules.extend(attach.into_iter().chain([status]).filter_map(tcp_firewall_rule));
    rules
}

/// Returns the rule for a TCP address at which the gateway listens; `None` for one that only this host
/// reaches.
fn tcp_firewall_rule((address, purpose): (SocketAddr, &str)) -> Option<FirewallRule> {
    (!address.ip().is_loopback()).then(|| FirewallRule {
        direction: Direction::In,
        protocol: "tcp",
        source: None,
        source_ports: BTreeSet::new(),
        destination: Some(address.ip()),
        destination_ports: BTreeSet::from([address.port()]),
        purpose: purpose.to_owned(),
    })
}

/// Returns the rules for the lanes to one peer, whose name is `name`: from the end that dials, at any
/// port, to the UDP port of the other; and the answers.
fn lane_firewall_rules(peer: &LanePeer, lanes: u16, name: &str) -> Vec<FirewallRule> {
    let LanePeer { dials, own, own_seen_at, theirs, .. } = peer;
    let mut rules = Vec::new();
    let here = PeerAddresses::from(own.clone());
    let (dialling, dialled) =
        if *dials { (Some(&here), theirs.as_ref()) } else { (theirs.as_ref(), Some(&here)) };
    let Some(dialled) = dialled else { return rules };
    let name = &describe_firewall_peer(name, theirs.as_ref());
    let (there, back) =
        if *dials { (Direction::Out, Direction::In) } else { (Direction::In, Direction::Out) };
    let to = if *dials { "to" } else { "of" };
    for ((from, to_ip), ports) in firewall_ports_by_addresses(dialling, dialled, lanes) {
        let rule = FirewallRule {
            direction: there,
            protocol: "udp",
            source: from,
            source_ports: BTreeSet::new(),
            destination: to_ip,
            destination_ports: ports.clone(),
            purpose: format!("lanes {to} {name}"),
        };
        let answers = FirewallRule {
            direction: back,
            source: to_ip,
            source_ports: ports,
            destination: from,
            destination_ports: BTreeSet::new(),
            purpose: format!("answers on the lanes {to} {name}"),
            ..rule.clone()
        };
        rules.extend([rule, answers]);
    }
    // A gateway with a host name takes packets at all of its host's addresses.
    let takes_all = |seen_at: &PeerAddresses| {
        own.first().ip().is_unspecified() && seen_at.first().port() == own.first().port()
    };
    let forwarded = own_seen_at.as_ref().filter(|seen_at| !dials && **seen_at != here);
    let forwarded = forwarded.filter(|seen_at| !(seen_at.have_names() && takes_all(seen_at)));
    let Some(seen_at) = forwarded else { return rules };
    let to: BTreeSet<IpAddr> = own.all().map(|address| address.ip()).collect();
    let to: Vec<String> = to.iter().map(IpAddr::to_string).collect();
    for ((source, destination), ports) in
        firewall_ports_by_addresses(theirs.as_ref(), seen_at, lanes)
    {
        rules.push(FirewallRule {
            direction: Direction::Forward,
            protocol: "udp",
            source,
            source_ports: BTreeSet::new(),
            destination,
            destination_ports: ports,
            purpose: format!("lanes of {name}, passed on to {}", to.join(", ")),
        });
    }
    rules
}

/// Returns the name of a peer, with the host names by which it is reached: firewalls match addresses
/// alone, and a host name may have any.
fn describe_firewall_peer(name: &str, addresses: Option<&PeerAddresses>) -> String {
    let all = addresses.map(PeerAddresses::all).unwrap_or_default();
    let hosts = all.iter().filter(|address| address.ip_address().is_none());
    let hosts: Vec<String> = hosts.map(PeerAddress::to_string).collect();
    if hosts.is_empty() { name.to_owned() } else { format!("{name} at {}", hosts.join(", ")) }
}

/// Returns the destination ports of all lanes by source and destination address. Each may be any
/// address: a source that is not known, and a host name.
fn firewall_ports_by_addresses(
    from: Option<&PeerAddresses>,
    to: &PeerAddresses,
    lanes: u16,
) -> BTreeMap<(Option<IpAddr>, Option<IpAddr>), BTreeSet<u16>> {
    let ip = |address: &PeerAddress| address.ip_address().map(|address| address.ip());
    let mut ports: BTreeMap<_, BTreeSet<u16>> = BTreeMap::new();
    for lane in 0..lanes {
        let destination = to.of_lane(lane);
        let source = from.and_then(|from| ip(from.of_lane(lane)));
        ports.entry((source, ip(destination))).or_default().insert(destination.port());
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;
    use gateway::wan::connect::path_probe::path_check::describe_path_check_port_numbers;
    use std::path::Path;

    /// Returns the rules of east in the example, with one replacement in each file.
    fn rules(fabric: (&str, &str), east: (&str, &str)) -> Vec<String> {
        let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/two-region");
        let folder = tempfile::tempdir().expect("a temporary directory");
        for (name, (from, to)) in [("fabric.toml", fabric), ("east.toml", east)] {
            let text = std::fs::read_to_string(configs.join(name)).expect("readable");
            assert!(text.contains(from), "{from}");
            std::fs::write(folder.path().join(name), text.replace(from, to)).expect("written");
        }
        let region = RegionFile::load(&folder.path().join("east.toml")).expect("valid");
        let rules = firewall_rules(&region, region.gateway(None).expect("the only one"));
        let text = |rule: &FirewallRule| {
            let end = |address: Option<IpAddr>, ports: &BTreeSet<u16>| {
                let address = address.map_or("any".to_owned(), |address| address.to_string());
                match ports.is_empty() {
                    true => address,
                    false => format!("{address} {}", describe_path_check_port_numbers(ports)),
                }
            };
            let from = end(rule.source, &rule.source_ports);
            let to = end(rule.destination, &rule.destination_ports);
            format!("{:?} {} {from} -> {to}", rule.direction, rule.protocol)
        };
        rules.iter().map(text).collect()
    }

    /// Returns the rules of east where the other region comes first by name, and so dials east.
    fn rules_of_dialled(east: (&str, &str)) -> Vec<String> {
        rules(("west", "aaa"), east)
    }

    #[test]
    fn lanes_need_one_port_of_the_end_that_is_dialled() {
        let same = ("127.0.0.1:9400", "127.0.0.1:9400");
        assert_eq!(
            rules(("127.0.0.1:7500", "192.0.2.7:7500"), same),
            ["Out udp 127.0.0.1 -> 192.0.2.7 7500", "In udp 192.0.2.7 7500 -> 127.0.0.1",]
        );
        let several = "[\"192.0.2.7:7500\", \"192.0.2.8:7500\"]";
        assert_eq!(
            rules(("\"127.0.0.1:7500\"", several), ("127.0.0.1:9400", "0.0.0.0:9400")),
            [
                "Out udp 127.0.0.1 -> 192.0.2.7 7500",
                "In udp 192.0.2.7 7500 -> 127.0.0.1",
                "Out udp 127.0.0.1 -> 192.0.2.8 7500",
                "In udp 192.0.2.8 7500 -> 127.0.0.1",
                "In tcp any -> 0.0.0.0 9400",
            ]
        );
    }

    #[test]
    fn a_peer_that_cannot_be_dialled_may_come_from_anywhere() {
        let same = ("127.0.0.1:9400", "127.0.0.1:9400");
        assert_eq!(
            rules(("wan = \"127.0.0.1:7500\"\n", ""), same),
            ["In udp any -> 127.0.0.1 7400", "Out udp 127.0.0.1 7400 -> any"]
        );
        assert_eq!(
            rules(("wan = \"127.0.0.1:7400\"\n", ""), same),
            ["Out udp 0.0.0.0 -> 127.0.0.1 7500", "In udp 127.0.0.1 7500 -> 0.0.0.0"],
        );
    }

    #[test]
    fn a_host_name_may_have_any_address() {
        let same = ("127.0.0.1:9400", "127.0.0.1:9400");
        assert_eq!(
            rules(("127.0.0.1:7500", "gw.example.net:7500"), same),
            ["Out udp 127.0.0.1 -> any 7500", "In udp any 7500 -> 127.0.0.1"]
        );
    }

    #[test]
    fn trainers_of_other_hosts_need_their_port() {
        let attach = "status = \"127.0.0.1:9400\"\nattach = \"192.0.2.10:7480\"";
        let rules =
            rules(("127.0.0.1:7500", "127.0.0.1:7500"), ("status = \"127.0.0.1:9400\"", attach));
        assert_eq!(rules.last().expect("one"), "In tcp any -> 192.0.2.10 7480");
    }

    #[test]
    fn addresses_behind_nat_are_forwarded() {
        let listen = "status = \"127.0.0.1:9400\"\nlisten = \"10.0.0.5:7400\"";
        assert_eq!(
            rules_of_dialled(("status = \"127.0.0.1:9400\"", listen)),
            [
                "In udp 127.0.0.1 -> 10.0.0.5 7400",
                "Out udp 10.0.0.5 7400 -> 127.0.0.1",
                "Forward udp 127.0.0.1 -> 127.0.0.1 7400",
            ]
        );
    }
}
