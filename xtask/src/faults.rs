//! `cargo xtask faults`: processes killed and stopped in mid-collective.

use crate::command::{CommandLine, Failure};
use crate::tally::Tally;
use std::path::Path;
use std::process::ExitCode;

/// The command that strikes, with `arguments`; everything it needs is built first.
pub fn line(root: &Path, arguments: &[&str]) -> Result<CommandLine, Failure> {
    let built = ["build", "--package", "landbridge", "--package", "scenarios", "--bins"];
    CommandLine::cargo(&built).pass(root)?;
    let beside = std::env::current_exe().expect("the system knows who runs");
    let program =
        |name| beside.with_file_name(name).with_extension(std::env::consts::EXE_EXTENSION);
    let landbridge = program("landbridge").display().to_string();
    let all = [&["--landbridge", &landbridge], arguments].concat();
    Ok(CommandLine::built(&program("faults"), &all))
}

/// Runs each scenario once with what the tests have built, and counts.
pub fn check(root: &Path, landbridge: &Path, tally: &mut Tally) -> Result<(), Failure> {
    let shown = landbridge.display().to_string();
    let line = CommandLine::built(&landbridge.with_file_name("faults"), &["--landbridge", &shown]);
    let status = line.stream(root, |text| tally.fault_line(text))?;
    if status.success() { Ok(()) } else { Err(line.failed(&status)) }
}

/// Runs it for a person.
pub fn run(arguments: &[&str]) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder");
    match line(root, arguments).and_then(|line| line.pass(root)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{}\nRepeat with:\n  {}", failure.why, failure.repeat);
            ExitCode::FAILURE
        }
    }
}
