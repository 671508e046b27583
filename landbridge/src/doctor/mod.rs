//! Finds what keeps a gateway from working on this host, and what to change.
//!
//! `landbridge doctor` calls [`diagnose_whole_gateway`], which checks the [`host`], the [`limit_findings`], the address for trainers of
//! other hosts ([`attach_address`]), the certificate of the gateway ([`identity`]) and the path to each peer ([`peers`]), one after the other.
//! The doctor repeats the problems of a gateway that runs ([`running_gateway`]). Where none runs, the doctor
//! checks that the addresses of the gateway can be bound ([`own_addresses`]).

mod attach_address;
mod finding;
mod host;
mod identity;
mod limit_findings;
mod own_addresses;
mod peers;
mod running_gateway;

#[cfg(test)]
mod tests;

pub(crate) use finding::{Finding, FindingVerdict};

use gateway::config::{GatewayConfig, RegionFile};

/// Checks the host, the running gateway, the certificate and the peers of one gateway, some seconds
/// for each peer. Returns all findings.
pub(crate) async fn diagnose_whole_gateway(
    region: &RegionFile,
    gateway: &GatewayConfig,
) -> Vec<Finding> {
    let mut findings = host::diagnose_host_socket_buffers();
    findings.push(host::diagnose_host_memory(region, gateway));
    findings.push(host::diagnose_host_descriptors(region, gateway));
    findings.extend(limit_findings::limit_findings(region, gateway));
    findings.push(host::diagnose_host_socket(gateway));
    findings.extend(attach_address::diagnose_attach_address(gateway).await);
    findings.extend(running_gateway::diagnose_running_gateway(region, gateway).await);
    // A group that this host lacks is a finding of the socket.
    let group = gateway.group_id().unwrap_or_default();
    findings.extend(region.jobs().map(|job| host::diagnose_host_token_file(job, group)));
    findings.push(host::diagnose_host_secret_file("key permissions", &gateway.key, None));
    let fabric = region.fabric().fabric();
    match identity::diagnose_identity(gateway, fabric.name()) {
        Ok((credentials, found)) => {
            findings.extend(found);
            findings.extend(peers::diagnose_peers(region, gateway, &credentials).await);
        }
        Err(finding) => {
            findings.push(finding);
            let found = "not checked: it needs this gateway's certificate and key";
            findings.push(Finding::ok("UDP both ways", "all peers", found).into_skipped());
        }
    }
    findings
}
