//! How fast the emulator can go, against a plain cable on the same machine.

use crate::site::World;
use crate::spread::Spread;
use crate::verdict::{verdict, void};

/// 5 rounds: the number of measurements of each TCP flow.
const ROUNDS: usize = 5;

/// Measures one TCP flow without a rate. The flow takes all that the emulator has, so that
/// deliveries are late: the speed is judged, and void rounds are counted.
pub fn measure() {
    let labs = ["delay 0ms limit none", "delay 20ms limit none"];
    // Alternating, so that a busy spell of the machine meets all.
    let rounds: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let cable = World::cable().tcp(3, 1).0;
            let labs = labs.map(|words| {
                let world = World::start(words).expect("a lab");
                let mbits = world.tcp(3, 2).0;
                (mbits, world.fidelity().expect("a lab"))
            });
            (cable, labs)
        })
        .collect();
    println!(
        "| one TCP flow, no rate, {ROUNDS} rounds | Mbit/s | of the veth pair's | wanted, in the \
         median | | void |\n|---|---|---|---|---|---|"
    );
    println!("| veth pair | {:.0} | | | | |", Spread::new(rounds.iter().map(|(cable, _)| *cable)));
    for (lab, (name, wanted)) in
        [("TUN, 0 ms", 0.5), ("TUN, 20 ms one way", 0.35)].iter().enumerate()
    {
        let ratios = Spread::new(rounds.iter().map(|(cable, labs)| labs[lab].0 / cable));
        let speed = Spread::new(rounds.iter().map(|(_, labs)| labs[lab].0));
        let void = void(rounds.iter().map(|(_, labs)| &labs[lab].1));
        println!(
            "| {name} | {speed:.0} | {ratios:.2} | {wanted} | {} | {void} |",
            verdict(ratios.median() >= *wanted)
        );
    }
}
