//! Host names of a fabric file that this host cannot resolve, or that have another gateway's address.

use crate::cli::output::command_error::CommandError;
use gateway::config::{FabricFile, Fault};
use gateway::host::RealHost;
use gateway::wan::connect::peer_addresses::{
    PeerAddress, PeerAddresses, PeerLocation, UNRESOLVED_NAME_REMEDY,
};
use hier_collectives::ids::GatewayId;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

/// An address of a fabric file, and the IP addresses that it has on this host.
struct ResolvedAddress {
    gateway: GatewayId,
    /// The key of the fabric file: `wan` or `lan`.
    key: &'static str,
    address: PeerAddress,
    found: Vec<SocketAddr>,
    /// Why it has none.
    problem: Option<String>,
}

/// Resolves all host names of a fabric file at once, as a gateway does, and returns their faults. Those
/// are warnings where other hosts may know the names.
///
/// # Errors
/// The system gives no thread.
pub(super) fn check_fabric_host_names(file: &FabricFile) -> Result<Vec<Fault>, CommandError> {
    let addresses = file.fabric().gateway_ids().flat_map(|gateway| {
        let of_key = move |key, addresses: Option<&PeerAddresses>| {
            let all = addresses.map(PeerAddresses::all).unwrap_or_default().to_vec();
            all.into_iter().map(move |address| (gateway, key, address))
        };
        let wan = of_key("wan", file.lane_addresses(gateway));
        wan.chain(of_key("lan", file.lan_addresses(gateway)))
    });
    let addresses: Vec<(GatewayId, &str, PeerAddress)> = addresses.collect();
    if addresses.iter().all(|(_, _, address)| address.host_name().is_none()) {
        return Ok(Vec::new());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut resolved = runtime.block_on(async {
        let mut questions = JoinSet::new();
        for (gateway, key, address) in addresses {
            questions.spawn(resolve_host_name(gateway, key, address));
        }
        questions.join_all().await
    });
    resolved.sort_by_key(|one| (one.gateway, one.key));
    let fault = |(index, own): (usize, &ResolvedAddress)| {
        describe_host_name_problem(file, own, &resolved[..index])
    };
    Ok(resolved.iter().enumerate().filter_map(fault).collect())
}

/// Finds the IP addresses of an address, of both families.
async fn resolve_host_name(
    gateway: GatewayId,
    key: &'static str,
    address: PeerAddress,
) -> ResolvedAddress {
    let single = PeerAddresses::from_addresses(vec![address.clone()]);
    let Some(location) = single.map(PeerLocation::new) else {
        return ResolvedAddress { gateway, key, address, found: Vec::new(), problem: None };
    };
    location.refresh(&RealHost, IpAddr::V6(Ipv6Addr::UNSPECIFIED)).await;
    let (found, problem) = (location.all(), location.problem());
    ResolvedAddress { gateway, key, address, found, problem }
}

/// Returns the fault of one address: it cannot be resolved, or it is a host name or an IP address that
/// an earlier one has, and one of both is a host name. Two equal IP addresses are a fault of the file.
fn describe_host_name_problem(
    file: &FabricFile,
    own: &ResolvedAddress,
    earlier: &[ResolvedAddress],
) -> Option<Fault> {
    let (problem, accepted) = match &own.problem {
        Some(problem) => (problem.clone(), UNRESOLVED_NAME_REMEDY.to_owned()),
        None => {
            let is_name = |one: &ResolvedAddress| one.address.host_name().is_some();
            let shared = |one: &&ResolvedAddress| {
                (is_name(one) || is_name(own)) && one.found.iter().any(|ip| own.found.contains(ip))
            };
            let other = earlier.iter().find(shared)?;
            let at = own.found.iter().find(|ip| other.found.contains(ip))?;
            let name = &file.fabric().gateway(other.gateway).name;
            let problem = format!("has the address {at}, which is one of gateway `{name}` too");
            (problem, "another UDP port, or the name of another host".to_owned())
        }
    };
    let gateway = file.fabric().gateway(own.gateway);
    let region = &file.fabric().region(gateway.region).name;
    Some(Fault {
        file: file.path().to_owned(),
        line: None,
        key: format!("region.{region}.gateway.{}.{}", gateway.name, own.key),
        value: Some(format!("\"{}\"", own.address)),
        problem,
        accepted,
        replacement: None,
    })
}
