//! Stores over a network that loses, repeats and reorders messages, while gateways are started anew
//! and links are cut: every history is linearizable, and every request ends.

mod encoding;
mod history;
mod limits;
mod schedule;
mod world;

use schedule::Schedule;
use world::{Conclusion, World};

/// Runs one seed twice if something is wrong, and shows what happened the second time.
fn check_seed(seed: u64) -> Conclusion {
    let mut world = World::new(Schedule::random(seed));
    world.run();
    match world.judge() {
        Ok(conclusion) => conclusion,
        Err(why) => {
            let mut again = World::new(Schedule::random(seed));
            again.run();
            panic!("seed {seed}: {why}\n{}", again.trace());
        }
    }
}

#[test]
fn every_history_is_linearizable_under_every_fault() {
    let mut sum = Conclusion::default();
    for seed in 0..3000 {
        sum += check_seed(seed);
    }
    // The schedules do what they are for.
    assert!(sum.answered > 50_000, "{sum:?}");
    assert!(sum.restarts > 2_000 && sum.leader_restarts > 500, "{sum:?}");
    assert!(sum.unknown > 500 && sum.cuts > 1_000, "{sum:?}");
}
