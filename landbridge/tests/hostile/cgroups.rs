//! A gateway at the limits of its cgroup, of version 2 or 1, as the machine has it.

use super::limited::{Limit, Outcome, held, judge_gateway, release, sum_everywhere};
use super::skipping::skip;
use super::{Deployment, LAYOUT, ONE_AT_A_TIME};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::PoisonError;

const MIB: u64 = 1 << 20;

/// A cgroup of the tests' own, which is removed when it is dropped.
struct TestCgroup {
    folder: PathBuf,
    /// Whether its files are those of version 2.
    is_v2: bool,
}

impl TestCgroup {
    /// Makes a cgroup with a controller; an error that says why this machine or user cannot.
    fn make(controller: &str) -> Result<Self, String> {
        let root = Path::new("/sys/fs/cgroup");
        let name = format!("landbridge-test-{}-{controller}", std::process::id());
        let is_v2 = root.join("cgroup.controllers").exists();
        let folder = if is_v2 {
            // Where it is enabled already, or this user may not, the folder below shows it.
            let _ = std::fs::write(root.join("cgroup.subtree_control"), format!("+{controller}"));
            root.join(name)
        } else {
            root.join(controller).join(name)
        };
        std::fs::create_dir(&folder)
            .map_err(|error| format!("the cgroup {} cannot be made: {error}", folder.display()))?;
        let group = Self { folder, is_v2 };
        let file = match (controller, is_v2) {
            ("pids", _) => "pids.max",
            ("memory", true) => "memory.max",
            ("memory", false) => "memory.limit_in_bytes",
            (_, true) => "cpu.max",
            (_, false) => "cpu.cfs_quota_us",
        };
        if group.folder.join(file).exists() {
            Ok(group)
        } else {
            Err(format!("{} has no {file}", group.folder.display()))
        }
    }

    /// Writes a file of the cgroup.
    fn set(&self, file: &str, value: impl ToString) {
        let path = self.folder.join(file);
        let written = std::fs::write(&path, value.to_string());
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Moves a process into the cgroup.
    fn add(&self, process: &Child) {
        self.set("cgroup.procs", process.id());
    }

    /// Returns whether a process of the cgroup finds the files of the cgroup, as the path in
    /// `/proc/self/cgroup` says. In some containers it does not.
    fn is_visible(&self) -> bool {
        let mut probe = held().spawn().expect("starts");
        self.add(&probe);
        let text = std::fs::read_to_string(format!("/proc/{}/cgroup", probe.id()));
        probe.kill().expect("ours");
        probe.wait().expect("ends");
        let name = self.folder.file_name().expect("a name").to_string_lossy().into_owned();
        text.expect("readable").lines().any(|line| line.ends_with(&format!(":/{name}")))
    }
}

impl Drop for TestCgroup {
    /// Removes the cgroup, whose processes have ended.
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// Makes a cgroup with a controller, or skips the test loudly.
fn cgroup_or_skip(controller: &str) -> Option<TestCgroup> {
    let made = TestCgroup::make(controller).and_then(|group| {
        let is_visible = group.is_visible();
        is_visible.then_some(group).ok_or_else(|| "processes do not see their cgroup".to_owned())
    });
    made.map_err(|why| skip(format!("no cgroup with {controller}: {why}"))).ok()
}

/// Starts west's gateway alone, outside the cgroup.
fn west_alone() -> Deployment {
    let mut deployment = Deployment::new(&LAYOUT);
    deployment.run_gateway("west");
    deployment
}

/// Judges east's gateway with a file of its cgroup set.
fn judge(deployment: &Deployment, group: &TestCgroup, file: &str, value: u64) -> Outcome {
    group.set(file, value);
    let words = vec![file.to_owned(), value.to_string()];
    let apply = |process: &Child| group.add(process);
    let limit = Limit { words, apply: &apply };
    judge_gateway(deployment, &limit, held(), sum_everywhere)
}

/// The least number of threads with which a gateway starts suffices for all its work.
#[test]
fn a_gateway_works_or_refuses_at_every_pids_max() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(group) = cgroup_or_skip("pids") else { return };
    let deployment = west_alone();
    let mut refused = 0;
    for most in 1.. {
        if judge(&deployment, &group, "pids.max", most) == Outcome::Works {
            break;
        }
        refused += 1;
    }
    assert!(refused > 3, "a gateway with {} threads works", refused + 1);
}

/// 256 MiB is `memory` of the gateway.
#[test]
fn a_gateway_works_or_refuses_at_its_memory_limit() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(group) = cgroup_or_skip("memory") else { return };
    let deployment = west_alone();
    let files: &[&str] =
        if group.is_v2 { &["memory.max", "memory.high"] } else { &["memory.limit_in_bytes"] };
    for file in files {
        for too_low in [64 * MIB, 256 * MIB, 300 * MIB] {
            let outcome = judge(&deployment, &group, file, too_low);
            let Outcome::Refused(text) = outcome else { panic!("{file} {too_low}: it runs") };
            assert!(text.contains("lower `memory`"), "{text}");
        }
        assert_eq!(judge(&deployment, &group, file, 320 * MIB), Outcome::Works, "{file}");
        group.set(file, 1u64 << 40);
    }
}

/// A fifth of a processor is slow, and not dead.
#[test]
fn a_gateway_works_with_little_processor_time() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(group) = cgroup_or_skip("cpu") else { return };
    let deployment = west_alone();
    if group.is_v2 {
        group.set("cpu.max", "20000 100000");
    } else {
        group.set("cpu.cfs_period_us", 100_000);
        group.set("cpu.cfs_quota_us", 20_000);
    }
    let apply = |process: &Child| group.add(process);
    let limit = Limit { words: vec!["cpu.max".to_owned()], apply: &apply };
    assert_eq!(judge_gateway(&deployment, &limit, held(), sum_everywhere), Outcome::Works);
}

/// The kernel would kill it without a word.
#[test]
fn a_simulation_names_a_cgroup_with_little_memory() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(group) = cgroup_or_skip("memory") else { return };
    let file = if group.is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
    group.set(file, 100 * MIB);
    let fabric = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/two-region/fabric.toml");
    let mut command = held();
    command.args(["plan", "--simulate", "--size", "10GiB", "--fabric"]).arg(fabric);
    let mut process = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("starts");
    group.add(&process);
    release(process.stdin.take());
    let output = process.wait_with_output().expect("ends");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(file) && text.contains("simulate a smaller buffer"), "{text}");
}
