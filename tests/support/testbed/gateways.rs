//! Gateways of ours at the sites of a testbed: their start and their collectives.

use super::collective_runs::CollectiveRuns;
use super::error::LabError;
use super::processes::{Begins, Processes};
use super::run_times::RunTimes;
use super::site::{Testbed, region_text};
use std::process::Command;
use std::time::Duration;
use units::ByteCount;

/// 1 MiB: the buffer of the first all-reduce, which shows that all gateways have met.
const FIRST_BYTES: u64 = 1 << 20;

/// 5 s: the longest wait for the sockets of gateways, which start within a second.
const SOCKETS_WITHIN: Duration = Duration::from_secs(5);

/// Starts a gateway at each site, with these further arguments, and waits until all have met. The
/// folder has the fabric file.
///
/// # Errors
/// A program fails, or the first all-reduce takes longer than `cut`.
pub fn start_gateways(
    on: &dyn Testbed,
    arguments: &[&str],
    cut: Duration,
) -> Result<Processes, LabError> {
    make_certificates(on)?;
    let mut commands = Vec::new();
    for (index, site) in on.sites().iter().enumerate() {
        let file = on.config(site);
        std::fs::write(&file, region_text(site, index, on.has_segmentation_offload()))?;
        let mut command = on.landbridge_at(site);
        command.arg("run").arg("--config").arg(file).args(arguments);
        commands.push(command);
    }
    let gateways = Processes::start(on.folder(), commands, "gateway")?;
    // A rank attaches once the gateways have met; the first all-reduce warms memory up.
    let step = Duration::from_millis(100);
    for _ in 0..SOCKETS_WITHIN.as_millis() / step.as_millis() {
        if on.sites().iter().all(|site| on.path(&format!("{site}.sock")).exists()) {
            break;
        }
        std::thread::sleep(step);
    }
    let first = CollectiveRuns::all_reduces(FIRST_BYTES, 1);
    if run_collectives(on, &first, cut)?.seconds.is_empty() {
        return Err(LabError::Failed("the first all-reduce of gateways did not end".to_owned()));
    }
    Ok(gateways)
}

/// Makes the keys of all gateways, in `keys`.
///
/// # Errors
/// The program fails.
pub fn make_certificates(on: &dyn Testbed) -> Result<(), LabError> {
    let mut certs = on.landbridge_at(on.sites()[0]);
    certs.args(["certs", "--fabric"]).arg(on.path("fabric.toml"));
    let made = certs.arg("--out").arg(on.path("keys")).output()?;
    if !made.status.success() {
        return Err(LabError::Failed(String::from_utf8_lossy(&made.stderr).into_owned()));
    }
    Ok(())
}

/// Runs a collective of f32 with a rank at each site, as `landbridge bench` does. Returns the
/// times of the runs, from the last post to the last result; none where they take longer than
/// `cut`.
///
/// # Errors
/// A rank fails.
pub fn run_collectives(
    on: &dyn Testbed,
    runs: &CollectiveRuns,
    cut: Duration,
) -> Result<RunTimes, LabError> {
    let command = |(rank, site): (usize, &&'static str)| {
        let mut command = on.landbridge_at(site);
        command.args(["bench", runs.operation.name(), "--json", "--config"]).arg(on.config(site));
        command.args(["--rank", &rank.to_string()]);
        command.args(["--size", &ByteCount::new(runs.bytes).to_string()]);
        command.args(["--iterations", &runs.iterations.to_string()]);
        command
    };
    let commands: Vec<Command> = on.sites().iter().enumerate().map(command).collect();
    Processes::start(on.folder(), commands, "bench")?.run_times(Begins::WithoutAWord, cut)
}
