//! The effect of a lab on real TCP and UDP: `cargo bench -p wan-sim --features cli --bench lab`.
//! Needs root, /dev/net/tun, iproute2, iperf3 and ping, and lists what it skips.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures by the clock")]
#![expect(clippy::disallowed_types, reason = "programs at the sites use sockets")]

mod accuracy;
mod honesty;
mod readme;
mod site;
mod speed;
#[path = "../support/spread.rs"]
mod spread;
mod udp;
#[path = "../support/verdict.rs"]
mod verdict;

use std::process::Command;

fn main() {
    let missing: Vec<_> = ["iperf3", "ping"]
        .into_iter()
        .filter(|program| Command::new(program).arg("--help").output().is_err())
        .collect();
    if !missing.is_empty() {
        println!("SKIPPED: {} not found: install iperf3 and iputils-ping", missing.join(" and "));
        return;
    }
    site::remove_orphans();
    if let Err(error) = site::World::start("delay 1ms limit none") {
        println!("SKIPPED: {error}");
        return;
    }
    let only = std::env::args().nth(1).unwrap_or_default();
    let parts: [(&str, fn()); 5] = [
        ("readme", readme::measure),
        ("delay", accuracy::delay),
        ("goodput", accuracy::goodput),
        ("speed", speed::measure),
        ("honesty", honesty::measure),
    ];
    for (_, measure) in parts
        .iter()
        .filter(|(name, _)| !(parts.iter().any(|(known, _)| *known == only)) || *name == only)
    {
        measure();
        println!();
    }
}
