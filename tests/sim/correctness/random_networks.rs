//! The sum is correct for many seeds, each with its own network.

use hier_collectives::descriptor::{Dtype, ReduceOp};
use scenarios::collectives::batch::{Case, succeeds};
use scenarios::collectives::data::SplitMix64;
use scenarios::{Lab, Shape, ppm, simulate};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use units::Span;

/// 300 seeds, each with its own network.
const SEEDS: u64 = 300;
/// Environment variable with one seed to run instead of all.
const SEED_VARIABLE: &str = "LANDBRIDGE_SEED";

/// Returns the shape for a seed, which decides distance, loss, jitter and ranks.
fn shape(seed: u64) -> Shape {
    let mut dice = SplitMix64(seed);
    let mut pick = |choices: u64| dice.roll() % choices;
    let ranks = ([1, 1, 2, 3][pick(4) as usize], [1, 1, 2, 3][pick(4) as usize]);
    let rtt = if pick(3) == 0 { 80 } else { 5 + pick(146) };
    let loss = if pick(4) == 0 { 0 } else { pick(20_001) as u32 };
    // No packet may be early by more than the whole way.
    let jitter = Span::from_ns(1000 * pick(3001)).min(Span::from_ms(rtt / 2));
    Shape { rtt: Span::from_ms(rtt), loss: ppm(loss), jitter, ..Shape::new(ranks.0, ranks.1) }
}

fn run(seed: u64) {
    let shape = shape(seed);
    simulate(async {
        let lab = Lab::start(&shape, seed).await;
        let case = Case::new(ReduceOp::Sum, Dtype::F32, 1 << 20, seed);
        let clients = lab.clients(9 << 20).await;
        succeeds(&clients, shape.ranks.0, &case).await;
    });
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn four_mebibytes_are_summed_right_under_every_seed() {
    let first = std::env::var(SEED_VARIABLE).ok();
    if let Some(seed) = first.map(|seed| seed.parse().expect("a number")) {
        println!("seed {seed}: {:?}", shape(seed));
        return run(seed);
    }
    let (next, failed) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= SEEDS {
            return;
        }
        if catch_unwind(AssertUnwindSafe(|| run(seed))).is_err() {
            println!(
                "seed {seed} failed with {:?}; replay it with\n  {SEED_VARIABLE}={seed} \
                 cargo test -p scenarios --test sim seeds -- --nocapture",
                shape(seed)
            );
            failed.lock().expect("no panic inside").push(seed);
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().expect("no panic inside");
    assert!(failed.is_empty(), "failing seeds: {failed:?}");
}
