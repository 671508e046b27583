//! A list of stages, run one after the other up to the first that fails.

use crate::command::Failure;
use crate::tally::Tally;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Folders and programs that stages use.
pub struct Workspace {
    /// The root folder of the project.
    pub root: PathBuf,
    /// Program `landbridge` in the profile of the tests.
    pub landbridge: PathBuf,
    /// True if missing system packages may be installed.
    pub may_install: bool,
}

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

impl Workspace {
    /// Returns the workspace that this program was built in.
    pub fn current(may_install: bool) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder");
        let ours = std::env::current_exe().expect("the system knows who runs");
        let landbridge =
            ours.with_file_name("landbridge").with_extension(std::env::consts::EXE_EXTENSION);
        Self { root: root.to_owned(), landbridge, may_install }
    }

    /// Returns the folder of build outputs, above the folders of the profiles.
    pub fn target_folder(&self) -> &Path {
        self.landbridge.ancestors().nth(2).expect("a profile's folder")
    }
}

/// Returns the folder of build outputs of the workspace.
pub fn target_folder() -> PathBuf {
    Workspace::current(false).target_folder().to_owned()
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
    print_summary(stages, &times, &mut tally, failure.as_ref());
    if failure.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the stages that will run, and how long they take.
fn print_stages(title: &str, stages: &[Stage]) {
    let total: u32 = stages.iter().map(|stage| stage.seconds).sum();
    println!("{title}: about {} on two quiet cores.", format_duration(total));
    for stage in stages {
        println!("  {:16} {:>7}  {}", stage.name, format_duration(stage.seconds), stage.purpose);
    }
}

/// Formats a number of seconds: as seconds below two minutes, else as whole minutes.
fn format_duration(seconds: u32) -> String {
    if seconds < 120 { format!("{seconds} s") } else { format!("{} min", seconds.div_ceil(60)) }
}

/// Prints the time of each stage, the failure and the counts of tests. A failed stage counts as one
/// failed test at least.
fn print_summary(
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
