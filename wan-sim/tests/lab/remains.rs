//! Labs that are killed, started twice, or outlive their file leave nothing behind.

use super::skipping::skip;
use super::support::{pid_and_prefix, topology, up, wan_sim};
use rustix::process::{Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use wan_sim::lab::list_namespaces;

#[test]
fn remains_of_a_killed_lab_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms");
    let file = path.to_str().unwrap();
    if up(file).is_none() {
        return;
    }
    let (pid, prefix) = pid_and_prefix(&path);
    kill_process(pid, Signal::KILL).unwrap();
    // The system lets go of its lock when it has ended.
    while wan_sim(&["lab", "status", file]).status.code() == Some(0) {
        std::thread::yield_now();
    }
    assert_eq!(list_namespaces(&prefix).len(), 3);
    // Not while there is no `ip`.
    let mut down = Command::new(env!("CARGO_BIN_EXE_wan-sim"));
    let down = down.args(["lab", "down", file]).env("PATH", "").output().unwrap();
    assert_eq!(down.status.code(), Some(77));
    assert!(down.stdout.is_empty(), "{down:?}");
    assert!(String::from_utf8(down.stderr).unwrap().contains(&format!("{prefix}c: run as root")));
    assert_eq!(list_namespaces(&prefix).len(), 3);
    let down = wan_sim(&["lab", "down", file]);
    assert_eq!(down.status.code(), Some(0));
    let said = String::from_utf8(down.stdout).unwrap();
    assert_eq!(said.matches("left behind").count(), 3, "{said}");
    assert_eq!(list_namespaces(&prefix), Vec::<String>::new());
    assert!(!Path::new("/etc/netns").join(format!("{prefix}a")).exists());
}

#[test]
fn a_lab_outlives_its_file_and_ends_its_programs() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms");
    let file = path.to_str().unwrap();
    if up(file).is_none() {
        return;
    }
    let (_, prefix) = pid_and_prefix(&path);
    // One ends on SIGTERM, one does not: its shell says when it ignores the signal.
    let stubborn = "trap '' TERM; echo ready; while :; do sleep 1; done";
    let mut programs: Vec<_> = [("a", "echo ready; exec sleep 1000"), ("b", stubborn)]
        .into_iter()
        .map(|(site, script)| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_wan-sim"));
            command.args(["lab", "exec", file, site, "--", "sh", "-c", script]);
            let mut program = command.stdout(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "ready\n");
            program
        })
        .collect();
    fs::remove_dir_all(directory.path()).unwrap();
    let down = wan_sim(&["lab", "down", file, "--json"]);
    assert_eq!(down.status.code(), Some(0), "{down:?}");
    let report: serde_json::Value = serde_json::from_slice(&down.stdout).unwrap();
    assert!(report["fidelity"]["void"].is_array(), "{report}");
    assert_eq!(report["links"][0]["drops_script"], 0, "{report}");
    for program in &mut programs {
        assert!(!program.wait().unwrap().success());
    }
    assert_eq!(list_namespaces(&prefix), Vec::<String>::new());
    let again = wan_sim(&["lab", "down", file]);
    assert_eq!(again.status.code(), Some(64));
    assert!(String::from_utf8(again.stderr).unwrap().contains("there is no file"));
}

#[test]
fn one_of_several_concurrent_labs_comes_up() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms");
    let file = path.to_str().unwrap();
    let all: Vec<_> = std::thread::scope(|scope| {
        let ups: Vec<_> = (0..4).map(|_| scope.spawn(|| wan_sim(&["lab", "up", file]))).collect();
        ups.into_iter().map(|up| up.join().unwrap()).collect()
    });
    if all.iter().any(|output| output.status.code() == Some(77)) {
        skip(String::from_utf8_lossy(&all[0].stderr));
        return;
    }
    let up = all.iter().filter(|output| output.status.success()).count();
    let refused = all.iter().filter(|output| output.status.code() == Some(1));
    assert!(up == 1 && refused.count() == 3, "{all:?}");
    assert_eq!(wan_sim(&["lab", "status", file]).status.code(), Some(0));
    let down = String::from_utf8(wan_sim(&["lab", "down", file]).stdout).unwrap();
    assert!(down.starts_with("fidelity: "), "{down}");
}

#[test]
fn a_lab_killed_at_startup_leaves_nothing_for_long() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = topology(directory.path(), "delay 1ms");
    let file = path.to_str().unwrap();
    if up(file).is_none() {
        return;
    }
    let (_, prefix) = pid_and_prefix(&path);
    assert_eq!(wan_sim(&["lab", "down", file]).status.code(), Some(0));
    // After none, some and all of the namespaces are there, several times each.
    for made in [0, 1, 2, 3].repeat(4) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wan-sim"));
        command.args(["lab", "up", file, "--foreground"]);
        let mut lab = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while list_namespaces(&prefix).len() < made {
            assert!(lab.try_wait().unwrap().is_none(), "it ended by itself");
        }
        lab.kill().unwrap();
        lab.wait().unwrap();
        assert_eq!(wan_sim(&["lab", "down", file]).status.code(), Some(0));
        assert_eq!(list_namespaces(&prefix), Vec::<String>::new(), "after {made}");
        let etc = fs::read_dir("/etc/netns").into_iter().flatten().flatten();
        let left = etc.filter(|e| e.file_name().to_string_lossy().starts_with(&prefix));
        assert_eq!(left.count(), 0, "after {made}");
    }
}
