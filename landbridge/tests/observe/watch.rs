//! `landbridge status --watch`.

use super::deployment::{BINARY, Deployment};
use super::schema::Schema;
use super::{LAYOUT, running};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};

/// Starts the command on east's gateway.
fn watch(deployment: &Deployment, more: &[&str], stdout: Stdio) -> Child {
    let config = deployment.path("east.toml");
    let mut line = Command::new(BINARY);
    line.args(["status", "--watch", "--config"]).arg(config).args(more);
    line.stdout(stdout).spawn().expect("starts")
}

/// Interrupts a command and returns its exit code.
fn code_after_interrupt(mut process: Child) -> Option<i32> {
    kill_process(Pid::from_child(&process), Signal::INT).expect("signalled");
    process.wait().expect("ends").code()
}

#[test]
fn watch_prints_blocks_and_ends_by_an_interrupt() {
    let deployment = running();
    let mut watching = watch(&deployment, &[], Stdio::piped());
    // They stay open: a closed pipe would end the command.
    let mut lines = BufReader::new(watching.stdout.take().expect("piped")).lines();
    let mut heads = 0;
    for line in lines.by_ref().map(|line| line.expect("text")) {
        assert!(line.chars().count() <= 80 && !line.contains('\u{1b}'), "{line:?}");
        heads += u32::from(line.starts_with("gateway east-0 of two: "));
        if heads == 3 {
            break;
        }
    }
    assert_eq!(heads, 3, "blocks");
    assert_eq!(code_after_interrupt(watching), Some(130));
}

#[test]
fn watch_prints_one_json_object_a_line() {
    let deployment = running();
    let mut watching = watch(&deployment, &["--json"], Stdio::piped());
    let mut lines = BufReader::new(watching.stdout.take().expect("piped")).lines();
    let schema = Schema::load("gateway/status.json");
    for line in lines.by_ref().take(2) {
        let report = serde_json::from_str(&line.expect("text")).expect("one object");
        schema.assert_valid(&report);
    }
    assert_eq!(code_after_interrupt(watching), Some(130));
}

#[test]
fn watch_without_a_gateway_exits_with_69_at_once() {
    let deployment = Deployment::new(&LAYOUT);
    let code = watch(&deployment, &[], Stdio::null()).wait().expect("ends").code();
    assert_eq!(code, Some(69));
}

#[test]
fn watch_waits_for_a_gateway_that_went_away() {
    let mut deployment = running();
    let mut watching = watch(&deployment, &[], Stdio::piped());
    let mut lines = BufReader::new(watching.stdout.take().expect("piped")).lines();
    let mut wait_for = |wanted: &str| {
        let found = lines.find(|line| line.as_ref().expect("text").contains(wanted));
        assert!(found.is_some(), "{wanted}");
    };
    wait_for("gateway east-0 of two: ");
    let mut east = deployment.gateways.remove(0);
    east.process.kill().expect("ours");
    east.process.wait().expect("ends");
    wait_for("is the gateway running?");
    deployment.run_gateway("east");
    wait_for("gateway east-0 of two: ");
    assert_eq!(code_after_interrupt(watching), Some(130));
}

#[test]
fn watch_draws_over_itself_on_a_terminal() {
    let deployment = running();
    let terminal =
        openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&terminal).expect("ours");
    unlockpt(&terminal).expect("ours");
    let name = ptsname(&terminal, Vec::new()).expect("a name").into_string().expect("text");
    // It must not become the terminal of the test.
    let no_control = rustix::fs::OFlags::NOCTTY.bits().cast_signed();
    let mut options = File::options();
    let screen = options.read(true).write(true).custom_flags(no_control).open(name);
    let watching = watch(&deployment, &[], screen.expect("a terminal").into());
    let mut drawn = String::new();
    let mut terminal = File::from(terminal);
    while drawn.matches("\u{1b}[Hgateway east-0").count() < 2 {
        let mut bytes = [0; 4096];
        let read = terminal.read(&mut bytes).expect("output");
        drawn.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    assert_eq!(drawn.matches("\u{1b}[2J").count(), 1, "{drawn:?}");
    assert_eq!(code_after_interrupt(watching), Some(130));
}
