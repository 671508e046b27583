//! Whether loss does the same to a flow with segmentation offload as without.

use crate::site::World;
use crate::spread::Spread;
use std::process::Command;

const SEEDS: u64 = 5;

/// CUBIC at 1 Gbit/s and 40 ms: its speed depends on single losses.
pub fn measure() {
    println!(
        "| CUBIC, 1 Gbit/s, 40 ms round trip, {SEEDS} seeds, 10 s each | with offload Mbit/s | \
         without | medians apart by | within the spread |\n|---|---|---|---|---|"
    );
    for loss in ["0.01%", "0.1%"] {
        let mut runs = [Vec::new(), Vec::new()];
        for seed in 1..=SEEDS {
            for (runs, offload) in runs.iter_mut().zip([true, false]) {
                let words = format!("delay 20ms rate 1gbit queue 1bdp loss {loss}");
                let world = World::seeded(&words, seed).expect("a lab");
                if !offload {
                    switch_off(&world);
                }
                runs.push(world.tcp(10, 2).0);
            }
        }
        let ranges = runs.each_ref().map(|runs| {
            let least = runs.iter().copied().fold(f64::INFINITY, f64::min);
            (least, runs.iter().copied().fold(0.0, f64::max))
        });
        let [with, without] = runs.map(Spread::new);
        let apart = (with.median() / without.median() - 1.0) * 100.0;
        let inside = |median: f64, (least, most): (f64, f64)| (least..=most).contains(&median);
        let within = inside(with.median(), ranges[1]) && inside(without.median(), ranges[0]);
        let verdict = if within { "yes" } else { "NO" };
        println!("| loss {loss} | {with:.1} | {without:.1} | {apart:+.1} % | {verdict} |");
    }
}

/// Packets of one segment from here on.
fn switch_off(world: &World) {
    for site in ["a", "b"] {
        let mut command: Command = world.command(site, "ip");
        command.args(["link", "set", "wan0", "gso_max_segs", "1", "gso_max_size", "1500"]);
        let output = command.output().expect("iproute2");
        assert!(output.status.success(), "{output:?}");
    }
}
