//! Tests of what commands do with stdout, stderr and logs.

use super::{code, configs};
use std::fs::File;
use std::io::{PipeReader, PipeWriter};
use std::process::{Command, Stdio};

/// Returns a device that takes nothing, like a full disk.
fn full_disk() -> File {
    File::options().write(true).open("/dev/full").expect("a device")
}

/// Returns a pipe whose reader is gone, as behind `head`.
fn closed_pipe() -> PipeWriter {
    std::io::pipe().expect("a pipe").1
}

/// Returns a full pipe, and its reader, which reads nothing.
fn unread_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let set = |writer: &PipeWriter, flags| rustix::fs::fcntl_setfl(writer, flags).expect("a pipe");
    set(&writer, rustix::fs::OFlags::NONBLOCK);
    while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
    set(&writer, rustix::fs::OFlags::empty());
    (reader, writer)
}

#[test]
fn a_report_that_is_not_written_exits_with_1() {
    let fabric = configs().join("two-region/fabric.toml").display().to_string();
    let east = configs().join("two-region/east.toml").display().to_string();
    for arguments in [
        &["plan", "--fabric", &fabric][..],
        &["plan", "--fabric", &fabric, "--json"],
        &["plan", "traffic"],
        &["check", &fabric],
        &["check", &fabric, "--json"],
        &["config", "--config", &east],
        &["config", "--config", &east, "--json"],
        &["ports", "--config", &east],
        &["wan-sim", "presets"],
        &["completions", "bash"],
        &["wan-sim", "show", &fabric],
        &["--help"],
        &["--version"],
        &["plan", "--help"],
    ] {
        let into = |stdout: Stdio| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_landbridge"));
            let output = command.args(arguments).stdout(stdout).output().expect("runs");
            (code(&output), String::from_utf8(output.stderr).expect("text"))
        };
        let (code, said) = into(full_disk().into());
        assert_eq!((code, said.lines().count()), (1, 1), "{arguments:?}: {said}");
        assert!(said.starts_with("cannot write to standard output: No space left"), "{said}");
        // The reader knows that it has closed the pipe.
        assert_eq!(into(closed_pipe().into()), (1, String::new()), "{arguments:?}");
    }
}

#[test]
fn an_error_that_nobody_reads_delays_no_command() {
    let (_reader, unread) = unread_pipe();
    for stderr in [Stdio::from(full_disk()), closed_pipe().into(), unread.into()] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_landbridge"));
        command.args(["check", "nowhere.toml"]).stdout(Stdio::null()).stderr(stderr);
        assert_eq!(command.status().expect("runs").code(), Some(64));
    }
}

#[test]
fn an_unknown_log_level_exits_with_64_and_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_landbridge"));
    command.args(["run", "--config", "nowhere.toml"]).env("LANDBRIDGE_LOG", "debgu");
    let output = command.output().expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((code(&output), stderr.trim_end().lines().count()), (64, 1), "{stderr}");
    assert!(stderr.contains("LANDBRIDGE_LOG=\"debgu\""), "{stderr}");
}

#[test]
fn an_unknown_log_format_exits_with_64_and_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_landbridge"));
    command.args(["run", "--config", "nowhere.toml"]).env("LANDBRIDGE_LOG_FORMAT", "logfmt");
    let output = command.output().expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((code(&output), stderr.trim_end().lines().count()), (64, 1), "{stderr}");
    assert!(stderr.contains("LANDBRIDGE_LOG_FORMAT=\"logfmt\""), "{stderr}");
    assert!(stderr.contains("accepted: text, json"), "{stderr}");
}

#[test]
fn a_json_log_has_the_error_as_an_object() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_landbridge"));
    command.args(["run", "--config", "nowhere.toml"]).env("LANDBRIDGE_LOG_FORMAT", "json");
    let output = command.output().expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let line: serde_json::Value = serde_json::from_str(stderr.trim_end()).expect("one object");
    assert_eq!((code(&output), line["level"].as_str()), (64, Some("error")), "{stderr}");
    assert!(line["message"].as_str().is_some_and(|text| text.contains("nowhere.toml")), "{stderr}");
}
