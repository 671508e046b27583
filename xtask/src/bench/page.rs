//! The page that a bench writes, and where its figures come from.

use serde_json::Value;
use std::process::Command;

/// The text of `docs/results/NAME.md`, below a line on where it comes from.
pub(super) struct Page {
    /// The heading.
    pub title: &'static str,
    /// The Markdown below it.
    pub text: String,
    /// The same as one object, for `NAME.json`, with where it comes from among its keys.
    pub json: Option<Value>,
    /// Targets that are not met: the page names them, and the command fails.
    pub missed: Vec<String>,
}

impl Page {
    /// A page with all targets met and no JSON.
    pub fn new(title: &'static str, text: String) -> Self {
        Self { title, text, json: None, missed: Vec::new() }
    }
}

/// The commit of the tree that is measured, and whether the tree differs from it.
pub(super) fn commit() -> String {
    let commit = output("git", &["rev-parse", "--short", "HEAD"]);
    let changed =
        output("git", &["status", "--porcelain", "--", ":/", ":(top,exclude)docs/results"]);
    if changed.is_empty() { commit } else { format!("{commit} with changes") }
}

/// The processor and the kernel.
pub(super) fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let model =
        model.map_or("an unknown processor", |model| model.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{cores} cores of {model}, Linux {}", output("uname", &["-r"]))
}

/// The output of a program, on one line.
pub(super) fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or("unknown".to_owned(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
}
