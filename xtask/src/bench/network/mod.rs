//! Benches of bytes on networks: the long haul, the cost of a byte, and the emulator.

pub(super) mod cost;
pub(super) mod wan;
pub(super) mod wan_sim_bench;

use crate::child_command::{CommandFailure, CommandLine};
use crate::workspace;
use std::path::Path;

/// Builds `landbridge` and the programs of `scenarios` for release. Returns the command line of the
/// program `name` with the paths that it needs, and with `flags`.
fn network_bench_command(
    root: &Path,
    name: &str,
    flags: &[&str],
) -> Result<CommandLine, CommandFailure> {
    // Speed is what is measured.
    let built =
        ["build", "--release", "--package", "landbridge", "--package", "scenarios", "--bins"];
    CommandLine::cargo(&built).run_to_success(root)?;
    let release = workspace::workspace_target_folder().join("release");
    let landbridge = release.join("landbridge").display().to_string();
    let peers = workspace::workspace_target_folder().join("peers").display().to_string();
    let all = [&["--landbridge", &landbridge, "--peers", &peers], flags].concat();
    Ok(CommandLine::program(&release.join(name), &all))
}
