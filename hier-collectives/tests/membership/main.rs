//! Gateways that agree on terms in virtual time, while links are cut one way or both, gateways are
//! started again and leaders are lost: at most one part goes on, and all do once everything is back.

mod world;

use hier_collectives::topology::QuorumSpec;
use world::{Shape, Tally, World};

/// Returns fabrics of two to six regions, each with a quorum, some with a witness.
fn shapes() -> Vec<Shape> {
    let named =
        |names: &[&str]| QuorumSpec::Named(names.iter().map(|name| (*name).to_owned()).collect());
    let shape = |gateways: &[usize], quorum: QuorumSpec| {
        let gateways = gateways.to_vec();
        Shape { gateways, quorum, witness: false }
    };
    let witnessed = |gateways: &[usize], quorum: QuorumSpec| {
        let gateways = gateways.to_vec();
        Shape { gateways, quorum, witness: true }
    };
    vec![
        shape(&[1, 1, 1], QuorumSpec::Majority),
        shape(&[1, 2, 1], QuorumSpec::Majority),
        shape(&[1, 1, 1], named(&["b"])),
        shape(&[1, 1], named(&["a"])),
        shape(&[2, 1, 1, 1], QuorumSpec::Majority),
        shape(&[1, 1, 1, 1, 1], QuorumSpec::Majority),
        shape(&[1, 1, 1, 1, 1], QuorumSpec::Count(4)),
        shape(&[1, 1, 2, 1, 1, 1], named(&["a", "d"])),
        witnessed(&[1, 1], QuorumSpec::Majority),
        witnessed(&[2, 1], QuorumSpec::Majority),
        witnessed(&[1, 1, 1, 1], QuorumSpec::Majority),
        witnessed(&[1, 1, 1], QuorumSpec::Count(3)),
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
    for seed in 0..4_500 {
        sum += check_seed(seed);
    }
    // The schedules do what they are for.
    assert!(sum.terms > 10_000 && sum.partial_terms > 4_000, "{sum:?}");
    assert!(sum.witnessed_terms > 1_000, "{sum:?}");
    assert!(sum.restarts > 5_000 && sum.cuts > 10_000, "{sum:?}");
}
