//! `landbridge ports`: prints the rules that firewalls need.

use super::config::RegionGatewayArguments;
use super::output::exit::Exit;
use super::output::print::{print_json, print_text, print_verbatim};
use super::output::table::render_table;
use crate::cli::output::command_error::CommandError;
use crate::firewall::{Direction, FirewallRule, firewall_rules, nftables_script};
use clap::Args;
use gateway::wan::connect::path_probe::path_check::describe_path_check_port_numbers;
use hier_collectives::plan;
use serde::Serialize;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Print what firewalls have to let through for a gateway: direction, protocol, addresses and
/// ports.
///
/// The rules follow from the region file and its fabric; nothing is sent. `landbridge doctor` tries
/// the ports of all peers and names those that do not answer.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge ports --config configs/two-region/east.toml")]
pub(super) struct PortsCommand {
    #[command(flatten)]
    gateway: RegionGatewayArguments,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print commands for `nft -f -` on the gateway's host
    #[arg(long, conflicts_with = "json")]
    nft: bool,
}

#[derive(Serialize)]
struct PortsReport<'a> {
    gateway: &'a str,
    lanes: u16,
    rules: &'a [FirewallRule],
}

impl PortsCommand {
    /// Runs `landbridge ports`: reads the files and prints the rules of one gateway.
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        let region = self.gateway.load_region()?;
        let gateway = self.gateway.choose(&region)?;
        let rules = firewall_rules(&region, gateway);
        let lanes = plan::plan_lanes_limit(region.fabric().fabric());
        if self.json {
            print_json(&PortsReport { gateway: &gateway.name, lanes, rules: &rules })?;
        } else if self.nft {
            print_verbatim(&nftables_script(&rules))?;
        } else {
            print_text(&describe_port_rules(&gateway.name, lanes, &rules))?;
        }
        Ok(Exit::Good)
    }
}

/// Returns the rules as a table, with what holds for all of them below it.
fn describe_port_rules(gateway: &str, lanes: u16, rules: &[FirewallRule]) -> String {
    if rules.is_empty() {
        return format!("gateway {gateway} has lanes to no other: no port is needed");
    }
    let row = |rule: &FirewallRule| {
        let direction = match rule.direction {
            Direction::In => "in",
            Direction::Out => "out",
            Direction::Forward => "forward",
        };
        let source = describe_port_rule_end(rule.source, &rule.source_ports);
        let destination = describe_port_rule_end(rule.destination, &rule.destination_ports);
        let protocol = rule.protocol.to_uppercase();
        [direction.to_owned(), protocol, source, destination, rule.purpose.clone()]
    };
    let rows: Vec<_> = rules.iter().map(row).collect();
    let table = render_table(["direction", "protocol", "from", "to", "for"], &rows);
    format!(
        "gateway {gateway}: let through\n\n{table}\nAll lanes to a peer, up to {lanes}, share the \
         UDP port of the end that is dialled. A firewall that tracks connections needs no rules for \
         answers.\n"
    )
}

/// Returns one end of packets as text: its address, with the ports if not all will do.
fn describe_port_rule_end(address: Option<IpAddr>, ports: &BTreeSet<u16>) -> String {
    let address = address.map_or("any".to_owned(), |address| address.to_string());
    match ports.is_empty() {
        true => address,
        false => format!("{address} port {}", describe_path_check_port_numbers(ports)),
    }
}
