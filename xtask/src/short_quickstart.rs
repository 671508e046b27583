//! The quickstart, short, as a user's script would run it.

use crate::child_command::{CommandFailure, CommandLine};
use crate::tally::Tally;
use std::path::Path;

/// Exit code 77 of `landbridge`: the command cannot run on this machine, and the check counts as
/// skipped.
const EXIT_SKIPPED: i32 = 77;

/// Runs a short `landbridge quickstart`, whose own checks decide its exit code.
pub fn run_short_quickstart(
    root: &Path,
    landbridge: &Path,
    tally: &mut Tally,
) -> Result<(), CommandFailure> {
    let line = CommandLine::program(
        landbridge,
        &["quickstart", "--json", "--steps", "10", "--size", "16MiB"],
    );
    let (status, stdout) = line.capture(root)?;
    println!("{}", stdout.trim_end());
    if status.code() == Some(EXIT_SKIPPED) {
        tally.skipped.push("quickstart: cannot run here (exit code 77)".to_owned());
        return Ok(());
    }
    if !status.success() {
        return Err(line.failure(&status));
    }
    if let Err(error) = serde_json::from_str::<serde_json::Map<_, _>>(&stdout) {
        return Err(line.failure(&format!("stdout is not exactly one JSON object: {error}")));
    }
    Ok(())
}
