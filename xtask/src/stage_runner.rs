//! A list of stages, run one after the other up to the first that fails.

use crate::command::Failure;
use crate::tally::Tally;
use crate::workspace::Workspace;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// One stage of a command.
#[derive(Clone, Copy)]
pub struct Stage {
    /// Name of the stage in the output.
    pub name: &'static str,
    /// Clause on what the stage checks, for the output.
    pub purpose: &'static str,
    /// Duration in seconds on two quiet cores with everything to build, as last measured.
    pub seconds: u32,
    /// Function that runs the stage.
    pub run: fn(&Workspace, &mut Tally) -> Result<(), Failure>,
}

/// Prints the list of stages, runs them up to the first that fails, and prints a summary.
pub fn run_stages(title: &str, workspace: &Workspace, stages: &[Stage]) -> ExitCode {
    print_stages(title, stages);
    let mut tally = Tally::default();
    let mut times = Vec::new();
    let mut failure = None;
    for (index, stage) in stages.iter().enumerate() {
        println!("\n== {}/{} {}: {} ==", index + 1, stages.len(), stage.name, stage.purpose);
        let begun = Instant::now();
        let outcome = (stage.run)(workspace, &mut tally);
        times.push((stage.name, begun.elapsed()));
        if let Err(why) = outcome {
            failure = Some((stage.name, why));
            break;
        }
    }
    print_stage_summary(stages, &times, &mut tally, failure.as_ref());
    if failure.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the stages that will run, and how long they take.
fn print_stages(title: &str, stages: &[Stage]) {
    let total: u32 = stages.iter().map(|stage| stage.seconds).sum();
    println!("{title}: about {} on two quiet cores.", format_stage_duration(total));
    for stage in stages {
        println!(
            "  {:16} {:>7}  {}",
            stage.name,
            format_stage_duration(stage.seconds),
            stage.purpose
        );
    }
}

/// Formats a number of seconds: as seconds below two minutes, else as whole minutes.
fn format_stage_duration(seconds: u32) -> String {
    if seconds < 120 { format!("{seconds} s") } else { format!("{} min", seconds.div_ceil(60)) }
}

/// Prints the time of each stage, the failure and the counts of tests. A failed stage counts as one
/// failed test at least.
fn print_stage_summary(
    stages: &[Stage],
    times: &[(&str, Duration)],
    tally: &mut Tally,
    failure: Option<&(&'static str, Failure)>,
) {
    println!("\n== summary ==");
    for (index, stage) in stages.iter().enumerate() {
        let verdict = match (times.get(index), failure) {
            (None, _) => "        not reached".to_owned(),
            (Some((_, time)), Some((failed, _))) if *failed == stage.name => {
                format!("{:7.1} s FAILED", time.as_secs_f64())
            }
            (Some((_, time)), _) => format!("{:7.1} s ok", time.as_secs_f64()),
        };
        println!("{:16}{verdict}", stage.name);
    }
    let total: Duration = times.iter().map(|(_, time)| *time).sum();
    println!("{:16}{:7.1} s", "all", total.as_secs_f64());
    if !tally.skipped.is_empty() {
        println!("\nSKIPPED, so not shown to work:");
        tally.skipped.iter().for_each(|what| println!("  {what}"));
    }
    if let Some((stage, failure)) = failure {
        println!("\nFAILED: {stage}: {}", failure.why);
        tally.failures.iter().for_each(|what| println!("  {what}"));
        println!("Repeat with:\n  {}", failure.repeat);
        tally.failed = tally.failed.max(1);
    }
    let Tally { passed, failed, skipped, .. } = tally;
    println!("\nlandbridge: {passed} passed, {failed} failed, {} skipped", skipped.len());
}
