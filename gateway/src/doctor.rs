//! What keeps a gateway from working on this host, and what to set.

mod host;
mod identity;
mod peers;

#[cfg(test)]
mod tests;

use crate::config::{GatewayConfig, RegionFile};
use serde::Serialize;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but not as well as it could.
    Warning,
    /// Will not work.
    Failed,
    /// Could not be looked at, for the reason found.
    Skipped,
}

/// One thing looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was checked.
    pub check: &'static str,
    /// Of which file, setting or peer.
    pub subject: String,
    /// How it came out.
    pub verdict: Verdict,
    /// What is the case.
    pub found: String,
    /// What to do about it; `None` when nothing is to be done.
    pub advice: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, subject: impl ToString, found: impl ToString) -> Self {
        let (subject, found) = (subject.to_string(), found.to_string());
        Self { check, subject, verdict: Verdict::Ok, found, advice: None }
    }

    fn warning(self, advice: impl ToString) -> Self {
        Self { verdict: Verdict::Warning, advice: Some(advice.to_string()), ..self }
    }

    fn failed(self, advice: impl ToString) -> Self {
        Self { verdict: Verdict::Failed, advice: Some(advice.to_string()), ..self }
    }

    fn skipped(self) -> Self {
        Self { verdict: Verdict::Skipped, ..self }
    }
}

/// Looks at one gateway's host, identity and peers. Takes some seconds for each peer.
pub async fn examine(region: &RegionFile, gateway: &GatewayConfig) -> Vec<Finding> {
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
            let found = "needs this gateway's certificate and key";
            findings.push(Finding::ok("UDP both ways", "all peers", found).skipped());
        }
    }
    findings
}
