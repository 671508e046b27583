//! `landbridge doctor`.

use super::table::table;
use super::{CommandError, Exit, show, show_json};
use crate::config::RegionFile;
use crate::doctor::{Finding, Verdict, examine};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Look for what keeps a gateway from working on this host, and say what to set.
///
/// Looks at socket buffer limits, certificate, key, tokens and local socket; then connects to
/// each peer over UDP from a port of its own and reports handshake, RTT, MTU and rate. To
/// measure the rate it sends one second's worth of the configured rate, at most 32 MiB, to each
/// running peer, which throws it away. The gateway itself may be running or not.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge doctor --config configs/two-region/east.toml")]
pub(super) struct Doctor {
    /// The region file that the gateway runs with
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Which gateway, where the file has several
    #[arg(long, value_name = "NAME")]
    gateway: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    ok: bool,
    gateway: &'a str,
    findings: &'a [Finding],
}

impl Doctor {
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        let region = RegionFile::load(&self.config)?;
        let gateway = region.gateway(self.gateway.as_deref())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let findings = runtime.block_on(examine(&region, gateway));
        let ok = findings.iter().all(|finding| finding.verdict != Verdict::Failed);
        if self.json {
            show_json(&Report { ok, gateway: &gateway.name, findings: &findings });
        } else {
            show(&describe(&findings));
        }
        Ok(if ok { Exit::Good } else { Exit::CheckFailed })
    }
}

fn describe(findings: &[Finding]) -> String {
    let row = |finding: &Finding| {
        let verdict = match finding.verdict {
            Verdict::Ok => "ok",
            Verdict::Warning => "WARNING",
            Verdict::Failed => "FAILED",
            Verdict::Skipped => "skipped",
        };
        let subject = finding.subject.clone();
        [verdict.to_owned(), finding.check.to_owned(), subject, finding.found.clone()]
    };
    let rows: Vec<_> = findings.iter().map(row).collect();
    let mut text = table(["verdict", "check", "of", "found"], &rows);
    let mut advised =
        findings.iter().filter_map(|finding| Some((finding, finding.advice.as_ref()?)));
    if let Some((finding, advice)) = advised.next() {
        text.push_str("\nWhat to do:\n");
        for (finding, advice) in std::iter::once((finding, advice)).chain(advised) {
            text.push_str(&format!("* {} of {}: {advice}\n", finding.check, finding.subject));
        }
    }
    text
}
