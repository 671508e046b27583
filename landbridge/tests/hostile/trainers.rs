//! Trainers of the other job, and processes that know no token, at the honest job's gateway.

use super::raw::{ARENA, CLAIM, Claim, Raw, ask, refusal, request};
use super::skipping::skip;
use super::{Deployment, LAYOUT, Team, beside, beside_and_compare};
use gateway::local::listener::connect_unix;
use gateway::local::protocol::Response;
use gateway::memory::arena::Arena;
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

/// A memfd of `bytes`, allocated but never written, with these seals.
fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let memory = rustix::fs::memfd_create("hostile", MemfdFlags::ALLOW_SEALING).expect("memfd");
    rustix::fs::ftruncate(&memory, bytes).expect("room");
    rustix::fs::fallocate(&memory, FallocateFlags::empty(), 0, bytes).expect("room");
    rustix::fs::fcntl_add_seals(&memory, seals).expect("seals");
    memory
}

#[test]
fn memory_that_can_shrink_or_vanish_is_refused() {
    beside("bad memory", async |deployment| {
        let both = SealFlags::SHRINK | SealFlags::GROW;
        let attach = request(deployment, "other", "other", 0);
        let hugged = memfd(ARENA, SealFlags::empty());
        let why = refusal(deployment, &hugged, &attach).await;
        assert!(why.contains("not sealed"), "{why}");
        rustix::fs::ftruncate(&hugged, 0).expect("its own");
        let why = refusal(deployment, &hugged, &attach).await;
        assert!(why.contains("not sealed"), "{why}");
        let why = refusal(deployment, &memfd(ARENA / 2, both), &attach).await;
        assert!(why.contains("were claimed"), "{why}");
        let why = refusal(deployment, &memfd(ARENA, both), &attach).await;
        assert!(why.contains("never written"), "{why}");
        let file = OwnedFd::from(std::fs::File::open("/dev/zero").expect("a file"));
        let why = refusal(deployment, &file, &attach).await;
        assert!(why.contains("not sealed"), "{why}");
        // Nothing of the refused is left: the rank is free, and so is the budget.
        let (_arena, good) = Arena::create_memfd(ARENA).expect("memory");
        assert!(matches!(ask(deployment, &good, &attach).await, Response::Attached { .. }));
    });
}

fn punch(memory: &OwnedFd) {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(memory, hole, 0, ARENA).expect("its own");
}

/// Does it on a thread of its own, over and over, for as long as it is there.
struct Busy {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Busy {
    fn with(mut what: impl FnMut() + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let work = move || {
            while !told.load(Ordering::Relaxed) {
                what();
            }
        };
        Self { over, thread: Some(std::thread::spawn(work)) }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

/// The other job all-reduces while somebody writes to a memory.
async fn all_reduce_while_writing(mut all: [Raw; 3], arena: Arc<Arena>) -> [Raw; 3] {
    let _writer = Busy::with(move || arena.whole().copy_from_bytes(0, &[0xff; 4096]));
    for _ in 0..50 {
        for raw in &mut all {
            raw.post(CLAIM).await.expect("posted");
        }
        for raw in &mut all {
            assert!(raw.outcome().await, "sums of nonsense are sums");
        }
    }
    all
}

#[test]
fn memory_written_during_the_exchange_harms_its_own_job_only() {
    let attack = async |deployment: &mut Deployment| {
        let all = Raw::attach_all(deployment).await;
        let arena = Arc::clone(&all[0].arena);
        all_reduce_while_writing(all, arena).await
    };
    // The other job has its half of the link, whatever becomes of its memory.
    let harmless = async |own: &mut Deployment, _others: &mut Deployment| {
        let all = Raw::attach_all(own).await;
        all_reduce_while_writing(all, Arena::anonymous(ARENA).expect("memory")).await
    };
    beside_and_compare("memory written during the exchange", attack, harmless);
}

/// The other job all-reduces once while a memory is given back over and over.
async fn all_reduce_while_punching(all: &mut [Raw; 3], memory: OwnedFd) -> Busy {
    // What is posted later may be refused.
    all[0].post(CLAIM).await.expect("posted");
    all[0].is_heard().await;
    let punching = Busy::with(move || {
        punch(&memory);
        assert!(rustix::fs::ftruncate(&memory, 0).is_err(), "the seal holds");
    });
    for raw in &mut all[1..] {
        raw.post(CLAIM).await.expect("posted");
    }
    for raw in all {
        assert!(raw.outcome().await, "sums of nonsense are sums");
    }
    punching
}

#[test]
fn memory_released_during_the_exchange_harms_its_own_job_only() {
    let attack = async |deployment: &mut Deployment| {
        let mut all = Raw::attach_all(deployment).await;
        let memory = all[0].memory.try_clone().expect("a descriptor");
        let _punching = all_reduce_while_punching(&mut all, memory).await;
        all[0].post(CLAIM).await.expect("sent");
        let why = all[0].last_word().await;
        assert!(why.contains("was given back"), "{why}");
        all
    };
    let harmless = async |own: &mut Deployment, _others: &mut Deployment| {
        let mut all = Raw::attach_all(own).await;
        let memory = memfd(ARENA, SealFlags::SHRINK | SealFlags::GROW);
        drop(all_reduce_while_punching(&mut all, memory).await);
        all
    };
    beside_and_compare("memory given back during the exchange", attack, harmless);
}

#[test]
fn posts_with_invalid_ranges_are_refused() {
    let lies = [
        Claim { contribution: ARENA, ..CLAIM },
        Claim { contribution: u64::MAX - 63, ..CLAIM },
        Claim { result: ARENA / 2 + 64, ..CLAIM },
        Claim { result: u64::MAX, ..CLAIM },
        Claim { contribution: 1, ..CLAIM },
        Claim { result: ARENA / 2 + 4, elements: 8, ..CLAIM },
        Claim { result: 64, ..CLAIM },
        Claim { elements: ARENA, ..CLAIM },
        Claim { elements: 1 << 45, ..CLAIM },
        Claim { elements: u64::MAX, ..CLAIM },
    ];
    beside("lies about offsets and lengths", async |deployment| {
        for lie in lies {
            let mut raw = Raw::attach(deployment, 0).await;
            raw.post(lie).await.expect("sent");
            let why = raw.last_word().await;
            let slot =
                ["reaches beyond", "is not at a multiple", "overlap", "a request that is none"];
            assert!(slot.iter().any(|reason| why.contains(reason)), "{lie:?}: {why}");
        }
        let mut raw = Raw::attach(deployment, 0).await;
        raw.meet().await;
        for _ in 0..2 {
            raw.post(CLAIM).await.expect("sent");
        }
        let why = raw.last_word().await;
        assert!(why.contains("still in use"), "{why}");
    });
}

#[test]
fn half_messages_and_unread_events_delay_no_job() {
    beside("half messages, unread events", async |deployment| {
        let mut held = Vec::new();
        let mut half = Raw::attach(deployment, 1).await;
        half.stream.write_all(&[0, 0, 0, 60, 2, 0, 0]).await.expect("sent");
        held.push(half);
        for (rank, bytes) in [&[0xff; 4][..], &[0, 0, 0, 1, 9], &[0, 0, 0, 0], &[0, 0, 0, 2, 3, 3]]
            .iter()
            .enumerate()
        {
            let mut raw = Raw::attach(deployment, 0).await;
            raw.stream.write_all(bytes).await.expect("sent");
            let why = raw.last_word().await;
            assert!(!why.is_empty(), "{rank}: cut off without a word");
        }
        // Never read, always posted: until the gateway has had enough.
        let mut deaf = Raw::attach(deployment, 0).await;
        deaf.meet().await;
        let tiny =
            |at: u64| Claim { contribution: 128 * at, result: 128 * at + 64, elements: 1, ..CLAIM };
        let mut posted = 0;
        while posted < ARENA / 128 && deaf.post(tiny(posted)).await.is_ok() {
            posted += 1;
        }
        let why = deaf.last_word().await;
        assert!(why.is_empty() || why.contains("under way already"), "{why}");
        assert!(posted < ARENA / 128, "{posted} posts were taken");
        // Nor read while answers come, to questions that are answered at once.
        let mut deaf = Raw::attach(deployment, 0).await;
        deaf.meet().await;
        let mut asked = 0;
        while asked < UNREAD_MAX && deaf.commit(asked).await.is_ok() {
            asked += 1;
        }
        assert!(asked < UNREAD_MAX, "{asked} questions were taken");
        held
    });
}

#[test]
fn a_token_admits_to_its_own_job_only() {
    beside("floods with the other job's token", async |deployment| {
        let (_arena, memory) = Arena::create_memfd(ARENA).expect("memory");
        let theirs = request(deployment, "train", "other", 0);
        let none = request(deployment, "absent", "other", 0);
        let why = refusal(deployment, &memory, &theirs).await;
        assert_eq!(why, refusal(deployment, &memory, &none).await.replace("absent", "train"));
        let mut all = Raw::attach_all(deployment).await;
        // More than a peer may be ahead, each heard of in the other region.
        for _ in 0..3000 {
            all[0]
                .post(Claim { elements: 8, timeout: Span::from_ns(1), ..CLAIM })
                .await
                .expect("posted");
            assert!(!all[0].outcome().await, "nobody else posts");
        }
        // Epoch after epoch of the other job.
        for _ in 0..20 {
            let [east, _, _] = &mut all;
            let _ = east.post(CLAIM).await;
            east.stream.shutdown().await.expect("connected");
            *east = Raw::attach(deployment, 0).await;
            east.meet().await;
        }
        all
    });
}

/// Far more answers than a gateway and a socket hold.
const UNREAD_MAX: u64 = 1 << 20;

/// Connections of the crowd, over all its processes.
const CROWD: usize = 10_000;
const PROCESSES: usize = 4;
const EACH: usize = CROWD / PROCESSES;
/// Names the socket for a process of the crowd.
const SOCKET_VARIABLE: &str = "LANDBRIDGE_TEST_SOCKET";

/// A process with its part of the crowd, and what it says.
type Part = (Child, BufReader<ChildStdout>);

fn crowd(socket: &Path) -> Part {
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["trainers::part_of_a_connection_flood", "--exact", "--ignored", "--nocapture"])
        .env(SOCKET_VARIABLE, socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut said = BufReader::new(child.stdout.take().expect("piped"));
    let open = said.by_ref().lines().any(|line| line.expect("text").contains("all are open"));
    assert!(open, "the crowd did not come in");
    (child, said)
}

/// Goes home at the end.
struct Crowds(Vec<Part>);

impl Drop for Crowds {
    fn drop(&mut self) {
        for (part, _said) in &mut self.0 {
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
        for number in 0..EACH {
            open.push(come(&socket, &memory, number).await);
        }
        println!("\nall are open");
        std::io::stdout().flush().expect("written");
        let over = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
        // Whoever lost its seat comes again, until the test is over.
        for number in (0..EACH).cycle().take_while(|_| !over.is_finished()) {
            let lost = |stream: &UnixStream| matches!(stream.try_read(&mut [0]), Ok(0));
            if open[number].as_ref().is_none_or(lost) {
                open[number] = come(&socket, &memory, number).await;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

/// A connection that holds its seat for as long as it can; `None` when it lost it already.
async fn come(socket: &Path, memory: &OwnedFd, number: usize) -> Option<UnixStream> {
    let mut stream = connect_unix(socket, memory).await.ok()?;
    // Every other one says half a message.
    if number.is_multiple_of(2) {
        stream.write_all(&[0, 0, 0, 60, 1]).await.ok()?;
    }
    Some(stream)
}

#[test]
fn ten_thousand_silent_connections_keep_no_trainer_out() {
    let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    if hard < EACH as u64 + 100 {
        skip(format!("a process may open {hard} files, {EACH} connections are needed"));
        return;
    }
    beside("10,000 silent connections", async |deployment| {
        let socket = deployment.path("east.sock");
        let parts: Vec<_> = (0..PROCESSES)
            .map(|_| socket.clone())
            .map(|socket| tokio::task::spawn_blocking(move || crowd(&socket)))
            .collect();
        let mut crowds = Crowds(Vec::new());
        for part in parts {
            crowds.0.push(part.await.expect("open"));
        }
        let pid = deployment.gateways[0].process.id();
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process").count();
        println!("the gateway has {files} files open");
        assert!(files < 600, "{files}");
        // Others come in and work.
        let team = Team::attach(deployment, &LAYOUT, "other").await;
        for _ in 0..20 {
            team.sum(&[1, 2, 3], 1000).await.expect("a sum");
        }
        (crowds, team)
    });
}
