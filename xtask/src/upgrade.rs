//! `cargo xtask upgrade`: gateways are upgraded from an older program one after the other, under
//! training with PyTorch.
//!
//! The older program is the one that [`OLDER_PROGRAM_VARIABLE`] names, or is built from a revision of
//! this repository, of itself from the last tag.

use crate::child_command::{CommandFailure, CommandLine};
use crate::python;
use crate::workspace::Workspace;
use std::path::PathBuf;
use std::process::ExitCode;

/// The variable that names an older program, which is not built then.
const OLDER_PROGRAM_VARIABLE: &str = "LANDBRIDGE_OLDER";

/// Runs `cargo xtask upgrade`, from the program of `revision` where one is given. Without an older
/// program it is skipped, and says so.
pub fn run_upgrade(revision: Option<&str>) -> ExitCode {
    let workspace = Workspace::current(false);
    let done = find_older_program(&workspace, revision).and_then(|older| {
        let Some(older) = older else { return Ok(false) };
        println!("upgrade from {}", older.display());
        let older = older.display().to_string();
        let words = ["python/tests/chaos/upgrade_run.py", "--older", &older];
        let run = python::python_torch_command(&workspace.root, "dev", &words)?;
        run.repeated_by(upgrade_command(revision)).run_to_success(&workspace.root)?;
        Ok(true)
    });
    match done {
        Ok(true) => println!("\nlandbridge: 1 passed, 0 failed, 0 skipped"),
        Ok(false) => {
            println!("\n!! SKIPPED: upgrade: there is no tag, and no older program");
            println!("!! {} --from REVISION, or {OLDER_PROGRAM_VARIABLE}", upgrade_command(None));
            println!("\nlandbridge: 0 passed, 0 failed, 1 skipped");
        }
        Err(failure) => {
            eprintln!("{}\nRepeat with:\n  {}", failure.why, failure.repeat);
            println!("\nlandbridge: 0 passed, 1 failed, 0 skipped");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Returns the path of the older program; `None` where neither a variable, a revision nor a tag names
/// one.
fn find_older_program(
    workspace: &Workspace,
    revision: Option<&str>,
) -> Result<Option<PathBuf>, CommandFailure> {
    if let Some(revision) = revision {
        return build_older_program(workspace, revision).map(Some);
    }
    if let Some(program) = std::env::var_os(OLDER_PROGRAM_VARIABLE).filter(|name| !name.is_empty())
    {
        return Ok(Some(program.into()));
    }
    // Of a tag of this commit itself there is nothing to upgrade from.
    let last = ["git", "describe", "--tags", "--abbrev=0", "HEAD~1"];
    let (status, tag) = CommandLine::in_path(&last).capture(&workspace.root)?;
    if !status.success() {
        return Ok(None);
    }
    build_older_program(workspace, tag.trim()).map(Some)
}

/// Builds the program of a revision, with the profile of the tests. Its sources and what is built of
/// them stand below the target folder, apart from those of this version.
fn build_older_program(workspace: &Workspace, revision: &str) -> Result<PathBuf, CommandFailure> {
    let commit = format!("{revision}^{{commit}}");
    let asked = CommandLine::in_path(&["git", "rev-parse", "--verify", &commit]);
    let (status, commit) = asked.capture(&workspace.root)?;
    if !status.success() {
        return Err(asked.failure(&format!("{revision} is no revision of this repository")));
    }
    let folder = workspace.target_folder().join("older");
    let (source, built) = (folder.join("source"), folder.join("target"));
    let unpacked = format!(
        "rm -rf '{source}' && mkdir -p '{source}' && git archive {} | tar -x -C '{source}'",
        commit.trim(),
        source = source.display(),
    );
    CommandLine::in_path(&["sh", "-e", "-c", &unpacked]).run_to_success(&workspace.root)?;
    CommandLine::cargo(&["build", "--locked", "--package", "landbridge"])
        .in_folder(&source)
        .with_variable("CARGO_TARGET_DIR", &built.display().to_string())
        .run_to_success(&workspace.root)?;
    Ok(built.join("debug/landbridge"))
}

/// Returns the command line that runs this again.
fn upgrade_command(revision: Option<&str>) -> String {
    let from = revision.map(|revision| format!(" --from {revision}"));
    format!("cargo xtask upgrade{}", from.unwrap_or_default())
}
