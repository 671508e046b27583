//! Collectives of PyTorch's Gloo, one process at each of two sites.

use crate::testbed::collective_runs::CollectiveRuns;
use crate::testbed::error::LabError;
use crate::testbed::processes::Processes;
use crate::testbed::site::Testbed;
use std::path::Path;
use std::process::Command;

/// The collectives, as a script.
const SCRIPT: &str = include_str!("gloo.py");

/// Starts the runs of a collective with a Python that has torch, over the network device `device`.
///
/// # Errors
/// The system cannot start them.
pub fn start_gloo(
    on: &dyn Testbed,
    python: &Path,
    device: &str,
    runs: &CollectiveRuns,
) -> Result<Processes, LabError> {
    let script = on.path("gloo.py");
    std::fs::write(&script, SCRIPT)?;
    let command = |(rank, site): (usize, &&'static str)| -> Command {
        let mut command = on.at(site, python);
        command.arg(&script).args([rank.to_string().as_str(), on.addresses()[0]]);
        command.args(runs.arguments());
        command.env("GLOO_SOCKET_IFNAME", device);
        command
    };
    let commands = on.sites().iter().enumerate().map(command).collect();
    Ok(Processes::start(on.folder(), commands, "gloo")?)
}
