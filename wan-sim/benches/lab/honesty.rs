//! Whether loss slows a flow equally with segmentation offload and without.

use crate::site::World;
use crate::spread::Spread;
use crate::verdict::{Tried, tried, verdict, void};

/// 5 seeds of random loss: a CUBIC flow is measured with each of them, with and without offload.
const SEEDS: u64 = 5;

/// Measures CUBIC at 1 Gbit/s and 40 ms, whose speed depends on single losses.
pub fn measure() {
    println!(
        "| CUBIC, 1 Gbit/s, 40 ms round trip, {SEEDS} seeds, 10 s each | with offload Mbit/s | \
         without | medians apart by | wanted | | void runs |\n|---|---|---|---|---|---|---|"
    );
    for loss in ["0.01%", "0.1%"] {
        let words = format!("delay 20ms rate 1gbit queue 1bdp loss {loss}");
        let mut runs = [Vec::new(), Vec::new()];
        for seed in 1..=SEEDS {
            // One after the other: two flows at a time are too much for two cores.
            let pair = [true, false].map(|offload| flow(&words, seed, offload));
            runs.iter_mut().zip(pair).for_each(|(runs, run)| runs.push(run));
        }
        let again: usize = runs.iter().flatten().map(|run| run.void_before).sum();
        let left = void(runs.iter().flatten().map(|run| &run.report));
        let still_void = runs.iter().flatten().any(|run| !run.report.void.is_empty());
        let [with, without] = runs.map(|runs| Spread::new(runs.iter().map(|run| run.value)));
        let apart = (with.median() / without.median() - 1.0) * 100.0;
        let within = without.holds(with.median()) && with.holds(without.median());
        println!(
            "| loss {loss} | {with:.1} | {without:.1} | {apart:+.1} % | each median within the \
             other's spread | {} | {again} made again; left {left} |",
            verdict(within && !still_void),
        );
    }
}

fn flow(words: &str, seed: u64, offload: bool) -> Tried<f64> {
    tried(|| {
        let world = World::seeded(words, seed).expect("a lab");
        if !offload {
            switch_off(&world);
        }
        (world.tcp(10, 2).0, world.fidelity().expect("a lab"))
    })
}

/// Switches segmentation offload off: packets have one segment from now on.
fn switch_off(world: &World) {
    for site in ["a", "b"] {
        let mut command = world.command(site, "ip");
        command.args(["link", "set", "wan0", "gso_max_segs", "1", "gso_max_size", "1500"]);
        let output = command.output().expect("iproute2");
        assert!(output.status.success(), "{output:?}");
    }
}
