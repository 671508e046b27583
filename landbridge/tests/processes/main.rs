//! Gateways and ranks as processes, over loopback.

mod c_client;
mod cost;
#[path = "../deployment/mod.rs"]
mod deployment;
mod exit_codes;
mod jobs;
mod nat;
mod operators;
mod paths;
mod reload;
mod remote;
mod renew;
mod rust_client;
mod secrets;
#[path = "../../../wan-sim/tests/skipping/mod.rs"]
mod skipping;
mod sockets;
mod stop;
mod three;

use deployment::{BINARY, Deployment, Layout};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Starts both gateways of a deployment with these ranks.
fn deployment(east: u32, west: u32) -> Deployment {
    Deployment::new(&Layout::of(east, west))
}

impl Deployment {
    /// Starts one rank of a benchmark.
    fn bench(&self, rank: u32, region: &str, rest: &[&str]) -> Child {
        Command::new(BINARY)
            .args(["bench", "all-reduce", "--json", "--iterations", "2", "--rank"])
            .arg(rank.to_string())
            .arg("--config")
            .arg(self.path(&format!("{region}.toml")))
            .args(rest)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts")
    }

    /// Runs all ranks of a benchmark.
    fn bench_all(&self, east: u32, west: u32, rest: &[&str]) -> Vec<Output> {
        let region = |rank| if rank < east { "east" } else { "west" };
        let ranks: Vec<Child> =
            (0..east + west).map(|rank| self.bench(rank, region(rank), rest)).collect();
        ranks.into_iter().map(|rank| rank.wait_with_output().expect("ends")).collect()
    }
}

/// Returns the JSON of a command that succeeded.
fn outcome(output: &Output) -> serde_json::Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {stderr}", output.status);
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// Runs a benchmark twice. All ranks pass their own check, and all digests are equal.
fn agree(deployment: &Deployment, east: u32, west: u32, rest: &[&str]) {
    let mut digests = Vec::new();
    for _ in 0..2 {
        for output in deployment.bench_all(east, west, rest) {
            let outcome = outcome(&output);
            assert_eq!(outcome["seconds"].as_array().map(Vec::len), Some(2), "{outcome}");
            digests.push(outcome["digest"].as_str().expect("hex").to_owned());
        }
    }
    digests.dedup();
    assert_eq!(digests.len(), 1, "{rest:?}: {digests:?}");
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn fifteen_cases_of_three_ranks_and_one() {
    let mut deployment = deployment(3, 1);
    deployment.run_gateways();
    for (dtype, op, size) in [
        ("f32", "sum", "8 MiB"),
        ("f32", "avg", "4012 B"),
        ("f32", "prod", "12 B"),
        ("f64", "sum", "1 MiB"),
        ("f64", "min", "8024 B"),
        ("f16", "avg", "2006 B"),
        ("f16", "max", "1 MiB"),
        ("bf16", "sum", "2006 B"),
        ("bf16", "prod", "64 KiB"),
        ("i32", "sum", "4 MiB"),
        ("i64", "prod", "8 B"),
        ("u8", "sum", "1003 B"),
        ("i8", "min", "1003 B"),
        ("u16", "bxor", "2006 B"),
        ("bool", "sum", "1 MiB"),
    ] {
        agree(&deployment, 3, 1, &["--dtype", dtype, "--op", op, "--size", size]);
    }
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn fifteen_cases_of_two_ranks_and_two() {
    let mut deployment = deployment(2, 2);
    deployment.run_gateways();
    for (dtype, op, size) in [
        ("f32", "min", "1 MiB"),
        ("f32", "max", "4 B"),
        ("f32", "sum", "0 B"),
        ("f64", "avg", "8 MiB"),
        ("f64", "prod", "24 B"),
        ("f16", "sum", "6 B"),
        ("f16", "min", "2 MiB"),
        ("bf16", "avg", "4 MiB"),
        ("bf16", "max", "2 B"),
        ("i32", "min", "4012 B"),
        ("i64", "max", "1 MiB"),
        ("u8", "prod", "1 MiB"),
        ("i16", "max", "2006 B"),
        ("u32", "band", "1 MiB"),
        ("u64", "bor", "8 B"),
    ] {
        agree(&deployment, 2, 2, &["--dtype", dtype, "--op", op, "--size", size]);
    }
}

#[test]
fn one_region_alone_reduces_among_its_ranks() {
    let mut deployment = deployment(3, 1);
    let fabric = "name = \"two\"\n[region.east]\nranks = 3\n[region.east.gateway.east-0]\n";
    std::fs::write(deployment.path("fabric.toml"), fabric).expect("written");
    deployment.run_gateway("east");
    agree(&deployment, 3, 0, &["--dtype", "bf16", "--op", "avg", "--size", "1 MiB"]);
}

#[test]
fn ranks_that_disagree_learn_the_difference_and_can_retry() {
    let mut deployment = deployment(2, 1);
    deployment.run_gateways();
    let ranks = [
        deployment.bench(0, "east", &["--size", "8 KiB"]),
        deployment.bench(1, "east", &["--size", "8 KiB"]),
        deployment.bench(2, "west", &["--size", "4 KiB"]),
    ];
    for rank in ranks {
        let output = rank.wait_with_output().expect("ends");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(
            text.contains("length") && text.contains("2048") && text.contains("1024"),
            "{text}"
        );
    }
    agree(&deployment, 2, 1, &["--size", "8 KiB"]);
}

#[test]
fn a_gateway_of_another_ca_is_refused_in_both_logs() {
    let mut deployment = deployment(1, 1);
    deployment.certs("other", &["train"]);
    let west = std::fs::read_to_string(deployment.path("west.toml")).expect("readable");
    let strange = west.replace("keys/west-0", "other/west-0").replace("keys/ca", "other/ca");
    std::fs::write(deployment.path("west.toml"), strange).expect("written");
    deployment.run_gateways();
    let line = deployment.gateways[0].log.line_with("is not up yet");
    assert!(line.contains("certificate"), "{line}");
    let line = deployment.gateways[1].log.line_with("refused a connection");
    assert!(line.contains("certificate"), "{line}");
}

#[test]
fn bench_without_gateway_exits_with_69_and_stop_removes_socket() {
    let mut deployment = deployment(1, 1);
    let output = deployment.bench(0, "east", &[]).wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    deployment.run_gateway("east");
    assert!(deployment.path("east.sock").exists());
    let gateway = &mut deployment.gateways[0];
    let pid = rustix::process::Pid::from_child(&gateway.process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signalled");
    let code = gateway.process.wait().expect("ends").code();
    assert_eq!(code, Some(0), "{}", gateway.log.text());
    assert!(!deployment.path("east.sock").exists());
}

#[test]
fn an_interrupted_quickstart_leaves_no_process_and_no_file() {
    let temporary = tempfile::tempdir().expect("a folder");
    let mut quickstart = Command::new(BINARY)
        .args(["quickstart", "--json", "--steps", "2000"])
        .env("TMPDIR", temporary.path())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .expect("starts");
    let pid = rustix::process::Pid::from_child(&quickstart);
    // A child that has forked but not executed yet has its parent's command line.
    let has_executed = |child: &String| {
        let words = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        !words.is_empty() && !words.split(|byte| *byte == 0).any(|word| word == b"quickstart")
    };
    let children = loop {
        let children = children_of(pid);
        // Two gateways, a relay, four ranks.
        if children.len() >= 7 && children.iter().all(has_executed) {
            break children;
        }
        assert!(quickstart.try_wait().expect("waits").is_none(), "still running");
        std::thread::yield_now();
    };
    assert_eq!(children.len(), 7, "{children:?}");
    // Ctrl-C goes to the whole process group: a child in it could end first and look like a failure.
    let own_group = pid.as_raw_nonzero().to_string();
    let in_group = |child: &&String| process_stat(child, GROUP).as_ref() == Some(&own_group);
    assert_eq!(children.iter().find(in_group), None, "in the quickstart's group");
    // Schedulers send these ahead of a time limit.
    use rustix::process::Signal;
    for stray in [Signal::USR1, Signal::USR2, Signal::ALARM] {
        rustix::process::kill_process(pid, stray).expect("signalled");
    }
    rustix::process::kill_process_group(pid, Signal::INT).expect("signalled");
    assert_eq!(quickstart.wait().expect("ends").code(), Some(130));
    assert_eq!(std::fs::read_dir(temporary.path()).expect("readable").count(), 0);
    let left: Vec<_> =
        children.iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Returns the ids of the children of a process.
fn children_of(pid: rustix::process::Pid) -> Vec<String> {
    let pid = pid.as_raw_nonzero().to_string();
    let processes = std::fs::read_dir("/proc").expect("readable").filter_map(Result::ok);
    let child = |entry: std::fs::DirEntry| {
        let child = entry.file_name().into_string().ok()?;
        (process_stat(&child, PARENT)? == pid).then_some(child)
    };
    processes.filter_map(child).collect()
}

/// Field of `/proc/PID/stat` with the parent, counted from the first after the name.
const PARENT: usize = 1;
/// Field of `/proc/PID/stat` with the process group, counted from the first after the name.
const GROUP: usize = 2;

/// Returns a field of `/proc/PID/stat`, counted from the first after the name.
fn process_stat(pid: &str, field: usize) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(field).map(str::to_owned)
}
