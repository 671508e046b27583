//! Commands that report about a running gateway, where standard output is full or closed.

use super::deployment::BINARY;
use super::{ONE_AT_A_TIME, running};
use std::fs::File;
use std::process::{Command, Output, Stdio};
use std::sync::PoisonError;

/// Commands that take a region file and report on standard output.
const REPORTS: [&[&str]; 10] = [
    &["status"],
    &["status", "--json"],
    &["doctor"],
    &["doctor", "--json"],
    &["ports"],
    &["ports", "--json"],
    &["config"],
    &["config", "--json"],
    &["rate", "east-west", "150 Mbit/s"],
    &["rate", "east-west", "scheduled", "--json"],
];

/// Asserts that a command has failed because its report was not written, and says so once.
fn assert_unwritten(output: &Output, what: &[&str], words: &str) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{what:?}: {said}");
    let told = said.lines().filter(|line| line.starts_with("cannot write to standard output: "));
    let told: Vec<_> = told.collect();
    assert!(told.len() == 1 && told[0].contains(words), "{what:?}: {said}");
}

#[test]
fn reports_that_are_not_written_exit_with_1() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let deployment = running();
    let config = deployment.path("east.toml");
    let full = || File::options().write(true).open("/dev/full").expect("a device");
    for words in REPORTS {
        let report = |mut command: Command, stdout: Stdio| {
            command.args(words).arg("--config").arg(&config).stdout(stdout);
            command.output().expect("runs")
        };
        assert_unwritten(&report(Command::new(BINARY), full().into()), words, "No space left");
        // A file above the limit on its size is as good as full, and kills nobody.
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -f 0; exec \"$0\" \"$@\"", BINARY]);
        let file = tempfile::tempfile().expect("a file");
        assert_unwritten(&report(limited, file.into()), words, "(ulimit -f)");
        // Whoever closed the pipe knows.
        let (reader, closed) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = report(Command::new(BINARY), closed.into());
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
    }
    let out = deployment.path("made");
    let mut certs = Command::new(BINARY);
    certs.arg("certs").arg("--fabric").arg(deployment.path("fabric.toml")).arg("--out").arg(&out);
    let output = certs.stdout(full()).output().expect("runs");
    assert_unwritten(&output, &["certs"], "No space left");
    assert!(out.join("ca.pem").exists(), "only the report was not written");
    let short = ["--steps", "2", "--iterations", "1", "--size", "1 MiB", "--rtt", "2 ms"];
    let mut quickstart = Command::new(BINARY);
    let output = quickstart.arg("quickstart").args(short).stdout(full()).output().expect("runs");
    assert_unwritten(&output, &["quickstart"], "No space left");
    let benches: Vec<_> = (0..3)
        .map(|rank| {
            let region = if rank < 2 { "east.toml" } else { "west.toml" };
            let mut bench = Command::new(BINARY);
            bench.args(["bench", "all-reduce", "--job", "train", "--size", "64 KiB", "--rank"]);
            bench.arg(rank.to_string()).arg("--config").arg(deployment.path(region));
            bench.stdout(full()).stderr(Stdio::piped()).spawn().expect("starts")
        })
        .collect();
    for bench in benches {
        let output = bench.wait_with_output().expect("ends");
        assert_unwritten(&output, &["bench"], "No space left");
    }
}
