//! `cargo xtask bench fuzz`: every target for ten minutes, with libFuzzer.

use super::bench_page::{BenchPage, measure_and_write_bench_page};
use crate::child_command::{CommandFailure, CommandLine};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

/// 600 s: the time for which each fuzz target runs. The time is chosen.
const FUZZ_SECONDS: u64 = 600;

/// The figures that libFuzzer prints for one target at its end.
struct FuzzRun {
    target: String,
    inputs: u64,
    kept: u64,
    megabytes: u64,
    /// Files of the inputs that failed in the run, and failed again when they were repeated.
    findings: Vec<String>,
}

/// Runs `cargo xtask bench fuzz`: builds and runs all fuzz targets.
pub(super) fn measure_fuzz(root: &Path) -> Result<BenchPage, CommandFailure> {
    measure_fuzz_targets(root, &[])
}

/// Builds and runs the named fuzz targets, or all if `wanted` is empty, as many at a time as there
/// are cores. The page keeps the rows of other targets.
pub(super) fn measure_fuzz_targets(
    root: &Path,
    wanted: &[&str],
) -> Result<BenchPage, CommandFailure> {
    CommandLine::cargo(&["fuzz", "build", "--sanitizer", "none"]).run_to_success(root)?;
    let list = CommandLine::cargo(&["fuzz", "list"]);
    let (status, targets) = list.capture(root)?;
    if !status.success() {
        return Err(list.failure(&status));
    }
    if let Some(unknown) = wanted.iter().find(|name| !targets.lines().any(|line| line == **name)) {
        let why = format!("no fuzz target `{unknown}`; there are:\n{targets}");
        return Err(list.failure(&why));
    }
    let named = |name: &&str| wanted.is_empty() || wanted.contains(name);
    let queue = Mutex::new(targets.lines().filter(named).collect::<Vec<_>>());
    let runs = Mutex::new(Vec::new());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(target) = next() {
                    let run = run_fuzz_target(root, target);
                    runs.lock().unwrap_or_else(PoisonError::into_inner).push(run);
                }
            });
        }
    });
    let runs: Result<Vec<FuzzRun>, CommandFailure> =
        runs.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect();
    let commit =
        super::bench_page::bench_page_program_output("git", &["rev-parse", "--short", "HEAD"]);
    let mut rows: BTreeMap<String, String> = read_fuzz_page_rows(root).collect();
    rows.extend(runs?.iter().map(|run| (run.target.clone(), run.table_row(&commit))));
    rows.retain(|target, _| targets.lines().any(|line| line == target));
    Ok(BenchPage::new("Fuzzing", fuzz_table(&rows) + &earlier_fuzz_findings(root)))
}

/// Runs one fuzz target from its seeds for [`FUZZ_SECONDS`]. Repeats each finding to confirm it.
fn run_fuzz_target(root: &Path, target: &str) -> Result<FuzzRun, CommandFailure> {
    let dictionary = format!("fuzz/dictionaries/{target}");
    let dictionary =
        Some(format!("-dict={dictionary}")).filter(|_| root.join(&dictionary).exists());
    let time = format!("-max_total_time={FUZZ_SECONDS}");
    let mut words = vec!["fuzz", "run", "--sanitizer", "none", target, "--", &time];
    words.extend(["-timeout=5", "-print_final_stats=1"]);
    words.extend(dictionary.as_deref());
    let line = CommandLine::cargo(&words);
    println!("{target}: {FUZZ_SECONDS} s");
    let said = line.capture_stderr(root)?;
    let stat = |name: &str| {
        let value = said.lines().find_map(|line| line.strip_prefix(&format!("stat::{name}:")));
        value.and_then(|value| value.trim().parse().ok())
    };
    let mut findings = Vec::new();
    for (_, file) in said.lines().filter_map(|line| line.split_once("Test unit written to ")) {
        let file = file.trim();
        let again = ["fuzz", "run", "--sanitizer", "none", target, file, "--", "-timeout=5"];
        // A machine that stood still makes any input slow.
        if CommandLine::cargo(&again).run_to_exit_code(root)? != Some(0) {
            let name = Path::new(file).strip_prefix(root).unwrap_or(Path::new(file));
            findings.push(name.display().to_string());
        }
    }
    let missing = || line.failure(&format!("no statistics in:\n{said}"));
    let run = FuzzRun {
        target: target.to_owned(),
        inputs: stat("number_of_executed_units").ok_or_else(missing)?,
        kept: stat("new_units_added").ok_or_else(missing)?,
        megabytes: stat("peak_rss_mb").ok_or_else(missing)?,
        findings,
    };
    println!("{target}: {} inputs, {} findings", run.inputs, run.findings.len());
    Ok(run)
}

impl FuzzRun {
    /// Returns the row of the page for this target: inputs, memory, findings, commit.
    fn table_row(&self, commit: &str) -> String {
        let FuzzRun { target, inputs, kept, megabytes, findings } = self;
        let found = if findings.is_empty() { "none".to_owned() } else { findings.join(", ") };
        format!("| `{target}` | {inputs} | {kept} | {megabytes} | {found} | {commit} |")
    }
}

/// Reads the target and the row of each line of the table in `docs/results/fuzz.md`.
fn read_fuzz_page_rows(root: &Path) -> impl Iterator<Item = (String, String)> {
    let page = std::fs::read_to_string(root.join("docs/results/fuzz.md")).unwrap_or_default();
    let row = |line: &str| {
        let (target, _) = line.strip_prefix("| `")?.split_once('`')?;
        Some((target.to_owned(), line.to_owned()))
    };
    page.lines().filter_map(row).collect::<Vec<_>>().into_iter()
}

/// Returns the table of all targets, with the conditions of the runs above it.
fn fuzz_table(rows: &BTreeMap<String, String>) -> String {
    let mut text = format!(
        "Each target ran for {FUZZ_SECONDS} s with libFuzzer, coverage-guided, without a \
         sanitizer: the decoders have no `unsafe` code. A finding is an input that breaks a promise of \
         `fuzz/src/lib.rs`, takes longer than 5 s, or more memory than the target allows, and that \
         does so again. A row says at which commit it was measured.\n\n\
         | target | inputs tried | kept for new coverage | peak memory MB | findings | commit |\n\
         |---|---|---|---|---|---|\n"
    );
    for row in rows.values() {
        writeln!(text, "{row}").expect("a string takes all");
    }
    text
}

/// Returns a list of the mended findings of all runs, as the names of files in the corpus tell
/// them.
fn earlier_fuzz_findings(root: &Path) -> String {
    let mut found: Vec<String> = std::fs::read_dir(root.join("fuzz/corpus"))
        .into_iter()
        .flatten()
        .filter_map(|folder| std::fs::read_dir(folder.ok()?.path()).ok())
        .flatten()
        .filter_map(|file| {
            let path = file.ok()?.path();
            let what = path.file_name()?.to_str()?.strip_prefix("found-")?.replace('-', " ");
            let target = path.parent()?.file_name()?.to_str()?;
            Some(format!("* `{target}`: {what}\n"))
        })
        .collect();
    found.sort_unstable();
    format!(
        "\nFound earlier, mended, and kept in the corpus with a regression test beside the \
         decoder:\n\n{}",
        found.concat()
    )
}

/// Runs some fuzz targets and replaces their rows of the page on fuzzing.
pub fn bench_fuzz_targets(targets: &[&str]) -> ExitCode {
    measure_and_write_bench_page("fuzz", "fuzz", |root| measure_fuzz_targets(root, targets))
}
