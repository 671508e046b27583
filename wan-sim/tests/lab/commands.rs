//! The lab commands: up, exec, status and down, in the background and in the foreground.

use super::skipping::skip;
use super::support::{pid_and_prefix, topology, up, wan_sim};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use wan_sim::lab::list_namespaces;

#[test]
fn a_lab_runs_programs_and_leaves_no_trace() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms");
    let file = path.to_str().unwrap();
    if up(file).is_none() {
        return;
    }
    let (_, prefix) = pid_and_prefix(&path);
    assert_eq!(list_namespaces(&prefix).len(), 3);
    assert_eq!(wan_sim(&["lab", "up", file]).status.code(), Some(1));
    let hosts = wan_sim(&["lab", "exec", file, "b", "--", "cat", "/etc/hosts"]);
    assert!(String::from_utf8(hosts.stdout).unwrap().contains("10.77.0.1 a"));
    let failing = wan_sim(&["lab", "exec", file, "b", "--", "sh", "-c", "exit 7"]);
    assert_eq!(failing.status.code(), Some(7));
    assert_eq!(wan_sim(&["lab", "exec", file, "d", "--", "true"]).status.code(), Some(64));
    let status = wan_sim(&["lab", "status", file]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["links"].as_array().unwrap().len(), 2);

    let down = wan_sim(&["lab", "down", file]);
    assert_eq!(down.status.code(), Some(0));
    assert!(String::from_utf8(down.stdout).unwrap().starts_with("fidelity: "));
    assert_eq!(list_namespaces(&prefix), Vec::<String>::new());
    assert_eq!(wan_sim(&["lab", "status", file]).status.code(), Some(1));
    assert_eq!(wan_sim(&["lab", "down", file]).status.code(), Some(0));
}

#[test]
fn a_lab_that_ended_by_itself_leaves_its_report() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms");
    let file = path.to_str().unwrap();
    for json in [false, true] {
        if up(file).is_none() {
            return;
        }
        // The lab may end it before it ends by itself.
        wan_sim(&["lab", "exec", file, "a", "--", "ip", "link", "del", "wan0"]);
        while wan_sim(&["lab", "status", file]).status.success() {
            std::thread::yield_now();
        }
        let words = ["lab", "down", file, "--json"];
        let down = wan_sim(&words[..if json { 4 } else { 3 }]);
        let said = String::from_utf8(down.stdout).unwrap();
        if json {
            let report: serde_json::Value = serde_json::from_str(&said).unwrap();
            assert!(report["fidelity"]["void"].is_array(), "{said}");
        } else {
            assert!(said.contains("fidelity: ") && said.contains("wan-sim lab: "), "{said}");
        }
        assert_eq!(wan_sim(&["lab", "status", file]).status.code(), Some(1));
    }
}

#[test]
fn a_lab_in_the_foreground_prints_its_report_as_json() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms");
    let file = path.to_str().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_wan-sim"));
    command.args(["lab", "up", file, "--foreground", "--json"]);
    let mut lab = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(lab.stdout.take().unwrap()).lines();
    let Some(ready) = lines.next() else {
        assert_eq!(lab.wait().unwrap().code(), Some(77));
        return skip("cannot make a lab");
    };
    assert_eq!(ready.unwrap(), "ready: a, b, c");
    kill_process(Pid::from_child(&lab), Signal::INT).unwrap();
    let report: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert!(report["fidelity"]["deliveries"].is_u64(), "{report}");
    assert_eq!(lab.wait().unwrap().code(), Some(130));
}

#[test]
fn ping_and_iperf3_run_as_they_are() {
    for program in ["ping", "iperf3"] {
        if Command::new(program).arg("--help").output().is_err() {
            skip(format!("{program} is not installed: apt-get install iputils-ping iperf3"));
            return;
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 5ms rate 1gbit queue 1bdp");
    let file = path.to_str().unwrap();
    if up(file).is_none() {
        return;
    }
    let exec = |site, words: &str| {
        let arguments: Vec<_> = words.split(' ').collect();
        wan_sim(&[&["lab", "exec", file, site, "--"], &arguments[..]].concat())
    };
    let ping = String::from_utf8(exec("a", "ping -c 3 -i 0.2 b").stdout).unwrap();
    // A busy machine may lose the first one.
    assert!(["2 received", "3 received"].iter().any(|count| ping.contains(count)), "{ping}");
    // rtt min/avg/max/mdev = 10.1/...
    let least = ping.split(" = ").last().and_then(|values| values.split('/').next());
    assert!(least.and_then(|ms| ms.parse::<f64>().ok()).is_some_and(|ms| ms >= 10.0), "{ping}");
    let mut server = Command::new(env!("CARGO_BIN_EXE_wan-sim"))
        .args(["lab", "exec", file, "b", "--", "iperf3", "-s", "-1", "--forceflush"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    while !lines.next().unwrap().unwrap().contains("listening") {}
    let client = exec("a", "iperf3 -c b -t 1 -J");
    let report: serde_json::Value = serde_json::from_slice(&client.stdout).unwrap();
    assert!(report["end"]["sum_received"]["bytes"].as_u64().unwrap() > 4_000_000, "{report}");
    lines.for_each(drop);
    assert!(server.wait().unwrap().success());
    let down = wan_sim(&["lab", "down", file]);
    assert_eq!(down.status.code(), Some(0));
}

#[test]
fn a_foreground_lab_can_be_taken_down_from_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms");
    let file = path.to_str().unwrap();
    for words in [&["lab", "down", file][..], &["lab", "down", file, "--json"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wan-sim"));
        command.args(["lab", "up", file, "--foreground"]);
        let mut lab = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(lab.stdout.take().unwrap()).lines();
        if lines.next().is_none() {
            assert_eq!(lab.wait().unwrap().code(), Some(77));
            return skip("cannot make a lab");
        }
        let down = wan_sim(words);
        assert_eq!(down.status.code(), Some(0), "{words:?}: {down:?}");
        assert_eq!(lab.wait().unwrap().code(), Some(130));
        let mut said = String::new();
        lab.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains("fidelity: "), "{said}");
    }
}

#[test]
fn without_privilege_every_command_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms");
    let file = path.to_str().unwrap();
    // Where others may read it.
    let program = directory.path().join("wan-sim");
    fs::copy(env!("CARGO_BIN_EXE_wan-sim"), &program).unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    if up(file).is_none() {
        return;
    }
    let commands = [
        vec!["lab", "up", file, "--foreground"],
        vec!["lab", "exec", file, "a", "--", "true"],
        vec!["lab", "down", file],
    ];
    for command in commands {
        let output = Command::new(&program).args(&command).uid(65_534).gid(65_534).output();
        let output = output.unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(77), "{command:?}: {error}");
        assert!(error.contains("run as root") && error.lines().count() == 1, "{error}");
    }
    let mut exec = Command::new(env!("CARGO_BIN_EXE_wan-sim"));
    exec.args(["lab", "exec", file, "a", "--", "true"]).env("PATH", "/nonexistent");
    let output = exec.output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(77), "{error}");
    assert!(error.contains("iproute2") && error.lines().count() == 1, "{error}");
    assert_eq!(wan_sim(&["lab", "down", file]).status.code(), Some(0));
}
