//! Faults on real processes: two gateways, a relay and three ranks on loopback. One of them is
//! killed or stopped in the middle of an all-reduce, and all others are checked.

mod case;
mod deployment;
mod fault;
mod rank;

use case::Report;
use clap::{Args, Parser, Subcommand};
use fault::Case;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Kill or stop processes of a deployment in mid-collective, and judge what the others see.
#[derive(Debug, Parser)]
#[command(after_help = "Example: cargo xtask faults --scenario gateway --points 5 --seed 1")]
struct Command {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    run: Run,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Run one trainer, which this program starts
    #[command(hide = true)]
    Rank(rank::Rank),
}

#[derive(Debug, Args)]
struct Run {
    /// The gateway's binary
    #[arg(long, value_name = "PATH", default_value = "landbridge")]
    landbridge: PathBuf,
    /// How many points between 5 and 95 % of the bytes each fault strikes at
    #[arg(long, value_name = "N", default_value = "1")]
    points: u32,
    /// Draws the points
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Only scenarios whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    scenario: String,
    /// Deployments at a time
    #[arg(long, value_name = "N", default_value = "4")]
    jobs: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let command = Command::parse();
    match command.role {
        Some(Role::Rank(rank)) => rank.run(),
        None => command.run.run(),
    }
}

impl Run {
    fn run(&self) -> ExitCode {
        let mut all = match Case::all() {
            Ok(all) => all,
            Err(why) => {
                eprintln!("{why}");
                return ExitCode::FAILURE;
            }
        };
        let names: Vec<String> = all.iter().map(|case| case.name.clone()).collect();
        all.retain(|case| case.name.contains(&self.scenario));
        if all.is_empty() {
            eprintln!("no scenario `{}`; there are {}", self.scenario, names.join(", "));
            return ExitCode::from(64);
        }
        // What takes longest begins first.
        all.sort_by_key(|case| std::cmp::Reverse(case.longest_wait(0, None)));
        let cases: Vec<(&Case, f64)> = all
            .iter()
            .flat_map(|case| (0..self.points).map(move |point| (case, point)))
            .map(|(case, point)| (case, case.strikes_at(self.seed, point, self.points)))
            .collect();
        let (next, reports) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.clamp(1, cases.len().max(1)) {
                scope.spawn(|| {
                    while let Some((case, at)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let report = case::run(&self.landbridge, case, *at);
                        if !self.json {
                            println!("{report}");
                        }
                        reports.lock().expect("no panic inside").push(report);
                    }
                });
            }
        });
        let reports = reports.into_inner().expect("no panic inside");
        self.conclude(&reports)
    }

    fn conclude(&self, reports: &[Report]) -> ExitCode {
        let wrong = reports.iter().filter(|report| !report.wrong.is_empty()).count();
        if self.json {
            println!("{}", serde_json::json!({ "seed": self.seed, "cases": reports }));
        } else {
            println!("\nfaults on processes: {} passed, {wrong} failed", reports.len() - wrong);
        }
        if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
