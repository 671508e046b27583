//! Rules for firewalls in the language of nftables, for the host of the gateway.

use super::{Direction, FirewallRule};
use gateway::wan::connect::path_probe::path_check::describe_path_check_port_numbers;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Returns a script for `nft -f -` that puts `rules` at the beginning of the chains of Debian's
/// `/etc/nftables.conf`.
///
/// Other devices have to pass on what is forwarded, so those rules are comments.
pub(crate) fn nftables_script(rules: &[FirewallRule]) -> String {
    rules.iter().map(|rule| nftables_line(rule) + "\n").collect()
}

/// Returns the line of one rule: a command of nft, or a comment.
fn nftables_line(rule: &FirewallRule) -> String {
    let FirewallRule { direction, protocol, purpose, .. } = rule;
    let chain = match direction {
        Direction::In => "input",
        Direction::Out => "output",
        Direction::Forward => {
            let ports = describe_path_check_port_numbers(&rule.destination_ports);
            let text = |address: Option<IpAddr>| {
                address.map_or("any".to_owned(), |address| address.to_string())
            };
            let (source, destination) = (text(rule.source), text(rule.destination));
            return format!(
                "# at {destination}: {protocol} from {source} to ports {ports}: {purpose}"
            );
        }
    };
    let address = |field, address: Option<IpAddr>| {
        address.map_or(String::new(), |address| nftables_address_match(field, address))
    };
    let source = address("saddr", rule.source);
    let destination = address("daddr", rule.destination);
    let mut ports = nftables_port_match(protocol, "sport", &rule.source_ports)
        + &nftables_port_match(protocol, "dport", &rule.destination_ports);
    if rule.destination_ports.is_empty() {
        // Any port, but no packet that does not answer one of this host.
        ports += "ct state established ";
    }
    format!(
        "insert rule inet filter {chain} {source}{destination}{ports}accept comment \"{purpose}\""
    )
}

/// Returns the words that match a packet's ports, which `field` names, with a space at their end.
/// Nothing where any port will do.
fn nftables_port_match(protocol: &str, field: &str, ports: &BTreeSet<u16>) -> String {
    match ports.is_empty() {
        true => String::new(),
        false => {
            format!("{protocol} {field} {{ {} }} ", describe_path_check_port_numbers(ports))
        }
    }
}

/// Returns the words that match a packet's address, which `field` names, with a space at their end.
/// Nothing for an unspecified address, which stands for all addresses of the host.
fn nftables_address_match(field: &str, address: IpAddr) -> String {
    let family = if address.is_ipv4() { "ip" } else { "ip6" };
    match address.is_unspecified() {
        true => String::new(),
        false => format!("{family} {field} {address} "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a rule for UDP from 192.0.2.7.
    fn rule(direction: Direction, destination: &str, ports: &[u16]) -> FirewallRule {
        FirewallRule {
            direction,
            protocol: "udp",
            source: Some("192.0.2.7".parse().expect("an address")),
            source_ports: BTreeSet::new(),
            destination: Some(destination.parse().expect("an address")),
            destination_ports: BTreeSet::from_iter(ports.iter().copied()),
            purpose: "lanes of west-0".to_owned(),
        }
    }

    #[test]
    fn each_direction_has_its_chain() {
        let incoming = rule(Direction::In, "198.51.100.1", &[7400, 7401, 7403]);
        let outgoing = rule(Direction::Out, "198.51.100.1", &[7500]);
        assert_eq!(
            nftables_script(&[incoming, outgoing]),
            "insert rule inet filter input ip saddr 192.0.2.7 ip daddr 198.51.100.1 \
             udp dport { 7400-7401, 7403 } accept comment \"lanes of west-0\"\n\
             insert rule inet filter output ip saddr 192.0.2.7 ip daddr 198.51.100.1 \
             udp dport { 7500 } accept comment \"lanes of west-0\"\n"
        );
    }

    #[test]
    fn answers_come_from_a_port() {
        let answers = FirewallRule {
            source_ports: BTreeSet::from([7400]),
            ..rule(Direction::In, "198.51.100.1", &[])
        };
        assert_eq!(
            nftables_line(&answers),
            "insert rule inet filter input ip saddr 192.0.2.7 ip daddr 198.51.100.1 udp sport \
             { 7400 } ct state established accept comment \"lanes of west-0\""
        );
    }

    #[test]
    fn an_unspecified_address_matches_all() {
        let any = FirewallRule { source: None, ..rule(Direction::In, "0.0.0.0", &[9400]) };
        let line = "insert rule inet filter input udp dport { 9400 } accept";
        assert!(nftables_line(&any).starts_with(line), "{}", nftables_line(&any));
        let six = rule(Direction::In, "2001:db8::1", &[9400]);
        assert!(nftables_line(&six).contains("ip6 daddr 2001:db8::1 udp"), "{six:?}");
    }

    #[test]
    fn forwarded_packets_are_a_comment() {
        let line = nftables_line(&rule(Direction::Forward, "198.51.100.1", &[7400]));
        let wanted = "# at 198.51.100.1: udp from 192.0.2.7 to ports 7400: lanes of west-0";
        assert_eq!(line, wanted);
    }
}
