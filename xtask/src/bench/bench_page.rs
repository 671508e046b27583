//! The page that a bench writes, and where its figures come from.

use serde_json::Value;
use std::process::Command;

/// The text of `docs/results/NAME.md`, below a line on where it comes from.
pub(super) struct BenchPage {
    /// Heading of the page.
    pub title: &'static str,
    /// Markdown below the heading.
    pub text: String,
    /// Figures as one object for `NAME.json`, to which command, commit and machine are added.
    pub json: Option<Value>,
    /// Targets that are not met: the command prints them to stderr, and fails.
    pub missed: Vec<String>,
}

impl BenchPage {
    /// Returns a page with all targets met and without JSON.
    pub fn new(title: &'static str, text: String) -> Self {
        Self { title, text, json: None, missed: Vec::new() }
    }
}

/// Returns the short hash of the commit that is measured, with a remark if the working tree
/// differs outside `docs/results`.
pub(super) fn bench_page_git_commit() -> String {
    let commit = bench_page_program_output("git", &["rev-parse", "--short", "HEAD"]);
    let changed = bench_page_program_output(
        "git",
        &["status", "--porcelain", "--", ":/", ":(top,exclude)docs/results"],
    );
    if changed.is_empty() { commit } else { format!("{commit} with changes") }
}

/// Returns cores, processor and kernel of this machine.
pub(super) fn bench_page_machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let model =
        model.map_or("an unknown processor", |model| model.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{cores} cores of {model}, Linux {}", bench_page_program_output("uname", &["-r"]))
}

/// Runs a program and returns its stdout without white space at the ends; "unknown" if it cannot
/// run.
pub(super) fn bench_page_program_output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or("unknown".to_owned(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
}
