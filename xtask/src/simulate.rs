//! `cargo xtask simulate`: faults in virtual time, and broken variants that they must find.

use crate::child_command::{CommandFailure, CommandLine};
use std::path::Path;
use std::process::ExitCode;

/// A variant of the session that is broken on purpose.
pub struct SimulatedMutant {
    /// Name of the mutant, as `hier-collectives/src/mutant.rs` has it.
    pub name: &'static str,
    /// Scenario that finds the mutant within few seeds, or [`RANDOM_SCENARIO`].
    scenario: &'static str,
}

/// The mutants (variants of the session that are broken on purpose) that a scenario finds within few seeds.
/// Those of signed fabrics are found by `hier-collectives/tests/membership`.
pub const MUTANTS: [SimulatedMutant; 20] = [
    SimulatedMutant { name: "accumulate", scenario: "lane-lost" },
    SimulatedMutant { name: "answer_early", scenario: "quiet" },
    SimulatedMutant { name: "change_early", scenario: MEMBERS_SCENARIO },
    SimulatedMutant { name: "confirm_alone", scenario: "quiet" },
    SimulatedMutant { name: "drop_relayed", scenario: RANDOM_SCENARIO },
    SimulatedMutant { name: "end_refused", scenario: MEMBERS_SCENARIO },
    SimulatedMutant { name: "forget_prepared", scenario: MEMBERS_SCENARIO },
    SimulatedMutant { name: "forget_terms", scenario: MEMBERS_SCENARIO },
    SimulatedMutant { name: "ignore_epochs", scenario: RANDOM_SCENARIO },
    SimulatedMutant { name: "join_early", scenario: MEMBERS_SCENARIO },
    SimulatedMutant { name: "keep_branches", scenario: "quiet" },
    SimulatedMutant { name: "keep_own_step", scenario: MEMBERS_SCENARIO },
    SimulatedMutant { name: "lead_stale", scenario: MEMBERS_SCENARIO },
    SimulatedMutant { name: "mix_groups", scenario: "quiet" },
    SimulatedMutant { name: "mix_tags", scenario: "quiet" },
    SimulatedMutant { name: "need_one_less", scenario: MEMBERS_SCENARIO },
    SimulatedMutant { name: "reuse_slot", scenario: "quiet" },
    SimulatedMutant { name: "share_landing", scenario: "quiet" },
    SimulatedMutant { name: "vote_for_both", scenario: MEMBERS_SCENARIO },
    SimulatedMutant { name: "wake_nobody", scenario: "link-cut" },
];

/// The name of the simulated scenario whose faults are drawn from the seed.
const RANDOM_SCENARIO: &str = "random";

/// The name of the simulated scenario in which regions leave, join and are lost.
const MEMBERS_SCENARIO: &str = "members";

/// 1,000 seeds of random faults, at least one of which must find a mutant (a session broken on
/// purpose); else the command fails. The number is chosen.
pub const MUTANT_SEEDS: &str = "1000";
/// 100 seeds of a mutant's own scenario, at least one of which must find the mutant; else the stage
/// fails. The number is chosen.
const MUTANT_SCENARIO_SEEDS: &str = "100";

/// Exit code 64 of `cargo xtask simulate`: the command line is wrong, as in the command
/// `landbridge`.
const EXIT_USAGE: u8 = 64;

/// Runs `cargo xtask simulate` with `arguments`: seeds of the correct session, or the search for
/// mutants.
pub fn run_simulate(arguments: &[&str]) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder");
    match arguments {
        ["--mutant", "all"] => {
            print_simulate_outcome(MUTANTS.iter().try_for_each(|mutant| mutant.find_in_seeds(root)))
        }
        ["--mutant", name] => match MUTANTS.iter().find(|known| known.name == *name) {
            Some(known) => print_simulate_outcome(known.find_in_seeds(root)),
            None => print_simulate_mutant_error(),
        },
        ["--mutant", ..] => print_simulate_mutant_error(),
        _ => match simulate_command(arguments).run_to_exit_code(root) {
            Ok(code) => code
                .and_then(|code| u8::try_from(code).ok())
                .map_or(ExitCode::FAILURE, ExitCode::from),
            Err(failure) => print_simulate_outcome(Err(failure)),
        },
    }
}

/// Prints the names of all mutants and returns the exit code of a wrong command line.
fn print_simulate_mutant_error() -> ExitCode {
    eprintln!(
        "simulate --mutant takes one of: all, {}",
        MUTANTS.map(|mutant| mutant.name).join(", ")
    );
    ExitCode::from(EXIT_USAGE)
}

/// Returns the command line that simulates the correct session, with `arguments`.
pub fn simulate_command(arguments: &[&str]) -> CommandLine {
    let run = ["run", "--quiet", "--package", "scenarios", "--bin", "simulate", "--"];
    CommandLine::cargo(&[&run[..], arguments].concat())
}

/// Runs the scenario of every mutant until a seed finds the mutant, in a `program` that was built
/// with mutants; a failure for the first mutant that none of the seeds finds.
pub fn simulate_all_mutants(root: &Path, program: &Path) -> Result<(), CommandFailure> {
    MUTANTS.iter().try_for_each(|mutant| {
        let is_drawn = [RANDOM_SCENARIO, MEMBERS_SCENARIO].contains(&mutant.scenario);
        let seeds = if is_drawn { MUTANT_SEEDS } else { MUTANT_SCENARIO_SEEDS };
        let seeds = ["--scenario", mutant.scenario, "--seeds", seeds, "--first"];
        let line =
            CommandLine::program(program, &[&["--mutant", mutant.name], &seeds[..]].concat());
        mutant.expect_found(root, &line)
    })
}

impl SimulatedMutant {
    /// Returns the command line that simulates this mutant, with `arguments`.
    pub fn simulate_command(&self, arguments: &[&str]) -> CommandLine {
        let run = ["run", "--quiet", "--package", "scenarios", "--features", "mutants"];
        let simulate = ["--bin", "simulate", "--", "--mutant", self.name];
        CommandLine::cargo(&[&run[..], &simulate[..], arguments].concat())
    }

    /// Runs seeds until one finds the mutant; a failure if none of [`MUTANT_SEEDS`] does.
    fn find_in_seeds(&self, root: &Path) -> Result<(), CommandFailure> {
        self.expect_found(root, &self.simulate_command(&self.mutant_search_arguments()))
    }

    /// Returns the arguments of a search over [`MUTANT_SEEDS`]: random faults, or the scenario of regions
    /// that leave and join where it takes those.
    pub fn mutant_search_arguments(&self) -> Vec<&'static str> {
        let scenario = match self.scenario {
            MEMBERS_SCENARIO => MEMBERS_SCENARIO,
            _ => RANDOM_SCENARIO,
        };
        vec!["--scenario", scenario, "--seeds", MUTANT_SEEDS, "--first"]
    }

    /// Runs a simulation of the mutant; a failure unless the simulation finds the mutant.
    fn expect_found(&self, root: &Path, line: &CommandLine) -> Result<(), CommandFailure> {
        println!("\nmutant {}:", self.name);
        match line.run_to_exit_code(root)? {
            // The simulation found the mutant, as it should.
            Some(1) => Ok(()),
            Some(0) => Err(line.failure(&"it was not found")),
            code => Err(line.failure(&format!("exit code {code:?}"))),
        }
    }
}

/// Prints the failure, if any, and returns the exit code.
fn print_simulate_outcome(outcome: Result<(), CommandFailure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{}\nRepeat with:\n  {}", failure.why, failure.repeat);
            ExitCode::FAILURE
        }
    }
}
