//! The commands of the README: how long they take, and what they show.

use crate::verdict::verdict;
use std::process::{Command, Output};
use std::time::Instant;

/// Path of the example lab file with three sites.
const LAB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/labs/three-sites.toml");

/// Three sites, ping and iperf3.
pub fn measure() {
    let began = Instant::now();
    let up = wan_sim(&["lab", "up", LAB]);
    assert!(up.status.success(), "{up:?}");
    let site = |site: &str, words: &str| {
        let words: Vec<_> = words.split(' ').collect();
        wan_sim(&[&["lab", "exec", LAB, site, "--"][..], &words].concat())
    };
    let ping = text(site("east", "ping -c 3 west"));
    let served = site("west", "iperf3 -s -D -1").status.success();
    let iperf = text(site("east", "iperf3 -c west"));
    let down = text(wan_sim(&["lab", "down", LAB]));
    let took = began.elapsed().as_secs_f64();
    let average = ping.split(" = ").last().and_then(|values| values.split('/').nth(1));
    let received = iperf.lines().rev().find(|line| line.contains("receiver")).unwrap_or_default();
    let words: Vec<_> = received.split_whitespace().collect();
    let rate = words.iter().position(|word| word.ends_with("bits/sec"));
    let rate = rate.map_or_else(String::new, |at| words[at - 1..=at].join(" "));
    let met = served && average.is_some() && !rate.is_empty() && took <= 60.0;
    let good = if down.contains("VOID") { "VOID" } else { "good" };
    println!(
        "| a lab of three sites, as the README has it | ping ms | iperf3, 10 s | all of it took | \
         wanted | | fidelity |\n|---|---|---|---|---|---|---|\n| configs/labs/three-sites.toml | {} \
         | {rate} | {took:.0} s | a minute | {} | {good} |",
        average.unwrap_or("none"),
        verdict(met),
    );
}

fn wan_sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wan-sim")).args(arguments).output().expect("it runs")
}

fn text(output: Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
