//! `landbridge doctor`: prints the findings of [`crate::doctor`].

use crate::cli::config::RegionGatewayArguments;
use crate::cli::output::command_error::CommandError;
use crate::cli::output::exit::Exit;
use crate::cli::output::print::{print_json, print_text};
use crate::cli::output::table::render_table;
use crate::doctor::{Finding, FindingVerdict, diagnose_whole_gateway};
use clap::Args;
use gateway::host::current_thread_runtime;
use serde::Serialize;

/// Find what keeps a gateway from working on this host, and say what to change.
///
/// Checks limits of memory, descriptors and socket buffers, certificate, key, tokens and the local
/// socket. Asks the gateway, if it runs, and repeats its problems. Then tries every UDP port of each
/// peer, from ports of its own, finds the MTU of the path, and reports handshake, RTT and rate. To
/// measure the rate it sends each running peer one second of data at the configured rate, at most
/// 32 MiB.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge doctor --config configs/two-region/east.toml")]
pub(in crate::cli) struct DoctorCommand {
    #[command(flatten)]
    gateway: RegionGatewayArguments,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct DoctorReport<'a> {
    ok: bool,
    gateway: &'a str,
    findings: &'a [Finding],
}

impl DoctorCommand {
    /// Runs `landbridge doctor`: examines one gateway and prints the findings with advice. A failed
    /// finding ends it with [`Exit::CheckFailed`]; a warning does not.
    pub(in crate::cli) fn run(self) -> Result<Exit, CommandError> {
        let region = self.gateway.load_region()?;
        let gateway = self.gateway.choose(&region)?;
        let runtime = current_thread_runtime()?;
        let findings = runtime.block_on(diagnose_whole_gateway(&region, gateway));
        let ok = findings.iter().all(|finding| finding.verdict != FindingVerdict::Failed);
        if self.json {
            print_json(&DoctorReport { ok, gateway: &gateway.name, findings: &findings })?;
        } else {
            print_text(&describe_doctor_findings(&findings))?;
        }
        Ok(if ok { Exit::Good } else { Exit::CheckFailed })
    }
}

/// Returns the findings as a table, with the advice below it.
fn describe_doctor_findings(findings: &[Finding]) -> String {
    let row = |finding: &Finding| {
        let verdict = match finding.verdict {
            FindingVerdict::Ok => "ok",
            FindingVerdict::Warning => "WARNING",
            FindingVerdict::Failed => "FAILED",
            FindingVerdict::Skipped => "skipped",
        };
        let subject = finding.subject.clone();
        [verdict.to_owned(), finding.check.to_owned(), subject, finding.found.clone()]
    };
    let rows: Vec<_> = findings.iter().map(row).collect();
    let mut text = render_table(["verdict", "check", "subject", "found"], &rows);
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
