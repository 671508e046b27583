//! The JSON of the emulator's commands against its schemas.

use super::deployment::BINARY;
use super::schema::Schema;
use super::skipping::skip;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};

/// Starts a relay with more flags, whose output and commands are piped.
fn relay(flag: &str) -> Child {
    let mut relay = Command::new(BINARY);
    relay.args(["wan-sim", "relay", flag, "--rtt=2ms", "--rate=1 Gbit/s"]);
    relay.args(["--forward", "127.0.0.1:0=127.0.0.1:9"]);
    relay.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts")
}

/// Returns the lines that a relay prints, as JSON.
fn lines(relay: &mut Child) -> impl Iterator<Item = Value> + use<> {
    let lines = BufReader::new(relay.stdout.take().expect("piped")).lines();
    lines.map(|line| serde_json::from_str(&line.expect("text")).expect("JSON"))
}

#[test]
fn a_relay_prints_what_its_schemas_say() {
    let mut relay = relay("--json");
    let mut lines = lines(&mut relay);
    Schema::load("wan-sim/ready.json").assert_valid(&lines.next().expect("a line"));
    let pid = rustix::process::Pid::from_child(&relay);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("signalled");
    Schema::load("wan-sim/relay.json").assert_valid(&lines.next().expect("a line"));
    assert_eq!(relay.wait().expect("ends").code(), Some(130));
}

#[test]
fn a_relay_answers_commands_as_its_schema_says() {
    let mut relay = relay("--control");
    let mut lines = lines(&mut relay);
    Schema::load("wan-sim/ready.json").assert_valid(&lines.next().expect("a line"));
    let mut input = relay.stdin.take().expect("piped");
    let schema = Schema::load("wan-sim/control.json");
    for (command, key) in
        [("counters", "client_target"), ("fidelity", "void"), ("cut", "done"), ("dance", "error")]
    {
        writeln!(input, "{command}").expect("written");
        let answer = lines.next().expect("a line");
        schema.assert_valid(&answer);
        assert!(!answer[key].is_null(), "{command}: {answer}");
    }
    drop(input);
    assert_eq!(relay.wait().expect("ends").code(), Some(0));
}

#[test]
fn a_lab_prints_what_its_schema_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("lab.toml");
    let text = "[site.a]\n[site.b]\n[link.a-b]\nnetem = 'delay 1ms'\n";
    std::fs::write(&file, text).expect("written");
    let lab = |words: &[&str]| -> Output {
        let mut command = Command::new(BINARY);
        command.args(["wan-sim", "lab", words[0]]).arg(&file).args(&words[1..]);
        command.output().expect("runs")
    };
    let up = lab(&["up"]);
    if up.status.code() == Some(77) {
        return skip(String::from_utf8_lossy(&up.stderr));
    }
    let schema = Schema::load("wan-sim/lab.json");
    for output in [lab(&["status"]), lab(&["down", "--json"])] {
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        schema.assert_valid(&report);
        assert_eq!(report["links"].as_array().map(Vec::len), Some(2), "{report}");
    }
}
