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
    /// The program, as the test stage builds it: in the profile of the tests.
    pub landbridge: PathBuf,
    /// Whether missing system packages may be installed.
    pub may_install: bool,
}

/// One stage of a command.
#[derive(Clone, Copy)]
pub struct Stage {
    /// Its name in the output.
    pub name: &'static str,
    /// A clause for people: the checks that it makes.
    pub purpose: &'static str,
    /// Seconds on two quiet cores with everything to build, as last measured.
    pub seconds: u32,
    /// Runs it.
    pub run: fn(&Workspace, &mut Tally) -> Result<(), Failure>,
}

impl Workspace {
    /// The workspace that this program was built in.
    pub fn find(may_install: bool) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder");
        let ours = std::env::current_exe().expect("the system knows who runs");
        let landbridge =
            ours.with_file_name("landbridge").with_extension(std::env::consts::EXE_EXTENSION);
        Self { root: root.to_owned(), landbridge, may_install }
    }

    /// The folder of build outputs, above those of the profiles.
    pub fn target(&self) -> &Path {
        self.landbridge.ancestors().nth(2).expect("a profile's folder")
    }
}

/// The folder of build outputs.
pub fn target_folder() -> PathBuf {
    Workspace::find(false).target().to_owned()
}

/// Prints the list of stages, runs them, prints a summary.
pub fn run(title: &str, workspace: &Workspace, stages: &[Stage]) -> ExitCode {
    announce(title, stages);
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
    summarise(stages, &times, &mut tally, failure.as_ref());
    if failure.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the stages that will run, and how long they take.
fn announce(title: &str, stages: &[Stage]) {
    let total: u32 = stages.iter().map(|stage| stage.seconds).sum();
    println!("{title}: about {} on two quiet cores.", spoken(total));
    for stage in stages {
        println!("  {:16} {:>7}  {}", stage.name, spoken(stage.seconds), stage.purpose);
    }
}

/// A time for people: seconds below two minutes, else whole minutes.
fn spoken(seconds: u32) -> String {
    if seconds < 120 { format!("{seconds} s") } else { format!("{} min", seconds.div_ceil(60)) }
}

/// The last line sums the test runners' counts; a failed stage counts at least once.
fn summarise(
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
