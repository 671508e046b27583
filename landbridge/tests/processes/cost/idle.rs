//! Gateways without work hardly run.

use crate::deployment::Deployment;
use gateway::loopback::port_block;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The gateways, each with the four others as peers.
const NAMES: [&str; 5] = ["cairo", "hanoi", "lima", "oslo", "quito"];
/// 5 s after the epoch has begun: searches for the MTU and handshakes are over.
const SETTLING: Duration = Duration::from_secs(5);
/// 10 s, in which keep-alives and gauges come about ten times.
const COUNTED: Duration = Duration::from_secs(10);
/// 20 wake-ups a second of a gateway with four peers and one lane to each. The lane's thread has the
/// tick, and for each peer a keep-alive and its acknowledgement; its threads for more lanes sleep.
const WAKEUPS_MAX: f64 = 20.0;
/// A quarter more, since a busy machine handles apart what came at once.
const TOLERANCE: f64 = 1.25;

/// Returns the first of a block of free ports.
fn free_port() -> u16 {
    port_block::free_port_block().expect("free ports").port()
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

/// Returns how often the threads of a process have given up a core to wait, from `/proc`.
fn waits(process: u32) -> u64 {
    let mut waits = 0;
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("a process");
    for task in tasks {
        let status = task.expect("readable").path().join("status");
        // A thread may end meanwhile.
        let Ok(status) = std::fs::read_to_string(status) else { continue };
        let field = |line: &str| line.strip_prefix("voluntary_ctxt_switches:").map(str::to_owned);
        let number = status.lines().find_map(field).expect("a known field");
        waits += number.trim().parse::<u64>().expect("a number");
    }
    waits
}

#[test]
fn an_idle_gateway_of_four_peers_wakes_seldom() {
    let deployment = five_gateways();
    sleep(SETTLING);
    let processes: Vec<u32> = deployment.gateways.iter().map(|run| run.process.id()).collect();
    let before: Vec<u64> = processes.iter().map(|process| waits(*process)).collect();
    let begun = Instant::now();
    sleep(COUNTED);
    let after: Vec<u64> = processes.iter().map(|process| waits(*process)).collect();
    let seconds = begun.elapsed().as_secs_f64();
    for (name, (before, after)) in NAMES.into_iter().zip(before.iter().zip(&after)) {
        let wakeups = after.saturating_sub(*before) as f64 / seconds;
        println!("{name}: {wakeups:.1} wake-ups a second");
        let allowed = TOLERANCE * WAKEUPS_MAX;
        assert!(wakeups <= allowed, "{name}: {wakeups:.1} wake-ups a second, {allowed} allowed");
    }
    // Whoever runs no loop at all would count as idle.
    let status = Command::new(crate::deployment::BINARY)
        .args(["status", "--json", "--config"])
        .arg(deployment.path("cairo.toml"))
        .output()
        .expect("runs");
    let outcome = crate::outcome(&status);
    let peers = outcome["peers"].as_array().expect("a list");
    assert_eq!(peers.len(), NAMES.len() - 1);
    for peer in peers {
        assert_eq!(peer["lanes"], 1, "{peer}");
        assert_eq!(peer["lanes_up"], 1, "{peer}");
    }
}
