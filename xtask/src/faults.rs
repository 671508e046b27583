//! `cargo xtask faults`: processes killed and stopped in mid-collective. `cargo xtask chaos`: gateways
//! restarted and killed under training with PyTorch.

use crate::child_command::{CommandFailure, CommandLine};
use crate::python;
use std::path::Path;
use std::process::ExitCode;

/// Builds the program `faults` and all that it needs. Returns its command line with `arguments`.
pub fn faults_command(root: &Path, arguments: &[&str]) -> Result<CommandLine, CommandFailure> {
    let built = ["build", "--package", "landbridge", "--package", "scenarios", "--bins"];
    CommandLine::cargo(&built).run_to_success(root)?;
    let beside = std::env::current_exe().expect("the system knows who runs");
    let program =
        |name| beside.with_file_name(name).with_extension(std::env::consts::EXE_EXTENSION);
    let landbridge = program("landbridge").display().to_string();
    let all = [&["--landbridge", &landbridge], arguments].concat();
    Ok(CommandLine::program(&program("faults"), &all))
}

/// Returns the command line that runs each fault once, with the programs that the tests have built.
pub fn built_faults_command(landbridge: &Path) -> CommandLine {
    let shown = landbridge.display().to_string();
    CommandLine::program(&landbridge.with_file_name("faults"), &["--landbridge", &shown])
        .repeated_by("cargo xtask faults".to_owned())
}

/// Runs `cargo xtask faults` with `arguments` and prints the failure, if any.
pub fn run_faults(arguments: &[&str]) -> ExitCode {
    run_faults_in_root(|root| faults_command(root, arguments))
}

/// Runs `cargo xtask chaos` with `arguments` and prints the failure, if any. The wheel is built with
/// the profile of the tests.
pub fn run_chaos_faults(arguments: &[&str]) -> ExitCode {
    let words = [&["python/tests/chaos/chaos_run.py"], arguments].concat();
    let repeat = [&["cargo", "xtask", "chaos"], arguments].concat().join(" ");
    run_faults_in_root(|root| {
        Ok(python::python_torch_command(root, "dev", &words)?.repeated_by(repeat))
    })
}

/// Makes a command line and runs it in the root of the workspace; prints the failure, if any.
fn run_faults_in_root(
    command: impl FnOnce(&Path) -> Result<CommandLine, CommandFailure>,
) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder");
    match command(root).and_then(|line| line.run_to_success(root)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{}\nRepeat with:\n  {}", failure.why, failure.repeat);
            ExitCode::FAILURE
        }
    }
}
