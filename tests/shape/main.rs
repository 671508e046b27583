//! `cargo xtask bench shape`: what the hierarchy saves on the long haul, as a page.

use scenarios::collectives::baselines::{
    ALGORITHMS, Algorithm, Cost, WAN_RATE, WAN_RTT, all_reduce, wrong_sums,
};
use std::process::ExitCode;
use units::ByteCount;

/// Ranks of each site: equal numbers, then unequal ones, some of which are no power of two.
const SHAPES: [&[u32]; 8] = [
    &[2, 2],
    &[4, 4],
    &[3, 3, 3],
    &[1, 1, 1, 1],
    &[4, 4, 4, 4],
    &[3, 1],
    &[5, 3, 2],
    &[1, 4, 2, 6],
];

const SIZE: ByteCount = ByteCount::new(16 << 20);

/// 1.02: payload over 2(D-1)/D of the buffer, of which packets and acknowledgements may add 2 %.
const MORE: f64 = 1.02;

fn main() -> ExitCode {
    println!(
        "Every rank's sums are compared with the right ones, bit by bit, in a buffer of i32 and one of \
         f32; a wrong one fails the run. Then all ranks all-reduce {SIZE} of f32 in virtual time by the production session, sites \
         {WAN_RATE} and {WAN_RTT} of RTT apart, each pair by a link of its own. The hierarchy has a \
         gateway at each site and its own plan; ring and halving-doubling are plans over a gateway \
         for each rank, in rank order, so that a ring enters and leaves each site once; their links \
         are divided among pairs of ranks by what they send. The ring that goes one way is the usual one; \
         plans have both directions of a link in use, so from three sites on it is measured by the \
         other one with twice the buffer, which puts as much on each direction as it puts on its \
         one. `out` is the payload that left a site, \
         in units of the buffer, the most of any site: IP bytes that the simulated links counted, \
         times the payload's part of a full packet, with acknowledgements and all. Senders are \
         gateways or ranks that sent over the long haul within the same 50 ms.\n\n\
         | ranks | algorithm | out | 2(D-1)/D | seconds | longest queue | senders at once |\n\
         |---|---|---|---|---|---|---|"
    );
    let mut good = true;
    for sites in SHAPES {
        for way in ALGORITHMS {
            let wrong = wrong_sums(way, sites, 1);
            match wrong.and_then(|wrong| Ok((wrong, all_reduce(way, sites, SIZE, 1)?))) {
                Ok((wrong, taken)) => {
                    good &= row(sites, way, &taken) && wrong.is_empty();
                    wrong.iter().for_each(|who| eprintln!("{sites:?}: {}: {who}", way.name()));
                }
                Err(error) => {
                    eprintln!("{sites:?}: {}: {error}", way.name());
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the row of a shape. Returns true if the hierarchy sent no more than allowed.
fn row(sites: &[u32], way: Algorithm, taken: &Cost) -> bool {
    let regions = sites.len() as f64;
    let least = 2.0 * (regions - 1.0) / regions;
    let most = taken.out.iter().copied().fold(0.0, f64::max);
    let ranks: Vec<String> = sites.iter().map(u32::to_string).collect();
    println!(
        "| {} | {} | {most:.3} | {least:.3} | {:.3} | {} | {} |",
        ranks.join(", "),
        way.name(),
        taken.seconds,
        taken.queue_peak,
        taken.senders
    );
    let good = way != Algorithm::Hierarchy || most <= MORE * least;
    if !good {
        eprintln!("{sites:?}: {most:.3} of the buffer left a site, {least:.3} is enough");
    }
    good
}
