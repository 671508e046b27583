//! `cargo xtask simulate`: faults in virtual time, and broken variants that they must find.

use crate::command::{CommandLine, Failure};
use std::path::Path;
use std::process::ExitCode;

/// A variant of the session that is broken on purpose.
pub struct Mutant {
    /// Its name, as `hier-collectives/src/mutant.rs` has it.
    pub name: &'static str,
    /// A scenario that finds it soon, if there is one.
    scenario: &'static str,
}

/// All of them.
pub const MUTANTS: [Mutant; 6] = [
    Mutant { name: "accumulate", scenario: "lane-lost" },
    Mutant { name: "confirm_alone", scenario: "quiet" },
    Mutant { name: "ignore_epochs", scenario: RANDOM },
    Mutant { name: "reuse_slot", scenario: "quiet" },
    Mutant { name: "share_landing", scenario: "quiet" },
    Mutant { name: "wake_nobody", scenario: "link-cut" },
];

/// Faults drawn from the seed.
const RANDOM: &str = "random";

/// A mutant that as many seeds do not find is not found.
pub const SEEDS: &str = "1000";
/// Seeds of the scenario that finds it soon.
const SEEDS_SOON: &str = "100";

const USAGE: u8 = 64;

/// Runs it for a person.
pub fn run(arguments: &[&str]) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder");
    match arguments {
        ["--mutant", "all"] => conclude(MUTANTS.iter().try_for_each(|mutant| mutant.find(root))),
        ["--mutant", name] => match MUTANTS.iter().find(|known| known.name == *name) {
            Some(known) => conclude(known.find(root)),
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
    eprintln!(
        "simulate --mutant takes one of: all, {}",
        MUTANTS.map(|mutant| mutant.name).join(", ")
    );
    ExitCode::from(USAGE)
}

/// The command that simulates, with `arguments`.
pub fn line(arguments: &[&str]) -> CommandLine {
    let run = ["run", "--quiet", "--package", "scenarios", "--bin", "simulate", "--"];
    CommandLine::cargo(&[&run[..], arguments].concat())
}

/// Runs every mutant for a few seeds, in a program that was built with them.
pub fn find_soon(root: &Path, program: &Path) -> Result<(), Failure> {
    MUTANTS.iter().try_for_each(|mutant| {
        let seeds = if mutant.scenario == RANDOM { SEEDS } else { SEEDS_SOON };
        let seeds = ["--scenario", mutant.scenario, "--seeds", seeds, "--first"];
        let line = CommandLine::built(program, &[&["--mutant", mutant.name], &seeds[..]].concat());
        mutant.must_be_found(root, &line)
    })
}

impl Mutant {
    /// The command that simulates it, with `arguments`.
    pub fn line(&self, arguments: &[&str]) -> CommandLine {
        let run = ["run", "--quiet", "--package", "scenarios", "--features", "mutants"];
        let simulate = ["--bin", "simulate", "--", "--mutant", self.name];
        CommandLine::cargo(&[&run[..], &simulate[..], arguments].concat())
    }

    /// Runs seeds until one finds it.
    fn find(&self, root: &Path) -> Result<(), Failure> {
        self.must_be_found(root, &self.line(&["--seeds", SEEDS, "--first"]))
    }

    fn must_be_found(&self, root: &Path, line: &CommandLine) -> Result<(), Failure> {
        println!("\nmutant {}:", self.name);
        match line.code(root)? {
            // Something was wrong, as it should be.
            Some(1) => Ok(()),
            Some(0) => Err(line.failed(&"it was not found")),
            code => Err(line.failed(&format!("exit code {code:?}"))),
        }
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
