//! `cargo xtask simulate`: faults in virtual time, and broken variants that they must find.

use crate::command::{CommandLine, Failure};
use std::path::Path;
use std::process::ExitCode;

/// Variants of the session that are broken on purpose, as `hier-collectives/build.rs` has them.
pub const MUTANTS: [&str; 4] = ["accumulate", "ignore_epochs", "reuse_slot", "share_landing"];

/// A mutant that as many seeds do not find is not found.
pub const SEEDS: &str = "1000";

/// The variable that names the mutant to build.
pub const MUTANT: &str = "LANDBRIDGE_MUTANT";

const USAGE: u8 = 64;

/// Runs it for a person.
pub fn run(arguments: &[&str]) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder");
    match arguments {
        ["--mutant", "all"] => conclude(MUTANTS.iter().try_for_each(|name| find(root, name))),
        ["--mutant", name] => match MUTANTS.iter().find(|known| *known == name) {
            Some(known) => conclude(find(root, known)),
            None => wrong(),
        },
        ["--mutant", ..] => wrong(),
        _ => match line(arguments).code(root) {
            Ok(code) => code
                .and_then(|code| u8::try_from(code).ok())
                .map_or(ExitCode::FAILURE, ExitCode::from),
            Err(failure) => conclude(Err(failure)),
        },
    }
}

fn wrong() -> ExitCode {
    eprintln!("simulate --mutant takes one of: all, {}", MUTANTS.join(", "));
    ExitCode::from(USAGE)
}

/// The command that simulates, with `arguments`.
pub fn line(arguments: &[&str]) -> CommandLine {
    let run = ["run", "--quiet", "--package", "scenarios", "--bin", "simulate", "--"];
    CommandLine::cargo(&[&run[..], arguments].concat())
}

/// Builds a mutant and runs seeds until one finds it.
fn find(root: &Path, name: &'static str) -> Result<(), Failure> {
    println!("\nmutant {name}:");
    let line = line(&["--seeds", SEEDS, "--first"]).with(MUTANT, name);
    match line.code(root)? {
        // Something was wrong, as it should be.
        Some(1) => Ok(()),
        Some(0) => Err(line.failed(&format!("{SEEDS} seeds did not find it"))),
        code => Err(line.failed(&format!("exit code {code:?}"))),
    }
}

fn conclude(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{}\nRepeat with:\n  {}", failure.why, failure.repeat);
            ExitCode::FAILURE
        }
    }
}
