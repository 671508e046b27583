//! Programs under a limit of the system: each works, or says at its start which limit is too low.

use super::deployment::{BINARY, RunningGateway, UP_LINE};
use super::{Deployment, ELEMENTS, LAYOUT, TEST_TIMEOUT, Team, round};
use gateway::config::RegionFile;
use gateway::observe::fetch_status::fetch_status;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use units::ByteCount;

/// Script for `sh`, which waits for a line and then becomes the program.
const HOLD: &str = "read -r _; exec \"$0\" \"$@\"";
/// 60 s: a program that is neither up nor at its end by then hangs.
const HANGS_AFTER: Duration = Duration::from_secs(60);
/// All-reduces that a gateway or client must do under its limit.
const ROUNDS: u32 = 20;

/// The outcome of a start under a limit.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The program did its work.
    Works,
    /// The program refused to start, with this text.
    Refused(String),
}

/// A limit, as tests set it on a process that is about to become the program.
pub struct Limit<'a> {
    /// Words that a refusal must contain: the setting and the value.
    pub words: Vec<String>,
    /// Sets the limit.
    pub apply: &'a dyn Fn(&Child),
}

/// Sets both limits of a process that [`held`] or [`held_as`] made, once it is held.
pub fn set_limit(process: &Child, resource: Resource, most: u64) {
    wait_until_held(process);
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    prlimit(Some(Pid::from_child(process)), resource, limit).expect("a child");
}

/// Returns a command that waits for [`release`] before it becomes the program.
pub fn held() -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", HOLD, BINARY]).stdin(Stdio::piped());
    command
}

/// Returns a command like [`held`] whose program runs as another user. The held process is root's, so
/// that its limits may be set without a privilege over other users.
pub fn held_as(user: u32) -> Command {
    let mut command = Command::new("sh");
    let hold = format!("read -r _; exec setpriv --reuid {user} --clear-groups \"$0\" \"$@\"");
    command.args(["-c", &hold, BINARY]).stdin(Stdio::piped());
    command
}

/// Waits until a held process waits for its line. A limit that is set earlier may be overwritten,
/// since the kernel restores that on the stack at the end of `execve`.
fn wait_until_held(process: &Child) {
    let stat = format!("/proc/{}/stat", process.id());
    let begin = Instant::now();
    while !std::fs::read_to_string(&stat).expect("it runs").contains(" (sh) S ") {
        assert!(begin.elapsed() < HANGS_AFTER, "the shell does not wait");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Lets a held process become the program.
pub fn release(input: Option<ChildStdin>) {
    input.expect("piped").write_all(b"\n").expect("it waits");
}

/// Asserts that a refusal is a clean end whose text names the limit.
fn assert_refused(status: ExitStatus, text: &str, limit: &Limit<'_>) -> Outcome {
    let code =
        status.code().unwrap_or_else(|| panic!("killed: {status}, {:?}: {text}", limit.words));
    assert!([1, 64, 77].contains(&code), "code {code}, {:?}: {text}", limit.words);
    for word in &limit.words {
        // Bytes are rounded for people.
        let rounded = word.parse().map(|bytes| ByteCount::new(bytes).rounded());
        let is_named = text.contains(word) || rounded.is_ok_and(|rounded| text.contains(&rounded));
        assert!(is_named, "no `{word}` in the refusal: {text}");
    }
    assert!(text.contains("raise"), "no remedy in the refusal: {text}");
    assert!(!text.contains("panicked"), "{text}");
    Outcome::Refused(text.to_owned())
}

/// Starts east's gateway under a limit, beside west's, by a command that ends in the held binary. A
/// gateway that starts must `work`, and end cleanly on SIGTERM. East must not run yet.
pub fn judge_gateway(
    deployment: &Deployment,
    limit: &Limit<'_>,
    held: Command,
    work: fn(&Deployment),
) -> Outcome {
    let mut gateway = KilledAtEnd(deployment.spawn_gateway_by("east", held));
    let gateway = &mut gateway.0;
    (limit.apply)(&gateway.process);
    release(gateway.process.stdin.take());
    let pid = Pid::from_child(&gateway.process);
    let (started, has_started) = mpsc::channel::<()>();
    // The log of a gateway that hangs would never end.
    std::thread::spawn(move || {
        if has_started.recv_timeout(HANGS_AFTER) == Err(RecvTimeoutError::Timeout) {
            let _ = kill_process(pid, Signal::KILL);
        }
    });
    let is_up = gateway.log.line_or_end(UP_LINE).is_some();
    drop(started);
    if !is_up {
        let status = gateway.process.wait().expect("ends");
        return assert_refused(status, &gateway.log.text(), limit);
    }
    println!("{:?}: a gateway is up", limit.words);
    work(deployment);
    end_cleanly(gateway, &limit.words);
    Outcome::Works
}

/// Runs all-reduces of all ranks over both gateways.
pub fn sum_everywhere(deployment: &Deployment) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let rounds = async {
        let team = Team::attach(deployment, &LAYOUT, "train").await;
        for _ in 0..ROUNDS {
            round(&team, ELEMENTS).await;
        }
    };
    let in_time = runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, rounds).await });
    assert!(in_time.is_ok(), "it hangs");
}

/// Waits until east's gateway has all lanes to west's.
pub fn wait_for_lanes(deployment: &Deployment) {
    let file = RegionFile::load(&deployment.path("east.toml")).expect("valid");
    let address = file.gateway(None).expect("one").status;
    let begin = Instant::now();
    loop {
        let status = fetch_status(address).expect("a status");
        if status.peers.iter().all(|peer| peer.lanes_up == peer.lanes) {
            return;
        }
        assert!(begin.elapsed() < HANGS_AFTER, "{status:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A gateway that a failed test leaves behind is killed.
struct KilledAtEnd(RunningGateway);

impl Drop for KilledAtEnd {
    /// Kills the process, which has ended already where the test was good.
    fn drop(&mut self) {
        let _ = self.0.process.kill();
        let _ = self.0.process.wait();
    }
}

/// Ends a gateway by SIGTERM, which must give exit code 0.
fn end_cleanly(gateway: &mut RunningGateway, what: &[String]) {
    kill_process(Pid::from_child(&gateway.process), Signal::TERM).expect("signalled");
    let status = gateway.process.wait().expect("ends");
    assert_eq!(status.code(), Some(0), "{what:?}: {}", gateway.log.text());
}

/// Runs rank 0 of a benchmark under a limit, beside the ranks 1 and 2. Both gateways run.
pub fn judge_client(deployment: &Deployment, limit: &Limit<'_>) -> Outcome {
    let bench = |mut command: Command, rank: u32| {
        let region = if rank < LAYOUT.east { "east" } else { "west" };
        command
            .args([
                "bench",
                "all-reduce",
                "--job",
                "train",
                "--iterations",
                "1",
                "--size",
                "16 MiB",
            ])
            .arg("--rank")
            .arg(rank.to_string())
            .arg("--config")
            .arg(deployment.path(&format!("{region}.toml")))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command.spawn().expect("starts")
    };
    let mut limited = bench(held(), 0);
    (limit.apply)(&limited);
    // A rank that posted in an epoch and attaches again ends it. The others of the last test do so
    // before the limited rank attaches.
    wait_for_other_ranks(deployment, false);
    let mut others: Vec<Child> = (1..3).map(|rank| bench(Command::new(BINARY), rank)).collect();
    wait_for_other_ranks(deployment, true);
    release(limited.stdin.take());
    let status = wait_for_end(&mut limited, &limit.words);
    let mut text = String::new();
    limited.stderr.take().expect("piped").read_to_string(&mut text).expect("text");
    let outcome = if status.success() {
        Outcome::Works
    } else {
        others.iter_mut().for_each(|other| other.kill().expect("ours"));
        assert_refused(status, &text, limit)
    };
    for mut other in others {
        let status = wait_for_end(&mut other, &limit.words);
        assert!(status.success() || outcome != Outcome::Works, "{:?}: {status}", limit.words);
    }
    if outcome != Outcome::Works {
        // A killed rank may have posted in the epoch or not. If not, its successor would join that
        // epoch while the successor of another rank ends it.
        run_all_ranks(|rank| bench(Command::new(BINARY), rank));
    }
    outcome
}

/// Runs all ranks without a limit until all of them succeed in one epoch.
fn run_all_ranks(bench: impl Fn(u32) -> Child) {
    let begin = Instant::now();
    loop {
        let mut ranks: Vec<Child> = (0..3).map(&bench).collect();
        let mut running = true;
        let mut succeeded = 0;
        while running && succeeded < ranks.len() {
            assert!(begin.elapsed() < HANGS_AFTER, "ranks without a limit do not succeed");
            std::thread::sleep(Duration::from_millis(20));
            let ended = ranks.iter_mut().filter_map(|rank| rank.try_wait().expect("ours"));
            let ended: Vec<bool> = ended.map(|status| status.success()).collect();
            running = ended.iter().all(|success| *success);
            succeeded = ended.len();
        }
        for rank in &mut ranks {
            // One that has ended cannot be killed.
            let _ = rank.kill();
            rank.wait().expect("ours");
        }
        if running {
            return;
        }
    }
}

/// Waits until all ranks but rank 0 are `attached`, or none of them is, as the status has them.
fn wait_for_other_ranks(deployment: &Deployment, attached: bool) {
    let address = |region: &str| {
        let file = RegionFile::load(&deployment.path(&format!("{region}.toml"))).expect("valid");
        file.gateway(None).expect("one").status
    };
    let addresses = ["east", "west"].map(address);
    let begin = Instant::now();
    loop {
        let reports = addresses.map(|address| fetch_status(address).expect("a status"));
        let jobs = reports.iter().flat_map(|report| &report.jobs);
        let mut ranks = jobs.filter(|job| job.job == "train").flat_map(|job| &job.ranks);
        if ranks.all(|rank| rank.rank == 0 || rank.attached == attached) {
            return;
        }
        assert!(begin.elapsed() < HANGS_AFTER, "{reports:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Describes where each thread of a process waits in the kernel.
fn describe_threads(process: u32) -> String {
    let threads =
        std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let describe = |thread: std::fs::DirEntry| {
        let read = |name| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        format!("{} in {}, syscall {}", read("comm").trim(), read("wchan"), read("syscall").trim())
    };
    threads.map(describe).collect::<Vec<_>>().join("; ")
}

/// Waits for the end of a process, which must come before it counts as hanging.
fn wait_for_end(process: &mut Child, what: &[String]) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = process.try_wait().expect("ours") {
            return status;
        }
        if begin.elapsed() > HANGS_AFTER {
            let threads = describe_threads(process.id());
            process.kill().expect("ours");
            panic!("a process hangs under {what:?}: {threads}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
