//! Hostile trainers of the other job, and processes without a token, at the honest job's gateway.

use super::raw::{
    ARENA, PostFields, RawClient, VALID_POST, Way, ask, refusal, refusal_by, request,
};
use super::skipping::skip;
use super::{Deployment, LAYOUT, Team, attack_and_compare, attack_beside};
use gateway::access::TrustedSocketUsers;
use gateway::local::protocol::ProtocolResponse;
use gateway::local::trainer_listener::connect_to_trainer_listener;
use gateway::memory::arena::Arena;
use gateway::memory::mem_slice::MemSlice;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use units::Span;

/// Returns a memfd of `bytes`, allocated but never written, with these seals.
fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let memory = rustix::fs::memfd_create("hostile", MemfdFlags::ALLOW_SEALING).expect("memfd");
    rustix::fs::ftruncate(&memory, bytes).expect("room");
    rustix::fs::fallocate(&memory, FallocateFlags::empty(), 0, bytes).expect("room");
    rustix::fs::fcntl_add_seals(&memory, seals).expect("seals");
    memory
}

#[test]
fn memory_that_can_shrink_or_vanish_is_refused() {
    attack_beside("bad memory", async |deployment| {
        let both = SealFlags::SHRINK | SealFlags::GROW;
        let attach = request(deployment, "other", "other", 0);
        let unsealed = memfd(ARENA, SealFlags::empty());
        let why = refusal(deployment, &unsealed, &attach).await;
        assert!(why.contains("not sealed"), "{why}");
        rustix::fs::ftruncate(&unsealed, 0).expect("its own");
        let why = refusal(deployment, &unsealed, &attach).await;
        assert!(why.contains("not sealed"), "{why}");
        let why = refusal(deployment, &memfd(ARENA / 2, both), &attach).await;
        assert!(why.contains("were claimed"), "{why}");
        let why = refusal(deployment, &memfd(ARENA, both), &attach).await;
        assert!(why.contains("never written"), "{why}");
        let file = OwnedFd::from(std::fs::File::open("/dev/zero").expect("a file"));
        let why = refusal(deployment, &file, &attach).await;
        assert!(why.contains("not sealed"), "{why}");
        // Refused attempts leave nothing: the rank and its memory budget are free.
        let (_arena, good) = Arena::create_memfd(ARENA).expect("memory");
        assert!(matches!(ask(deployment, &good, &attach).await, ProtocolResponse::Attached { .. }));
    });
}

/// Releases the memory of an arena.
fn punch_hole(memory: &OwnedFd) {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(memory, hole, 0, ARENA).expect("its own");
}

/// Repeats an action on a thread of its own until it is dropped.
struct Repeat {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Repeat {
    fn new(mut action: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = move || {
            while !stopped.load(Ordering::Relaxed) {
                action();
            }
        };
        Self { stop, thread: Some(std::thread::spawn(work)) }
    }
}

impl Drop for Repeat {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

/// All-reduces in the other job while a thread writes to a memory.
async fn all_reduce_while_writing(mut all: [RawClient; 3], arena: Arc<Arena>) -> [RawClient; 3] {
    let _writer = Repeat::new(move || MemSlice::whole(&arena).copy_from_bytes(0, &[0xff; 4096]));
    for _ in 0..50 {
        for raw in &mut all {
            raw.post(VALID_POST).await.expect("posted");
        }
        for raw in &mut all {
            assert!(raw.outcome().await, "a sum of arbitrary bytes");
        }
    }
    all
}

#[test]
fn memory_written_during_the_exchange_harms_its_own_job_only() {
    let attack = async |deployment: &mut Deployment| {
        let all = RawClient::attach_all(deployment).await;
        let arena = Arc::clone(&all[0].arena);
        all_reduce_while_writing(all, arena).await
    };
    // The other job takes half of the link in either case.
    let harmless = async |own: &mut Deployment, _others: &mut Deployment| {
        let all = RawClient::attach_all(own).await;
        all_reduce_while_writing(all, Arena::anonymous(ARENA).expect("memory")).await
    };
    attack_and_compare("memory written during the exchange", attack, harmless);
}

/// All-reduces once in the other job while a thread keeps releasing a memory.
async fn all_reduce_while_releasing(all: &mut [RawClient; 3], memory: OwnedFd) -> Repeat {
    // Later posts may be refused.
    all[0].post(VALID_POST).await.expect("posted");
    all[0].wait_until_read().await;
    let releasing = Repeat::new(move || {
        punch_hole(&memory);
        assert!(rustix::fs::ftruncate(&memory, 0).is_err(), "the seal holds");
    });
    for raw in &mut all[1..] {
        raw.post(VALID_POST).await.expect("posted");
    }
    for raw in all {
        assert!(raw.outcome().await, "a sum of arbitrary bytes");
    }
    releasing
}

#[test]
fn memory_released_during_the_exchange_harms_its_own_job_only() {
    let attack = async |deployment: &mut Deployment| {
        let mut all = RawClient::attach_all(deployment).await;
        let memory = all[0].memory.try_clone().expect("a descriptor");
        let _releasing = all_reduce_while_releasing(&mut all, memory).await;
        all[0].post(VALID_POST).await.expect("sent");
        let why = all[0].refusal_at_end().await;
        assert!(why.contains("was given back"), "{why}");
        all
    };
    let harmless = async |own: &mut Deployment, _others: &mut Deployment| {
        let mut all = RawClient::attach_all(own).await;
        let memory = memfd(ARENA, SealFlags::SHRINK | SealFlags::GROW);
        drop(all_reduce_while_releasing(&mut all, memory).await);
        all
    };
    attack_and_compare("memory released during the exchange", attack, harmless);
}

#[test]
fn posts_with_invalid_ranges_are_refused() {
    let invalid = [
        PostFields { contribution: ARENA, ..VALID_POST },
        PostFields { contribution: u64::MAX - 63, ..VALID_POST },
        PostFields { result: ARENA / 2 + 64, ..VALID_POST },
        PostFields { result: u64::MAX, ..VALID_POST },
        PostFields { contribution: 1, ..VALID_POST },
        PostFields { result: ARENA / 2 + 4, elements: 8, ..VALID_POST },
        PostFields { result: 64, ..VALID_POST },
        PostFields { elements: ARENA, ..VALID_POST },
        PostFields { elements: 1 << 45, ..VALID_POST },
        PostFields { elements: u64::MAX, ..VALID_POST },
    ];
    attack_beside("invalid offsets and lengths", async |deployment| {
        for (way, post) in Way::ALL.into_iter().flat_map(|way| invalid.map(|post| (way, post))) {
            let mut raw = RawClient::attach_by(way, deployment, 0).await;
            raw.post(post).await.expect("sent");
            let why = raw.refusal_at_end().await;
            let slot = ["reaches beyond", "is not at a multiple", "overlap", "malformed request"];
            assert!(slot.iter().any(|reason| why.contains(reason)), "{way:?} {post:?}: {why}");
        }
        for way in Way::ALL {
            let mut raw = RawClient::attach_by(way, deployment, 0).await;
            raw.wait_for_epoch().await;
            for _ in 0..2 {
                raw.post(VALID_POST).await.expect("sent");
            }
            let why = raw.refusal_at_end().await;
            assert!(why.contains("still in use"), "{way:?}: {why}");
        }
    });
}

#[test]
fn half_messages_and_unread_events_delay_no_job() {
    attack_beside("half messages, unread events", async |deployment| {
        // The rank of the first way detaches before the second way takes it.
        let mut open = None;
        for way in Way::ALL {
            drop(open.take());
            open = Some(send_half_and_read_nothing(way, deployment).await);
        }
        open
    });
}

/// Sends half messages, and posts and commits without reading; returns a connection in half a message.
async fn send_half_and_read_nothing(way: Way, deployment: &Deployment) -> RawClient {
    let mut half = RawClient::attach_by(way, deployment, 1).await;
    half.stream.write_all(&[0, 0, 0, 60, 2, 0, 0]).await.expect("sent");
    half.stream.flush().await.expect("sent");
    for (rank, bytes) in
        [&[0xff; 4][..], &[0, 0, 0, 1, 9], &[0, 0, 0, 0], &[0, 0, 0, 2, 3, 3]].iter().enumerate()
    {
        let mut raw = RawClient::attach_by(way, deployment, 0).await;
        raw.stream.write_all(bytes).await.expect("sent");
        raw.stream.flush().await.expect("sent");
        let why = raw.refusal_at_end().await;
        assert!(!why.is_empty(), "{rank}: closed without a reason");
    }
    // Posts without reading any event, until the gateway closes the connection.
    let mut unread = RawClient::attach_by(way, deployment, 0).await;
    unread.wait_for_epoch().await;
    let tiny = |number: u64| PostFields {
        contribution: 128 * (number % (ARENA / 128)),
        result: 128 * (number % (ARENA / 128)) + 64,
        elements: 1,
        ..VALID_POST
    };
    let mut posted = 0;
    while posted < UNREAD_MAX && unread.post(tiny(posted)).await.is_ok() {
        posted += 1;
    }
    let why = unread.refusal_at_end().await;
    assert!(why.is_empty() || why.contains("under way already"), "{why}");
    assert!(posted < UNREAD_MAX, "{posted} posts were taken");
    // Sends commits, which are answered at once, without reading the answers.
    let mut unread = RawClient::attach_by(way, deployment, 0).await;
    unread.wait_for_epoch().await;
    let mut asked = 0;
    while asked < UNREAD_MAX && unread.commit(asked).await.is_ok() {
        asked += 1;
    }
    assert!(asked < UNREAD_MAX, "{asked} questions were taken");
    half
}

#[test]
fn a_token_admits_to_its_own_job_only() {
    attack_beside("floods with the other job's token", async |deployment| {
        let (_arena, memory) = Arena::create_memfd(ARENA).expect("memory");
        let theirs = request(deployment, "train", "other", 0);
        let none = request(deployment, "absent", "other", 0);
        let mut answers = Vec::new();
        for way in Way::ALL {
            answers.push(refusal_by(way, deployment, &memory, &theirs).await);
            let none = refusal_by(way, deployment, &memory, &none).await;
            answers.push(none.replace("absent", "train"));
        }
        answers.dedup();
        assert_eq!(answers.len(), 1, "{answers:?}");
        for way in Way::ALL {
            flood_with_token(way, deployment).await;
        }
        RawClient::attach_all(deployment).await
    });
}

/// Posts more than any rank reads, and ends epoch after epoch, all with the token of the other job.
async fn flood_with_token(way: Way, deployment: &Deployment) {
    let mut all = RawClient::attach_all_by(way, deployment).await;
    // More posts than a peer may be ahead, each announced in the other region.
    for _ in 0..3000 {
        all[0]
            .post(PostFields { elements: 8, timeout: Span::from_ns(1), ..VALID_POST })
            .await
            .expect("posted");
        assert!(!all[0].outcome().await, "no other rank posts");
    }
    // The other job goes through epoch after epoch.
    for _ in 0..20 {
        let [east, _, _] = &mut all;
        let _ = east.post(VALID_POST).await;
        east.stream.shutdown().await.expect("connected");
        *east = RawClient::attach_by(way, deployment, 0).await;
        east.wait_for_epoch().await;
    }
}

/// 2^20 requests, far more than a gateway and a socket buffer hold.
const UNREAD_MAX: u64 = 1 << 20;

/// Connections of the flood, of all its processes together.
const CONNECTIONS: usize = 10_000;
/// Processes of the flood.
const FLOOD_PROCESSES: usize = 4;
/// Connections of each process of the flood.
const PER_PROCESS: usize = CONNECTIONS / FLOOD_PROCESSES;
/// Environment variable with the socket for a process of the flood.
const SOCKET_VARIABLE: &str = "LANDBRIDGE_TEST_SOCKET";

/// A process of the flood, and its stdout.
type FloodProcess = (Child, BufReader<ChildStdout>);

/// Starts a process that opens connections to `socket` and keeps them open.
fn start_flood_process(socket: &Path) -> FloodProcess {
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["trainers::part_of_a_connection_flood", "--exact", "--ignored", "--nocapture"])
        .env(SOCKET_VARIABLE, socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    let open = stdout.by_ref().lines().any(|line| line.expect("text").contains("all are open"));
    assert!(open, "the flood did not start");
    (child, stdout)
}

/// All processes of the flood. They end when this is dropped.
struct Flood(Vec<FloodProcess>);

impl Drop for Flood {
    fn drop(&mut self) {
        for (part, _stdout) in &mut self.0 {
            drop(part.stdin.take());
            assert!(part.wait().expect("ends").success());
        }
    }
}

#[test]
#[ignore = "run by `ten_thousand_silent_connections_keep_no_trainer_out`"]
fn part_of_a_connection_flood() {
    let Some(socket) = std::env::var_os(SOCKET_VARIABLE).map(PathBuf::from) else { return };
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .expect("up to the hard one");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("one");
    runtime.block_on(async {
        let memory = memfd(4096, SealFlags::SHRINK | SealFlags::GROW);
        let mut open = Vec::new();
        for number in 0..PER_PROCESS {
            open.push(connect_silently(&socket, &memory, number).await);
        }
        println!("\nall are open");
        std::io::stdout().flush().expect("written");
        let end = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
        // Closed connections are opened again until the test ends.
        for number in (0..PER_PROCESS).cycle().take_while(|_| !end.is_finished()) {
            let lost = |stream: &UnixStream| matches!(stream.try_read(&mut [0]), Ok(0));
            if open[number].as_ref().is_none_or(lost) {
                open[number] = connect_silently(&socket, &memory, number).await;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

/// Opens a connection that attaches as nobody; `None` if it is closed already.
async fn connect_silently(socket: &Path, memory: &OwnedFd, number: usize) -> Option<UnixStream> {
    let mut stream =
        connect_to_trainer_listener(socket, memory, TrustedSocketUsers::new(None)).await.ok()?;
    // Every other one sends half a message.
    if number.is_multiple_of(2) {
        stream.write_all(&[0, 0, 0, 60, 1]).await.ok()?;
    }
    Some(stream)
}

#[test]
fn ten_thousand_silent_connections_keep_no_trainer_out() {
    let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    if hard < PER_PROCESS as u64 + 100 {
        skip(format!("a process may open {hard} files, {PER_PROCESS} connections are needed"));
        return;
    }
    attack_beside("10,000 silent connections", async |deployment| {
        let socket = deployment.path("east.sock");
        let parts: Vec<_> = (0..FLOOD_PROCESSES)
            .map(|_| socket.clone())
            .map(|socket| tokio::task::spawn_blocking(move || start_flood_process(&socket)))
            .collect();
        let mut flood = Flood(Vec::new());
        for part in parts {
            flood.0.push(part.await.expect("open"));
        }
        let pid = deployment.gateways[0].process.id();
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process").count();
        println!("the gateway has {files} files open");
        assert!(files < 600, "{files}");
        // Trainers of both jobs attach and work.
        let team = Team::attach(deployment, &LAYOUT, "other").await;
        for _ in 0..20 {
            team.sum(&[1, 2, 3], 1000).await.expect("a sum");
        }
        (flood, team)
    });
}
