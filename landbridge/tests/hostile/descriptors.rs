//! A gateway that may open no more files.

use super::raw::{ARENA, ask, request};
use super::{ELEMENTS, LAYOUT, ONE_AT_A_TIME, ROUNDS_AFTER, Team, round, running};
use gateway::config::RegionFile;
use gateway::local::protocol::ProtocolResponse;
use gateway::memory::arena::Arena;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::collections::BTreeSet;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::PoisonError;
use std::time::Instant;

/// More connections than an old one that is being closed makes room for.
const CONNECTIONS: usize = 8;

/// Lets a process open `count` files more than now.
fn leave_descriptors(process: &Child, count: usize) {
    let folder = std::fs::read_dir(format!("/proc/{}/fd", process.id())).expect("a process");
    let number = |entry: std::io::Result<std::fs::DirEntry>| -> u64 {
        let name = entry.expect("readable").file_name();
        name.to_string_lossy().parse().expect("a number")
    };
    let open: BTreeSet<u64> = folder.map(number).collect();
    let limit = (0..).filter(|number| !open.contains(number)).nth(count);
    set_descriptor_limit(process, limit);
}

/// Sets the soft limit of a process on open files.
fn set_descriptor_limit(process: &Child, current: Option<u64>) {
    let limit = Rlimit { current, ..getrlimit(Resource::Nofile) };
    prlimit(Some(Pid::from_child(process)), Resource::Nofile, limit).expect("a child");
}

#[test]
fn a_lack_of_descriptors_is_told_with_its_remedy() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let deployment = running();
    let gateway = &deployment.gateways[0];
    let begin = Instant::now();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    // The connection gets the last descriptor, the arena none.
    leave_descriptors(&gateway.process, 1);
    let (_arena, memory) = Arena::create_memfd(ARENA).expect("memory");
    let attach = request(&deployment, "train", "train", 0);
    match runtime.block_on(ask(&deployment, &memory, &attach)) {
        ProtocolResponse::Refused(refusal) => {
            assert!(refusal.why.contains("ulimit -n"), "{refusal}")
        }
        other => panic!("not refused: {other:?}"),
    }
    gateway.log.line_with("a trainer was refused: the arena did not arrive");
    // No connection gets one.
    leave_descriptors(&gateway.process, 0);
    let file = RegionFile::load(&deployment.path("east.toml")).expect("valid");
    let status = file.gateway(None).expect("one").status;
    let path = deployment.path("east.sock");
    let trainers: Vec<_> =
        (0..CONNECTIONS).map(|_| UnixStream::connect(&path).expect("waits")).collect();
    let scrapers: Vec<_> =
        (0..CONNECTIONS).map(|_| TcpStream::connect(status).expect("waits")).collect();
    for who in ["a trainer's connection", "an HTTP connection"] {
        let line = gateway.log.line_with(&format!("{who} could not be accepted"));
        assert!(line.contains("WARN") && line.contains("ulimit -n"), "{line}");
    }
    // Tries go on ten times a second; lines do not.
    let text = gateway.log.text();
    let periods = begin.elapsed().as_secs() / 10 + 1;
    let told = text.matches("could not be accepted").count() as u64;
    assert!(told <= 2 * periods, "{told} lines in {periods} periods of 10 s:\n{text}");
    drop((trainers, scrapers));
    // With descriptors, trainers attach and work.
    set_descriptor_limit(&gateway.process, getrlimit(Resource::Nofile).current);
    runtime.block_on(async {
        let team = Team::attach(&deployment, &LAYOUT, "train").await;
        for _ in 0..ROUNDS_AFTER {
            round(&team, ELEMENTS).await;
        }
    });
}
