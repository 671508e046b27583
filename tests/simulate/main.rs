//! `cargo xtask simulate`: faults in virtual time, over many seeds or one.

use clap::Parser;
use hier_collectives::mutant::Mutant;
use indicatif::{ProgressBar, ProgressStyle};
use scenarios::faults::{
    IN_FLIGHT_MIN, IN_FLIGHT_SEEDS, MEMBERS, RANDOM, RunSummary, Scenario, named, replay, sweep,
    threads,
};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write, stdout};
use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;
use units::{ByteCount, Span};

/// Run whole gateways and ranks in virtual time while things go wrong, and judge what every
/// rank sees. One seed prints what happened; many print what came of them.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  cargo xtask simulate --seeds 10000
  cargo xtask simulate --seed 17
  cargo xtask simulate --scenario gateway-killed --seed 3

Exit codes: 0 all as it must be, 1 something is not, 64 usage")]
struct Command {
    /// Replay one seed and tell what happened
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// How many seeds to run
    #[arg(long, value_name = "N", default_value = "1000")]
    seeds: u64,
    /// The first of them
    #[arg(long, value_name = "K", default_value = "0")]
    from: u64,
    /// A named scenario instead of faults drawn from the seed
    #[arg(long, value_name = "NAME", default_value = RANDOM)]
    scenario: String,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "J")]
    jobs: Option<usize>,
    /// Stop at the first seed at which something is wrong
    #[arg(long)]
    first: bool,
    /// Be wrong in this way, to be found; needs the feature `mutants`
    #[arg(long, value_name = "NAME", value_parser = mutant)]
    mutant: Option<Mutant>,
    /// Show the names of the scenarios
    #[arg(long)]
    list: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A wrong command line.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let command = match Command::try_parse() {
        Ok(command) => command,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    if command.list {
        for known in named() {
            let faults: Vec<String> = known.faults.iter().map(ToString::to_string).collect();
            println!("{:34}{}", known.name, faults.join("; "));
        }
        println!("{MEMBERS:34}regions leave, join and are lost in every way, drawn from the seed");
        return ExitCode::SUCCESS;
    }
    #[cfg(feature = "mutants")]
    if let Some(mutant) = command.mutant {
        hier_collectives::mutant::activate_mutant(mutant);
    }
    if Scenario::named(&command.scenario, 0).is_none() {
        eprintln!("no scenario `{}`; see --list", command.scenario);
        return ExitCode::from(USAGE);
    }
    match command.seed {
        Some(seed) => command.replay_seed(seed),
        None => command.sweep(),
    }
}

/// Parses the name of a mutant.
fn mutant(name: &str) -> Result<Mutant, String> {
    let names = Mutant::ALL.map(Mutant::name).join(", ");
    if !cfg!(feature = "mutants") {
        return Err("there are none in this build: use `cargo xtask simulate --mutant`".to_owned());
    }
    let found = Mutant::ALL.into_iter().find(|mutant| mutant.name() == name);
    found.ok_or_else(|| format!("none of {names}"))
}

impl Command {
    /// Returns the chosen scenario for a seed.
    fn scenario(&self, seed: u64) -> Scenario {
        Scenario::named(&self.scenario, seed).expect("checked")
    }

    /// Runs one seed and prints all events.
    fn replay_seed(&self, seed: u64) -> ExitCode {
        let scenario = self.scenario(seed);
        let (summary, timeline) = replay(&scenario);
        if self.json {
            let wrong =
                if summary.wrong.is_empty() { vec![] } else { vec![(seed, summary.clone())] };
            println!("{}", self.report(1, &summary, &wrong, 0.0));
        } else {
            let wrong = summary.wrong.iter().map(|wrong| format!("WRONG: {wrong}\n"));
            let wrong: String = wrong.collect();
            // The reader may have closed the pipe.
            let _ = writeln!(stdout(), "{scenario}{timeline}\n\n{}{wrong}", table(&summary));
        }
        exit_code(&summary)
    }

    /// Runs many seeds and prints the summary.
    fn sweep(&self) -> ExitCode {
        let begun = Instant::now();
        let (mut total, wrong, runs) =
            self.run_seeds(self.from..self.from.saturating_add(self.seeds));
        let share = total.struck_in_flight();
        if self.scenario == RANDOM && runs as u64 >= IN_FLIGHT_SEEDS && share < IN_FLIGHT_MIN {
            total.wrong.push(format!("only {share:.3} of all faults struck anything under way"));
            eprintln!("{}", total.wrong[total.wrong.len() - 1]);
        }
        let seconds = begun.elapsed().as_secs_f64();
        if self.json {
            println!("{}", self.report(runs, &total, &wrong, seconds));
            return exit_code(&total);
        }
        println!("{}", table(&total));
        for (seed, summary) in &wrong {
            println!("seed {seed}:");
            summary
                .wrong
                .iter()
                .take(FINDINGS_SHOWN)
                .for_each(|wrong| println!("  WRONG: {wrong}"));
            println!("  replay: {}", self.scenario(*seed).replay());
        }
        println!("{runs} seeds in {seconds:.1} s, {} of them with something wrong", wrong.len());
        exit_code(&total)
    }

    /// Runs seeds. Returns the sum of all summaries, the seeds with something wrong, and the number
    /// of runs.
    fn run_seeds(&self, seeds: Range<u64>) -> (RunSummary, Vec<(u64, RunSummary)>, usize) {
        let bar = progress(seeds.end - seeds.start);
        // A terminal has the bar, a log has lines.
        let line_every = (bar.length().unwrap_or(0) / PROGRESS_LINES).max(PROGRESS_SEEDS_MIN);
        let lines = !std::io::stderr().is_terminal();
        let (mut total, mut wrong) = (RunSummary::default(), Vec::new());
        let scenarios = seeds.map(|seed| self.scenario(seed));
        let runs = sweep(scenarios, self.jobs.unwrap_or_else(threads), |scenario, summary| {
            total.add(summary);
            bar.inc(1);
            if lines && bar.position().is_multiple_of(line_every) {
                eprintln!("{} seeds, {} with something wrong", bar.position(), wrong.len());
            }
            let Some(first) = summary.wrong.first() else { return true };
            let line = format!("seed {}: {first}", scenario.seed);
            if lines {
                eprintln!("{line}")
            } else {
                bar.println(line)
            }
            wrong.push((scenario.seed, summary.clone()));
            !self.first
        });
        bar.finish_and_clear();
        wrong.sort_by_key(|(seed, _)| *seed);
        (total, wrong, runs)
    }

    /// Returns the JSON report.
    fn report(
        &self,
        runs: usize,
        total: &RunSummary,
        wrong: &[(u64, RunSummary)],
        seconds: f64,
    ) -> serde_json::Value {
        let wrong = wrong.iter().map(|(seed, summary)| {
            let replay = self.scenario(*seed).replay();
            serde_json::json!({ "seed": seed, "wrong": summary.wrong, "replay": replay })
        });
        serde_json::json!({
            "scenario": self.scenario,
            "seeds": runs,
            "seconds": seconds,
            "outcomes": total.outcomes,
            "completed": total.completed,
            "faults": total.faults.iter().map(|(kind, struck)| {
                (kind, [struck.times, struck.in_flight])
            }).collect::<BTreeMap<_, _>>(),
            "struck_in_flight": total.struck_in_flight(),
            "waits_seconds": total.waits.iter().map(|(heard, waits)| {
                let left = waits.least_left.map(Span::as_secs_f64);
                (heard, [Some(waits.longest.as_secs_f64()), left])
            }).collect::<BTreeMap<_, _>>(),
            "recovery_seconds": total.recovery.as_secs_f64(),
            "memory_bytes": total.fullest.map(|(most, _)| most),
            "memory_budget_bytes": total.fullest.map(|(_, limit)| limit),
            "wrong": wrong.collect::<Vec<_>>(),
        })
    }
}

/// 40 lines of progress in a log, at most.
const PROGRESS_LINES: u64 = 40;
/// 50 seeds between two lines of progress, at least.
const PROGRESS_SEEDS_MIN: u64 = 50;

/// 5 findings of each seed, at most.
const FINDINGS_SHOWN: usize = 5;

/// Returns the exit code of a run.
fn exit_code(summary: &RunSummary) -> ExitCode {
    if summary.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn progress(seeds: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len} seeds, {eta} to go");
    ProgressBar::new(seeds).with_style(style.expect("a template"))
}

/// Returns a summary as a table.
fn table(summary: &RunSummary) -> String {
    let outcomes = summary.outcomes.iter();
    let mut rows: Vec<_> =
        outcomes.map(|(name, count)| (name.clone(), count.to_string())).collect();
    for (kind, count) in &summary.completed {
        rows.push((format!("  {kind}"), count.to_string()));
    }
    for (kind, struck) in &summary.faults {
        rows.push((format!("FAULT {kind}"), format!("{} of {}", struck.in_flight, struck.times)));
    }
    rows.push(("in flight".to_owned(), format!("{:.3}", summary.struck_in_flight())));
    for (heard, waits) in &summary.waits {
        let left = waits.least_left.map_or("?".to_owned(), |left| left.to_string());
        rows.push((format!("WAIT {heard}"), format!("{}, left {left}", waits.longest)));
    }
    rows.push(("longest recovery".to_owned(), summary.recovery.to_string()));
    if let Some((most, limit)) = summary.fullest.map(|(most, limit)| (ByteCount::new(most), limit))
    {
        rows.push(("most memory against its budget".to_owned(), most.to_string()));
        rows.push(("the budget".to_owned(), ByteCount::new(limit).to_string()));
    }
    rows.insert(0, ("OUTCOME FOR A RANK".to_owned(), "COUNT".to_owned()));
    rows.iter().map(|(name, value)| format!("{name:36}{value:>16}\n")).collect()
}
