//! `cargo xtask test`, stage by stage.

use crate::command::{CommandLine, Failure};
use crate::tally::Tally;
use crate::{core_purity, faults, programs, python, quickstart, simulate};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Where things are.
struct Place {
    root: PathBuf,
    /// Built by the test stage, in the profile of the tests: optimised, and built once.
    landbridge: PathBuf,
}

struct Stage {
    name: &'static str,
    run: fn(&Place, &mut Tally) -> Result<(), Failure>,
}

const STAGES: [Stage; 12] = [
    Stage { name: "tools", run: |_, _| tools() },
    Stage { name: "format", run: |place, _| cargo(place, &["fmt", "--all", "--check"]) },
    Stage { name: "core purity", run: |place, _| core_purity::check(&place.root) },
    Stage {
        name: "clippy",
        run: |place, _| {
            let selected =
                ["clippy", "--workspace", "--all-targets", "--all-features", "--keep-going"];
            cargo(place, &[&selected[..], &["--", "-D", "warnings"]].concat())
        },
    },
    Stage { name: "tests", run: |place, tally| tests(place, &["--exclude", "fuzz"], tally) },
    // What the tests have built, all features included.
    Stage {
        name: "mutants",
        run: |place, _| {
            simulate::find_soon(&place.root, &place.landbridge.with_file_name("simulate"))
        },
    },
    Stage { name: "fuzz", run: |place, tally| tests(place, &["--test", "short"], tally) },
    Stage { name: "docs", run: |place, _| docs(place) },
    Stage { name: "example configs", run: |place, _| configs(place) },
    Stage {
        name: "quickstart",
        run: |place, tally| quickstart::check(&place.root, &place.landbridge, tally),
    },
    Stage {
        name: "faults",
        run: |place, tally| faults::check(&place.root, &place.landbridge, tally),
    },
    Stage { name: "python", run: |place, tally| python::check(&place.root, place.target(), tally) },
];

/// Runs all stages, up to the first that fails.
pub fn run() -> ExitCode {
    run_stages(&STAGES)
}

/// Where whatever is built goes.
pub fn target_folder() -> PathBuf {
    Place::find().target().to_owned()
}

/// Runs one stage, which must not need what others build.
pub fn run_only(name: &str) -> ExitCode {
    let index = STAGES.iter().position(|stage| stage.name == name).expect("a stage's name");
    run_stages(&STAGES[index..=index])
}

fn run_stages(stages: &[Stage]) -> ExitCode {
    let place = Place::find();
    let mut tally = Tally::default();
    let mut times = Vec::new();
    let mut failure = None;
    for (index, stage) in stages.iter().enumerate() {
        println!("\n== {}/{} {} ==", index + 1, stages.len(), stage.name);
        let begun = Instant::now();
        let outcome = (stage.run)(&place, &mut tally);
        times.push((stage.name, begun.elapsed()));
        if let Err(why) = outcome {
            failure = Some((stage.name, why));
            break;
        }
    }
    summarise(stages, &times, &mut tally, failure.as_ref());
    if failure.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Place {
    fn find() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder");
        let ours = std::env::current_exe().expect("the system knows who runs");
        let landbridge =
            ours.with_file_name("landbridge").with_extension(std::env::consts::EXE_EXTENSION);
        Self { root: root.to_owned(), landbridge }
    }

    /// Where whatever is built goes: the folder above the profile's.
    fn target(&self) -> &Path {
        self.landbridge.ancestors().nth(2).expect("a profile's folder")
    }
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

/// Says all at once what is missing, and how to get it.
fn tools() -> Result<(), Failure> {
    // May be a wrapper and its compiler.
    let compiler = std::env::var("CC").unwrap_or_default();
    let compiler = compiler.split_whitespace().next().unwrap_or("cc");
    let wanted = [
        ("cargo-fmt", "rustup component add rustfmt"),
        ("cargo-clippy", "rustup component add clippy"),
        (
            compiler,
            "a C compiler, for aws-lc-rs: apt-get install gcc libc6-dev, dnf install gcc, \
             or xcode-select --install",
        ),
    ];
    let mut missing = Vec::new();
    for (tool, remedy) in wanted {
        let mut command = Command::new(tool);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.status() {
            Ok(status) if status.success() => println!("{tool}: found"),
            _ => missing.push((tool, remedy)),
        }
    }
    if missing.is_empty() {
        programs::install();
        return Ok(());
    }
    let describe = |(tool, remedy): &(&str, &str)| format!("\n  {tool} (install: {remedy})");
    let why = format!("missing:{}", missing.iter().map(describe).collect::<String>());
    Err(Failure { why, repeat: "cargo xtask test".to_owned() })
}

fn cargo(place: &Place, arguments: &[&str]) -> Result<(), Failure> {
    CommandLine::cargo(arguments).pass(&place.root)
}

/// Tests and doc tests, as selected. All test programs run, so that one report names every
/// failure. The same packages and features each time, so that nothing is built twice.
fn tests(place: &Place, selected: &[&str], tally: &mut Tally) -> Result<(), Failure> {
    let line = ["test", "--workspace", "--all-features", "--no-fail-fast"];
    let line = CommandLine::cargo(&[&line[..], selected].concat());
    let status = line.stream(&place.root, |line| tally.line(line))?;
    if !status.success() {
        return Err(line.failed(&format!("{} tests failed, {status}", tally.failed)));
    }
    if tally.failed > 0 || tally.passed == 0 {
        return Err(line.failed(&"the test runner's counts make no sense"));
    }
    Ok(())
}

fn docs(place: &Place) -> Result<(), Failure> {
    let line = CommandLine::cargo(&["doc", "--no-deps", "--workspace", "--all-features"]);
    line.with("RUSTDOCFLAGS", "-D warnings").pass(&place.root)
}

/// Fabrics and regions. Labs are links alone, which wan-sim's own tests read.
fn configs(place: &Place) -> Result<(), Failure> {
    let mut files = Vec::new();
    toml_files(&place.root.join("configs"), &mut files);
    files.sort();
    let shown = files.iter().filter_map(|file| file.strip_prefix(&place.root).ok());
    let shown: Vec<String> = shown.map(|file| file.display().to_string()).collect();
    let arguments = std::iter::once("check").chain(shown.iter().map(String::as_str));
    let arguments: Vec<&str> = arguments.collect();
    CommandLine::built(&place.landbridge, &arguments).pass(&place.root)
}

fn toml_files(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() && !path.ends_with("configs/labs") {
            toml_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "toml") {
            found.push(path);
        }
    }
}
