//! Gateways without work hardly run.

use crate::deployment::Deployment;
use gateway::loopback::ports;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The gateways, each with the four others as peers.
const NAMES: [&str; 5] = ["cairo", "hanoi", "lima", "oslo", "quito"];
/// 5 s after the epoch has begun: searches for the MTU and handshakes are over.
const SETTLING: Duration = Duration::from_secs(5);
/// 10 s, in which keep-alives and gauges come about ten times.
const COUNTED: Duration = Duration::from_secs(10);
/// 20 wake-ups a second of a gateway with four peers and one lane to each.
const WAKEUPS_MAX: f64 = 20.0;
/// 16 of them are the lane's: the tick, and for each peer a keep-alive and its acknowledgement.
const LANE_WAKEUPS_MAX: f64 = 16.0;
/// A quarter more, since a busy machine handles apart what came at once.
const TOLERANCE: f64 = 1.25;

/// Returns the first of a block of free ports.
fn free_port() -> u16 {
    ports::free_port_block().expect("free ports").port()
}

/// Starts a gateway in each of five regions, all pairs of which are linked.
fn five_gateways() -> Deployment {
    let mut deployment = Deployment::without_files();
    let mut fabric = "name = \"five\"\nmtu = 1500\n".to_owned();
    for (index, name) in NAMES.into_iter().enumerate() {
        fabric += &format!(
            "[region.{name}]\nranks = 1\n[region.{name}.gateway.{name}-0]\n\
             wan = \"127.0.0.1:{}\"\negress = \"1 Gbit/s\"\ningress = \"1 Gbit/s\"\n",
            free_port()
        );
        for other in &NAMES[index + 1..] {
            fabric += &format!("[link.{name}-{other}]\nrate = \"200 Mbit/s\"\nrtt = \"2 ms\"\n");
        }
        let region = format!(
            "fabric = \"fabric.toml\"\n[gateway.{name}-0]\nsocket = \"{name}.sock\"\n\
             status = \"127.0.0.1:{}\"\ncertificate = \"keys/{name}-0.pem\"\n\
             key = \"keys/{name}-0.key\"\nca = \"keys/ca.pem\"\nmemory = \"256 MiB\"\n\
             [job.train]\ntoken = \"keys/train.token\"\nmemory = \"256 MiB\"\n",
            free_port()
        );
        std::fs::write(deployment.path(&format!("{name}.toml")), region).expect("written");
    }
    std::fs::write(deployment.path("fabric.toml"), fabric).expect("written");
    deployment.certs("keys", &["train"]);
    NAMES.iter().for_each(|name| deployment.run_gateway(name));
    deployment.gateways.iter().for_each(|gateway| drop(gateway.log.line_with("began: ")));
    deployment
}

/// The threads of a process at one time.
struct Threads {
    /// How often they have given up a core to wait.
    waits: u64,
    /// The lanes among them.
    lanes: usize,
}

/// Reads the threads of a process from `/proc`.
fn threads(process: u32) -> Threads {
    let mut threads = Threads { waits: 0, lanes: 0 };
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("a process");
    for task in tasks {
        let folder = task.expect("readable").path();
        // A thread may end meanwhile.
        let read = |name: &str| std::fs::read_to_string(folder.join(name));
        let (Ok(status), Ok(name)) = (read("status"), read("comm")) else { continue };
        let field = |line: &str| line.strip_prefix("voluntary_ctxt_switches:").map(str::to_owned);
        let waits = status.lines().find_map(field).expect("a known field");
        threads.waits += waits.trim().parse::<u64>().expect("a number");
        threads.lanes += usize::from(name.starts_with("lane-"));
    }
    threads
}

#[test]
fn an_idle_gateway_of_four_peers_wakes_seldom() {
    let deployment = five_gateways();
    sleep(SETTLING);
    let processes: Vec<u32> = deployment.gateways.iter().map(|run| run.process.id()).collect();
    let before: Vec<Threads> = processes.iter().map(|process| threads(*process)).collect();
    let begun = Instant::now();
    sleep(COUNTED);
    let after: Vec<Threads> = processes.iter().map(|process| threads(*process)).collect();
    let seconds = begun.elapsed().as_secs_f64();
    for (name, (before, after)) in NAMES.into_iter().zip(before.iter().zip(&after)) {
        let wakeups = after.waits.saturating_sub(before.waits) as f64 / seconds;
        println!("{name}: {wakeups:.1} wake-ups a second, {} lanes", after.lanes);
        let more_lanes = after.lanes.saturating_sub(1) as f64;
        let allowed = TOLERANCE * (WAKEUPS_MAX + LANE_WAKEUPS_MAX * more_lanes);
        assert!(wakeups <= allowed, "{name}: {wakeups:.1} wake-ups a second, {allowed} allowed");
    }
    // Whoever runs no loop at all would count as idle.
    let status = Command::new(crate::deployment::BINARY)
        .args(["status", "--json", "--config"])
        .arg(deployment.path("cairo.toml"))
        .output()
        .expect("runs");
    let peers = crate::outcome(&status)["peers"].as_array().map_or(0, Vec::len);
    assert_eq!(peers, NAMES.len() - 1);
}
