//! `cargo xtask bench fuzz`: every target for ten minutes, with libFuzzer.

use super::Page;
use crate::command::{CommandLine, Failure};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// How long each target runs.
const SECONDS: u64 = 600;

/// What libFuzzer said of one target at its end.
struct Run {
    target: String,
    inputs: u64,
    kept: u64,
    megabytes: u64,
    /// The files that make the decoder break a promise.
    findings: Vec<String>,
}

/// Builds all targets, then runs as many at once as there are cores.
pub(super) fn measure(root: &Path) -> Result<Page, Failure> {
    CommandLine::cargo(&["fuzz", "build", "--sanitizer", "none"]).pass(root)?;
    let list = CommandLine::cargo(&["fuzz", "list"]);
    let (status, targets) = list.capture(root)?;
    if !status.success() {
        return Err(list.failed(&status));
    }
    let queue = Mutex::new(targets.lines().collect::<Vec<_>>());
    let runs = Mutex::new(Vec::new());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(target) = next() {
                    let run = fuzz(root, target);
                    runs.lock().unwrap_or_else(PoisonError::into_inner).push(run);
                }
            });
        }
    });
    let runs: Result<Vec<Run>, Failure> =
        runs.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect();
    let mut runs = runs?;
    runs.sort_by(|a, b| a.target.cmp(&b.target));
    Ok(Page { title: "Fuzzing", text: table(&runs) + &earlier(root) })
}

/// Runs one target over its seeds and what libFuzzer makes of them.
fn fuzz(root: &Path, target: &str) -> Result<Run, Failure> {
    let dictionary = format!("fuzz/dictionaries/{target}");
    let dictionary =
        Some(format!("-dict={dictionary}")).filter(|_| root.join(&dictionary).exists());
    let time = format!("-max_total_time={SECONDS}");
    let mut words = vec!["fuzz", "run", "--sanitizer", "none", target, "--", &time];
    words.extend(["-timeout=5", "-print_final_stats=1"]);
    words.extend(dictionary.as_deref());
    let line = CommandLine::cargo(&words);
    println!("{target}: {SECONDS} s");
    let said = line.capture_stderr(root)?;
    let stat = |name: &str| {
        let value = said.lines().find_map(|line| line.strip_prefix(&format!("stat::{name}:")));
        value.and_then(|value| value.trim().parse().ok())
    };
    let missing = || line.failed(&format!("no statistics in:\n{said}"));
    let run = Run {
        target: target.to_owned(),
        inputs: stat("number_of_executed_units").ok_or_else(missing)?,
        kept: stat("new_units_added").ok_or_else(missing)?,
        megabytes: stat("peak_rss_mb").ok_or_else(missing)?,
        findings: said
            .lines()
            .filter_map(|line| line.split_once("Test unit written to "))
            .map(|(_, file)| file.trim().to_owned())
            .collect(),
    };
    println!("{target}: {} inputs, {} findings", run.inputs, run.findings.len());
    Ok(run)
}

fn table(runs: &[Run]) -> String {
    let total: u64 = runs.iter().map(|run| run.inputs).sum();
    let mut text = format!(
        "Each target ran for {SECONDS} s with libFuzzer, coverage-guided, without a sanitizer: the \
         decoders have no `unsafe` code. A finding is an input that breaks a promise of \
         `fuzz/src/lib.rs`, takes longer than 5 s, or more memory than the target allows. {total} \
         inputs in all.\n\n\
         | target | inputs tried | kept for new coverage | peak memory MB | findings |\n\
         |---|---|---|---|---|\n"
    );
    for Run { target, inputs, kept, megabytes, findings } in runs {
        let found = if findings.is_empty() { "none".to_owned() } else { findings.join(", ") };
        writeln!(text, "| `{target}` | {inputs} | {kept} | {megabytes} | {found} |")
            .expect("a string takes all");
    }
    text
}

/// The mended findings of all runs, as the corpus keeps them.
fn earlier(root: &Path) -> String {
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
