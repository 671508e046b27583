//! `cargo xtask test` and `cargo xtask check`, stage by stage.

use crate::command::{CommandLine, Failure};
use crate::stages::{self, Stage, Workspace};
use crate::tally::Tally;
use crate::{core_purity, faults, programs, python, quickstart, simulate};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

const TOOLS: Stage = Stage {
    name: "tools",
    purpose: "programs that the tests need",
    seconds: 1,
    run: |workspace, _| tools(workspace),
};
const FORMAT: Stage = Stage {
    name: "format",
    purpose: "rustfmt changes nothing",
    seconds: 2,
    run: |workspace, _| cargo(workspace, &["fmt", "--all", "--check"]),
};
const TIDY: Stage = Stage {
    name: "tidy",
    purpose: "names, comments, sizes, imports, links between documents",
    seconds: 10,
    run: |workspace, tally| tests(workspace, &["test", "--package", "tidy"], tally),
};
const CORE_PURITY: Stage = Stage {
    name: "core purity",
    purpose: "the cores depend on no socket, clock or executor",
    seconds: 1,
    run: |workspace, _| core_purity::check(&workspace.root),
};
const CLIPPY: Stage = Stage {
    name: "clippy",
    purpose: "no warning in any target",
    seconds: 120,
    run: |workspace, _| {
        let selected = ["clippy", "--workspace", "--all-targets", "--all-features", "--keep-going"];
        cargo(workspace, &[&selected[..], &["--", "-D", "warnings"]].concat())
    },
};
const UNIT_TESTS: Stage = Stage {
    name: "unit tests",
    purpose: "tests beside the code of each crate",
    seconds: 100,
    run: |workspace, tally| {
        // Programs have unit tests as well; those of tidy have a stage of their own.
        let selected = ["--lib", "--bins", "--exclude", "tidy"];
        tests(workspace, &[&ALL_TESTS[..], &selected].concat(), tally)
    },
};
const TESTS: Stage = Stage {
    name: "tests",
    purpose: "all tests of all crates, whole gateways in virtual time and as processes",
    seconds: 400,
    run: |workspace, tally| {
        tests(
            workspace,
            &[&ALL_TESTS[..], &["--exclude", "fuzz", "--exclude", "tidy"]].concat(),
            tally,
        )
    },
};
const MUTANTS: Stage = Stage {
    name: "mutants",
    purpose: "the simulation finds each variant that is broken on purpose",
    seconds: 30,
    run: |workspace, _| {
        // The tests have built it, all features included.
        simulate::find_soon(&workspace.root, &workspace.landbridge.with_file_name("simulate"))
    },
};
const FUZZ: Stage = Stage {
    name: "fuzz",
    purpose: "each decoder over its seeds and 20,000 mutations",
    seconds: 30,
    run: |workspace, tally| {
        tests(workspace, &[&ALL_TESTS[..], &["--test", "short"]].concat(), tally)
    },
};
const DOCS: Stage = Stage {
    name: "docs",
    purpose: "rustdoc has no warning",
    seconds: 30,
    run: |workspace, _| docs(workspace),
};
const CONFIGS: Stage = Stage {
    name: "example configs",
    purpose: "`landbridge check` accepts each file of configs",
    seconds: 1,
    run: |workspace, _| configs(workspace),
};
const QUICKSTART: Stage = Stage {
    name: "quickstart",
    purpose: "`landbridge quickstart`, short",
    seconds: 15,
    run: |workspace, tally| quickstart::check(&workspace.root, &workspace.landbridge, tally),
};
const FAULTS: Stage = Stage {
    name: "faults",
    purpose: "processes killed and stopped in mid-collective",
    seconds: 60,
    run: |workspace, tally| faults::check(&workspace.root, &workspace.landbridge, tally),
};
const PYTHON: Stage = Stage {
    name: "python",
    purpose: "wheel, Python tests, PyTorch 2.15 and 2.9; puts 3 GB of packages below target",
    seconds: 300,
    run: |workspace, tally| python::check(&workspace.root, workspace.target(), tally),
};

/// Everything that must hold before a merge.
const TEST: [Stage; 13] = [
    TOOLS,
    FORMAT,
    TIDY,
    CORE_PURITY,
    CLIPPY,
    TESTS,
    MUTANTS,
    FUZZ,
    DOCS,
    CONFIGS,
    QUICKSTART,
    FAULTS,
    PYTHON,
];
/// The fast part of it.
const CHECK: [Stage; 5] = [FORMAT, TIDY, CORE_PURITY, CLIPPY, UNIT_TESTS];

/// The same packages and features for all tests, so that nothing is built twice. All test programs
/// run, so that one report names every failure.
const ALL_TESTS: [&str; 4] = ["test", "--workspace", "--all-features", "--no-fail-fast"];

/// Runs all stages; `may_install` allows missing system packages to be installed.
pub fn run(may_install: bool) -> ExitCode {
    let title = if may_install {
        "cargo xtask test, which installs missing system packages"
    } else {
        "cargo xtask test"
    };
    stages::run(title, &Workspace::find(may_install), &TEST)
}

/// Runs the fast stages.
pub fn check() -> ExitCode {
    stages::run("cargo xtask check", &Workspace::find(false), &CHECK)
}

/// Runs the tests of the Python package, which need nothing that other stages build.
pub fn python() -> ExitCode {
    stages::run("cargo xtask python", &Workspace::find(false), &[PYTHON])
}

/// Names everything that is missing at once, with the way to get it.
fn tools(workspace: &Workspace) -> Result<(), Failure> {
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
        programs::find(workspace.may_install);
        return Ok(());
    }
    let describe = |(tool, remedy): &(&str, &str)| format!("\n  {tool} (install: {remedy})");
    let why = format!("missing:{}", missing.iter().map(describe).collect::<String>());
    Err(Failure { why, repeat: "cargo xtask test".to_owned() })
}

fn cargo(workspace: &Workspace, arguments: &[&str]) -> Result<(), Failure> {
    CommandLine::cargo(arguments).pass(&workspace.root)
}

/// Runs `cargo` with these words, and counts tests and doc tests.
fn tests(workspace: &Workspace, words: &[&str], tally: &mut Tally) -> Result<(), Failure> {
    let line = CommandLine::cargo(words);
    let before = tally.passed;
    let status = line.stream(&workspace.root, |line| tally.line(line))?;
    if !status.success() {
        return Err(line.failed(&format!("{} tests failed, {status}", tally.failed)));
    }
    if tally.failed > 0 || tally.passed == before {
        return Err(line.failed(&"the test runner's counts make no sense"));
    }
    Ok(())
}

fn docs(workspace: &Workspace) -> Result<(), Failure> {
    let line = CommandLine::cargo(&["doc", "--no-deps", "--workspace", "--all-features"]);
    line.with("RUSTDOCFLAGS", "-D warnings").pass(&workspace.root)
}

/// Fabrics and regions. Labs are links alone, which wan-sim's own tests read.
fn configs(workspace: &Workspace) -> Result<(), Failure> {
    let mut files = Vec::new();
    toml_files(&workspace.root.join("configs"), &mut files);
    files.sort();
    let shown = files.iter().filter_map(|file| file.strip_prefix(&workspace.root).ok());
    let shown: Vec<String> = shown.map(|file| file.display().to_string()).collect();
    let arguments = std::iter::once("check").chain(shown.iter().map(String::as_str));
    let arguments: Vec<&str> = arguments.collect();
    CommandLine::built(&workspace.landbridge, &arguments).pass(&workspace.root)
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
