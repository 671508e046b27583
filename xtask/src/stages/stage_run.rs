//! A list of stages, begun one after the other up to the first that fails. Stages that mostly wait, or
//! that do not mind waiting, run beside those after them.

use crate::child_command::{CommandFailure, CommandLine};
use crate::tally::{LONG_SKIP_REASON, Tally};
use crate::workspace::Workspace;
use std::io;
use std::process::{ExitCode, ExitStatus};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use units::Span;

/// One stage of a command.
#[derive(Clone, Copy)]
pub struct Stage {
    /// Name of the stage in the output.
    pub name: &'static str,
    /// Clause on what the stage checks, for the output.
    pub purpose: &'static str,
    /// Duration in seconds on two quiet cores with everything to build, as last measured. That of
    /// stages beside others is measured beside them.
    pub usual_seconds: u32,
    /// The work of the stage.
    pub work: StageWork,
}

/// The work of a stage.
#[derive(Clone, Copy)]
pub enum StageWork {
    /// A function that runs to its end before the next stage begins.
    InTurn(fn(&Workspace, &mut Tally) -> Result<(), CommandFailure>),
    /// A command that runs beside the stages after it. Its output is shown when it has ended.
    Beside {
        /// Returns the command.
        command: fn(&Workspace) -> Result<CommandLine, CommandFailure>,
        /// Counts the tests in the lines of its output; `None` where it has none.
        tests: Option<CountTests>,
    },
}

/// Counts the tests that a line of output tells of.
type CountTests = fn(&mut Tally, &str);

/// A stage that runs beside others.
struct RunningStage {
    stage: Stage,
    command: CommandLine,
    /// Waits for the process; returns its status and how long it ran.
    process: JoinHandle<(io::Result<ExitStatus>, Duration)>,
    tests: Option<CountTests>,
}

/// The results of the stages that have ended.
#[derive(Default)]
struct Results {
    tally: Tally,
    /// Name and duration of each stage, and its failure.
    ended: Vec<(&'static str, Duration, Option<CommandFailure>)>,
}

/// Prints the list of stages, runs them up to the first that fails, and prints a summary. Stages that
/// run beside others then are run to their end.
pub fn run_stages(title: &str, workspace: &Workspace, stages: &[Stage]) -> ExitCode {
    print_stage_run_plan(title, stages);
    let begun = Instant::now();
    let mut results = Results::default();
    let mut beside = Vec::new();
    for (index, stage) in stages.iter().enumerate() {
        println!("\n== {}/{} {}: {} ==", index + 1, stages.len(), stage.name, stage.purpose);
        match stage.work {
            StageWork::InTurn(run) => {
                let begun = Instant::now();
                let failure = run(workspace, &mut results.tally).err();
                results.ended.push((stage.name, begun.elapsed(), failure));
            }
            StageWork::Beside { command, tests } => {
                let start = |line| RunningStage::start(*stage, line, tests, workspace);
                match command(workspace).and_then(start) {
                    Ok(running) => beside.push(running),
                    Err(why) => results.ended.push((stage.name, Duration::ZERO, Some(why))),
                }
            }
        }
        if results.ended.last().is_some_and(|(_, _, failure)| failure.is_some()) {
            break;
        }
    }
    for running in beside {
        running.finish(workspace, &mut results);
    }
    print_stage_run_summary(stages, &mut results, begun.elapsed());
    match results.ended.iter().all(|(_, _, failure)| failure.is_none()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

impl RunningStage {
    /// Starts the command of a stage, with its output in a file of the target folder.
    fn start(
        stage: Stage,
        command: CommandLine,
        tests: Option<CountTests>,
        workspace: &Workspace,
    ) -> Result<Self, CommandFailure> {
        let file = workspace.stage_output(stage.name);
        println!("runs beside the next stages; output in {}", file.display());
        let mut child = command.start_into_file(&workspace.root, &file)?;
        let begun = Instant::now();
        let process = std::thread::spawn(move || (child.wait(), begun.elapsed()));
        Ok(Self { stage, command, process, tests })
    }

    /// Waits for the command, shows its output and counts its tests, if it has any. The stage has
    /// failed if its status is no success, a test failed, or none was counted.
    fn finish(self, workspace: &Workspace, results: &mut Results) {
        println!("\n== {}: waiting for its end ==", self.stage.name);
        let (status, took) = self.process.join().expect("the thread waits alone");
        let output = std::fs::read(workspace.stage_output(self.stage.name)).unwrap_or_default();
        let output = String::from_utf8_lossy(&output).into_owned();
        println!("{output}");
        let (counted, failed) = (results.tally.counted(), results.tally.failed);
        if let Some(count) = self.tests {
            output.lines().for_each(|line| count(&mut results.tally, line.trim_end()));
        }
        let failure = match status {
            Ok(status) if !status.success() => Some(self.command.failure(&status)),
            Err(error) => Some(self.command.failure(&error)),
            Ok(_) if results.tally.failed > failed => Some(self.command.failure(&"a test failed")),
            Ok(_) if self.tests.is_some() && results.tally.counted() == counted => {
                Some(self.command.failure(&"no test was counted"))
            }
            Ok(_) => None,
        };
        results.ended.push((self.stage.name, took, failure));
    }
}

/// Prints `title` and the stages that will run, each with the time that it is expected to take.
fn print_stage_run_plan(title: &str, stages: &[Stage]) {
    // Stages beside others share the cores, and were measured so.
    let (mut begins, mut whole) = (0, 0);
    for stage in stages {
        let ends = begins + stage.usual_seconds;
        whole = whole.max(ends);
        if matches!(stage.work, StageWork::InTurn(_)) {
            begins = ends;
        }
    }
    println!("{title}: about {} on two quiet cores.", format_stage_run_duration(whole));
    for stage in stages {
        println!(
            "  {:16} {:>7}  {}",
            stage.name,
            format_stage_run_duration(stage.usual_seconds),
            stage.purpose
        );
    }
}

/// Formats a number of seconds: as seconds below two minutes, else as minutes, rounded up.
fn format_stage_run_duration(seconds: u32) -> String {
    if seconds < 120 { format!("{seconds} s") } else { format!("{} min", seconds.div_ceil(60)) }
}

/// Prints the time of each stage, the failures and the counts of tests. A failed stage counts as one
/// failed test at least.
fn print_stage_run_summary(stages: &[Stage], results: &mut Results, all: Duration) {
    let Results { tally, ended } = results;
    let rounded = |time: Duration| Span::from_secs_f64(time.as_secs_f64()).rounded();
    println!("\n== summary ==");
    for stage in stages {
        let verdict = match ended.iter().find(|(name, ..)| *name == stage.name) {
            None => "          not reached".to_owned(),
            Some((_, time, Some(_))) => format!("{:>9} FAILED", rounded(*time)),
            Some((_, time, None)) => format!("{:>9} ok", rounded(*time)),
        };
        println!("{:16}{verdict}", stage.name);
    }
    println!("{:16}{:>9}", "all", rounded(all));
    if !tally.skipped.is_empty() {
        println!("\nSKIPPED, so not shown to work:");
        let is_long = |what: &&String| what.contains(LONG_SKIP_REASON);
        let (long, others): (Vec<_>, Vec<_>) = tally.skipped.iter().partition(is_long);
        others.iter().for_each(|what| println!("  skipped: {what}"));
        if !long.is_empty() {
            println!("  skipped: {} long tests, which cargo xtask test --long runs", long.len());
        }
    }
    for (stage, _, failure) in ended.iter() {
        let Some(failure) = failure else { continue };
        println!("\nFAILED: {stage}: {}", failure.why);
        println!("Repeat with:\n  {}", failure.repeat);
        tally.failed = tally.failed.max(1);
    }
    tally.failures.iter().for_each(|what| println!("  failed: {what}"));
    let Tally { passed, failed, skipped, .. } = tally;
    println!("\nlandbridge: {passed} passed, {failed} failed, {} skipped", skipped.len());
}
