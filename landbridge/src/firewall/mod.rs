//! The rules that a firewall on the way between gateways needs.
//!
//! `landbridge ports` prints them. They follow from the files alone; nothing is sent.

mod nftables;

pub(crate) use nftables::nftables_script;

use gateway::config::{GatewayConfig, LanePeer, RegionFile};
use gateway::wan::connect::lane_addresses::LaneAddresses;
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
    /// Address that they come from, at any port; `None` for any address.
    pub source: Option<IpAddr>,
    /// Address that they go to.
    pub destination: IpAddr,
    /// Ports that they go to, ascending.
    pub destination_ports: BTreeSet<u16>,
    /// Use of these packets.
    pub purpose: String,
}

/// Returns the rules for one gateway of a region file: its lanes, in both directions, and the addresses
/// for trainers and for its status if other hosts can reach those.
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
        destination: address.ip(),
        destination_ports: BTreeSet::from([address.port()]),
        purpose: purpose.to_owned(),
    })
}

/// Returns the rules for the lanes to one peer, whose name is `name`.
fn lane_firewall_rules(peer: &LanePeer, lanes: u16, name: &str) -> Vec<FirewallRule> {
    let LanePeer { own, own_seen_at, theirs, .. } = peer;
    let udp = |direction, (source, destination), destination_ports, purpose: String| {
        let (protocol, source) = ("udp", Some(source));
        FirewallRule { direction, protocol, source, destination, destination_ports, purpose }
    };
    let mut rules = Vec::new();
    for ((source, destination), ports) in firewall_ports_by_addresses(theirs, own, lanes) {
        let purpose = format!("lanes of {name}");
        rules.push(udp(Direction::In, (source, destination), ports, purpose));
    }
    for ((source, destination), ports) in firewall_ports_by_addresses(own, theirs, lanes) {
        let purpose = format!("lanes to {name}");
        rules.push(udp(Direction::Out, (source, destination), ports, purpose));
    }
    if own_seen_at != own {
        let to: BTreeSet<IpAddr> = own.all().map(|address| address.ip()).collect();
        let to: Vec<String> = to.iter().map(IpAddr::to_string).collect();
        let purpose = format!("lanes of {name}, passed on to {}", to.join(", "));
        for ((source, destination), ports) in
            firewall_ports_by_addresses(theirs, own_seen_at, lanes)
        {
            rules.push(udp(Direction::Forward, (source, destination), ports, purpose.clone()));
        }
    }
    rules
}

/// Returns the destination ports of all lanes by source and destination address.
fn firewall_ports_by_addresses(
    from: &LaneAddresses,
    to: &LaneAddresses,
    lanes: u16,
) -> BTreeMap<(IpAddr, IpAddr), BTreeSet<u16>> {
    let mut ports: BTreeMap<_, BTreeSet<u16>> = BTreeMap::new();
    for lane in 0..lanes {
        let destination = to.of_lane(lane);
        let addresses = (from.of_lane(lane).ip(), destination.ip());
        ports.entry(addresses).or_default().insert(destination.port());
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
            let source = rule.source.map_or("any".to_owned(), |source| source.to_string());
            let ports = describe_path_check_port_numbers(&rule.destination_ports);
            let FirewallRule { direction, protocol, destination, .. } = rule;
            format!("{direction:?} {protocol} {source} -> {destination} {ports}")
        };
        rules.iter().map(text).collect()
    }

    #[test]
    fn lanes_need_their_ports_both_ways() {
        let fabric = ("127.0.0.1:7500", "192.0.2.7:7500");
        let rules = rules(fabric, ("127.0.0.1:9400", "127.0.0.1:9400"));
        assert_eq!(rules.len(), 2, "{rules:?}");
        assert_eq!(rules[0], "In udp 192.0.2.7 -> 127.0.0.1 7400-7403");
        assert_eq!(rules[1], "Out udp 127.0.0.1 -> 192.0.2.7 7500-7503");
    }

    #[test]
    fn several_addresses_have_every_other_port() {
        let several = "[\"192.0.2.7:7500\", \"192.0.2.8:7500\"]";
        assert_eq!(
            rules(("\"127.0.0.1:7500\"", several), ("127.0.0.1:9400", "0.0.0.0:9400")),
            [
                "In udp 192.0.2.7 -> 127.0.0.1 7400, 7402",
                "In udp 192.0.2.8 -> 127.0.0.1 7401, 7403",
                "Out udp 127.0.0.1 -> 192.0.2.7 7500, 7502",
                "Out udp 127.0.0.1 -> 192.0.2.8 7501, 7503",
                "In tcp any -> 0.0.0.0 9400",
            ]
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
            rules(("127.0.0.1:7400", "198.51.100.1:7600"), ("status = \"127.0.0.1:9400\"", listen)),
            [
                "In udp 127.0.0.1 -> 10.0.0.5 7400-7403",
                "Out udp 10.0.0.5 -> 127.0.0.1 7500-7503",
                "Forward udp 127.0.0.1 -> 198.51.100.1 7600-7603",
            ]
        );
    }
}
