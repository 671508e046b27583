//! Gateways that agree on terms in virtual time, while links are cut one way or both, gateways are
//! started again and leaders are lost: at most one part goes on, and all do once everything is back.

mod world;

use hier_collectives::topology::QuorumSpec;
use world::{Shape, Tally, World};

/// Returns fabrics of three to six regions, each with a quorum.
fn shapes() -> Vec<Shape> {
    let named =
        |names: &[&str]| QuorumSpec::Named(names.iter().map(|name| (*name).to_owned()).collect());
    vec![
        Shape { gateways: vec![1, 1, 1], quorum: QuorumSpec::Majority },
        Shape { gateways: vec![1, 2, 1], quorum: QuorumSpec::Majority },
        Shape { gateways: vec![1, 1, 1], quorum: named(&["b"]) },
        Shape { gateways: vec![1, 1], quorum: named(&["a"]) },
        Shape { gateways: vec![2, 1, 1, 1], quorum: QuorumSpec::Majority },
        Shape { gateways: vec![1, 1, 1, 1, 1], quorum: QuorumSpec::Majority },
        Shape { gateways: vec![1, 1, 1, 1, 1], quorum: QuorumSpec::Count(4) },
        Shape { gateways: vec![1, 1, 2, 1, 1, 1], quorum: named(&["a", "d"]) },
    ]
}

/// Runs one seed; runs it again if something is wrong, and shows what happened.
fn check_seed(seed: u64) -> Tally {
    let shapes = shapes();
    let shape = &shapes[(seed % shapes.len() as u64) as usize];
    let mut world = World::new(shape, seed);
    world.run();
    if world.wrong.is_empty() {
        return world.tally;
    }
    panic!("seed {seed}, {shape:?}: {:?}\n{}", world.wrong, world.trace.join("\n"));
}

#[test]
fn at_most_one_part_goes_on_under_every_fault() {
    let mut sum = Tally::default();
    for seed in 0..3_000 {
        sum += check_seed(seed);
    }
    // The schedules do what they are for.
    assert!(sum.terms > 10_000 && sum.partial_terms > 4_000, "{sum:?}");
    assert!(sum.restarts > 5_000 && sum.cuts > 10_000, "{sum:?}");
}
