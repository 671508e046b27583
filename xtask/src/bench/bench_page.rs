//! The page that a bench writes or shows, and where its figures come from.

use crate::child_command::CommandFailure;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, ExitCode};

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
/// be started. Its exit status is ignored.
pub(super) fn bench_page_program_output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or("unknown".to_owned(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
}

/// Measures, and writes the page with command, commit and machine below its heading. A target that
/// is not met makes the exit code 1, but the page is written.
pub(super) fn measure_and_write_bench_page(
    page_name: &str,
    name: &str,
    measure: impl Fn(&Path) -> Result<BenchPage, CommandFailure>,
) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder");
    // Read before the measurement, since files may change meanwhile.
    let (command, commit) = (format!("cargo xtask bench {name}"), bench_page_git_commit());
    let page = match measure(root) {
        Ok(page) => page,
        Err(failure) => {
            eprintln!("{}\nRepeat with:\n  {}", failure.why, failure.repeat);
            return ExitCode::FAILURE;
        }
    };
    let machine = bench_page_machine();
    let text = format!(
        "# {}\n\nWritten by `{command}` at commit {commit}, on {machine}.\n\n{}",
        page.title, page.text,
    );
    let mut files = vec![(format!("{page_name}.md"), text.clone())];
    if let Some(mut json) = page.json {
        for (key, value) in [("command", command), ("commit", commit), ("machine", machine)] {
            json[key] = value.into();
        }
        files.push((format!("{page_name}.json"), format!("{json}\n")));
    }
    let folder = root.join("docs/results");
    for (file, text) in files {
        let file = folder.join(file);
        let parent = file.parent().expect("a file's folder");
        let written = std::fs::create_dir_all(parent).and_then(|()| std::fs::write(&file, &text));
        if let Err(error) = written {
            eprintln!("{}: {error}", file.display());
            return ExitCode::FAILURE;
        }
    }
    println!("{text}");
    page.missed.iter().for_each(|missed| eprintln!("NOT MET: {missed}"));
    if page.missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a part of a bench that writes no page.
pub(super) fn show_bench_page_figures(
    run: impl Fn(&Path) -> Result<ExitCode, CommandFailure>,
) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder");
    run(root).unwrap_or_else(|failure| {
        eprintln!("{}\nRepeat with:\n  {}", failure.why, failure.repeat);
        ExitCode::FAILURE
    })
}
