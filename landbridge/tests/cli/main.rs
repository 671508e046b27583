//! Commands as a shell runs them: exit codes, streams, JSON.

mod config_files;
mod exits;
mod plans;
mod streams;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs the binary with `arguments` to its end.
fn landbridge(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_landbridge"));
    command.args(arguments).output().expect("the binary runs")
}

/// Returns the exit code of a command.
fn code(output: &Output) -> i32 {
    output.status.code().expect("not killed by a signal")
}

/// Parses stdout of a command as JSON.
fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).expect("one JSON object and nothing else")
}

/// Returns the folder of example configs.
fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs")
}
