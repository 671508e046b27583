//! `landbridge fabric apply`: puts a signed fabric in force at all gateways while they run.

use super::fabric_files::{read_text, signature_path};
use crate::cli::config::RegionGatewayArguments;
use crate::cli::output::command_error::CommandError;
use crate::cli::output::exit::Exit;
use crate::cli::output::print::{print_json, print_text};
use clap::Args;
use gateway::access::TrustedSocketUsers;
use gateway::config::FabricFile;
use gateway::events::{FabricChange, FabricChangeReport};
use gateway::local::operator::{change_fabric_as_operator, fabric_version_as_operator};
use gateway::observe::fabric_report::{FabricVersionReport, fabric_digest_text};
use std::path::PathBuf;
use std::time::Duration;
use units::Span;

/// 250 ms: the pause between two questions of `fabric apply` to the gateway. A step takes longer as a
/// rule, and the answer costs the gateway little.
const QUESTION_INTERVAL: Duration = Duration::from_millis(250);

/// 10 s: the time for which `fabric apply` waits beyond `--within`. Then the step under way fails, and
/// gateways agree on the next term, in some round trips.
const AGREEMENT_TIME: Span = Span::from_secs(10);

/// Put a signed fabric in force at all gateways, at the end of the step under way or not at all.
///
/// Rates, round trips, losses and schedules of links and rates of ports change while gateways run. If other
/// keys differ, they are named, and nothing is changed. Each gateway keeps the fabric beside its fabric file,
/// in FILE.applied, for its next start.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: landbridge fabric apply configs/three-regions/fabric.toml --config \
    configs/three-regions/east.toml"
)]
pub(super) struct ApplyCommand {
    /// The fabric file, with a `version` above the one in force
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The signature that `landbridge fabric sign` has made; by default FILE.sig
    #[arg(long, value_name = "FILE")]
    signature: Option<PathBuf>,
    /// Check it at the gateway, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// How long the end of a step is awaited; then the step under way fails, and begins again
    #[arg(long, value_name = "TIME", default_value = "10 min")]
    within: Span,
    #[command(flatten)]
    gateway: RegionGatewayArguments,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl ApplyCommand {
    /// Runs `landbridge fabric apply`: returns once the fabric is in force. One that is not in force in time
    /// ends it with [`Exit::CheckFailed`].
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        let region = self.gateway.load_region()?;
        let gateway = self.gateway.choose(&region)?;
        let text = read_text(&self.file)?;
        let file = FabricFile::parse(&self.file, &text)?;
        let number = file.version().number;
        let signature = self.signature.unwrap_or_else(|| signature_path(&self.file));
        let signature = read_text(&signature)?;
        let trusted = TrustedSocketUsers::new(gateway.user_id()?);
        let (within, dry_run) = (self.within, self.dry_run);
        let change = FabricChange { text, signature, within, dry_run };
        let mut report = change_fabric_as_operator(&gateway.socket, &change, trusted)?;
        let digest = fabric_digest_text(file.version());
        let is_in_force =
            |fabric: &FabricVersionReport| fabric.version == number && fabric.digest == digest;
        let waits = |fabric: &FabricVersionReport| {
            let waiting = fabric.waiting.as_ref();
            waiting.is_some_and(|it| it.version == number && it.digest == digest)
        };
        let mut waited = Duration::ZERO;
        while !dry_run
            && !is_in_force(&report.fabric)
            && waits(&report.fabric)
            && waited < (within + AGREEMENT_TIME).duration()
        {
            std::thread::sleep(QUESTION_INTERVAL);
            waited += QUESTION_INTERVAL;
            report.fabric = fabric_version_as_operator(&gateway.socket, trusted)?;
        }
        if self.json {
            print_json(&report)?;
        } else {
            print_text(&describe_change(&report))?;
        }
        if dry_run || is_in_force(&report.fabric) {
            return Ok(Exit::Good);
        }
        stdio::print_stderr_message(match waits(&report.fabric) {
            true => format!(
                "version {number} is not in force yet: it comes into force once all gateways that go on \
                 together hold it; see `landbridge status`"
            ),
            false => format!(
                "version {number} is not in force: another one has replaced it; see `landbridge status`"
            ),
        });
        Ok(Exit::CheckFailed)
    }
}

/// Describes what a fabric changes, a line each, and which version is in force.
fn describe_change(report: &FabricChangeReport) -> String {
    let changes = match report.changes.is_empty() {
        true => "no link or port changes\n".to_owned(),
        false => report.changes.iter().map(|change| format!("{change}\n")).collect(),
    };
    format!("{changes}fabric: {}\n", report.fabric)
}
