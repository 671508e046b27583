//! The parts that all checks of `cargo xtask deploy` share: skips, scratch folders, failures.

use crate::child_command::{CommandFailure, CommandLine};
use crate::tally::Tally;
use crate::workspace::Workspace;
use std::fmt::Display;
use std::path::PathBuf;

/// Prints and records that a check is skipped.
pub fn skip_deploy_check(tally: &mut Tally, what: &str) {
    println!("\n!! SKIPPED: {what}\n");
    tally.skipped.push(what.to_owned());
}

/// Makes an empty folder for the files of a stage.
pub fn deploy_check_scratch_folder(
    workspace: &Workspace,
    stage: &str,
) -> Result<PathBuf, CommandFailure> {
    let folder = workspace.target_folder().join("xtask/deploy").join(stage);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)
        .map_err(|error| deploy_check_failure(&folder.display(), &error))?;
    Ok(folder)
}

/// Returns whether this process runs as root, without which some programs refuse.
pub fn is_deploy_check_root(workspace: &Workspace) -> bool {
    let asked = CommandLine::in_path(&["id", "-u"]).capture(&workspace.root);
    asked.is_ok_and(|(_, number)| number.trim() == "0")
}

/// Returns a failure of a check: its subject, and the reason.
pub fn deploy_check_failure(subject: &dyn Display, why: &dyn Display) -> CommandFailure {
    CommandFailure { why: format!("{subject}: {why}"), repeat: "cargo xtask deploy".to_owned() }
}
