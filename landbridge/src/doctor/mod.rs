//! Finds what keeps a gateway from working on this host, and what to change.
//!
//! `landbridge doctor` calls [`examine`], which checks the [`host`], the gateway's certificate
//! ([`identity`]) and the path to each peer ([`peers`]), one after the other.

mod finding;
mod host;
mod identity;
mod peers;

#[cfg(test)]
mod tests;

pub(crate) use finding::{Finding, Verdict};

use gateway::config::{GatewayConfig, RegionFile};

/// Checks one gateway's host, certificate and peers. Takes some seconds for each peer.
pub(crate) async fn examine(region: &RegionFile, gateway: &GatewayConfig) -> Vec<Finding> {
    let mut findings = host::socket_buffers();
    findings.push(host::local_socket(gateway));
    findings.extend(region.jobs().map(host::token));
    findings.push(host::secret("key permissions", &gateway.key));
    let fabric = region.fabric().fabric();
    match identity::examine(gateway, fabric.name()) {
        Ok((credentials, found)) => {
            findings.extend(found);
            findings.extend(peers::examine(region, gateway, &credentials).await);
        }
        Err(finding) => {
            findings.push(finding);
            let found = "not checked: it needs this gateway's certificate and key";
            findings.push(Finding::ok("UDP both ways", "all peers", found).skipped());
        }
    }
    findings
}
