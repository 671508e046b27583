//! Faults that a seed draws, each of which `explain` has to name, and nobody else.
//!
//! Gateways, links and trainers are real, in virtual time. Where virtual time has no such fault, the
//! scene stands in for it: clocks of hosts, limits on processors, lines of logs that were lost.

use super::scene::{SeededFault, Verdict};
use super::{of_gateways, of_links, of_ranks};

/// Asserts that the only cause of each fault is the party that the seed has drawn.
fn assert_named(faults: &[SeededFault], seed: u64) {
    for SeededFault { name, strike } in faults {
        let Verdict { causes, kind, culprits, found } = strike(seed);
        let [cause] = &causes[..] else {
            panic!("{name}, seed {seed}: not {culprits:?} alone: {causes:#?}")
        };
        let is_named = cause.kind == kind && culprits.contains(&cause.culprit);
        assert!(is_named, "{name}, seed {seed}: not {culprits:?}: {cause:#?}");
        assert!(cause.found.contains(&found), "{name}, seed {seed}: no `{found}`: {cause:#?}");
    }
}

#[test]
fn each_fault_of_a_rank_is_named_alone() {
    (1..3).for_each(|seed| assert_named(of_ranks::FAULTS, seed));
}

#[test]
fn each_fault_of_a_link_is_named_alone() {
    (1..3).for_each(|seed| assert_named(of_links::FAULTS, seed));
}

#[test]
fn each_fault_of_a_gateway_is_named_alone() {
    (1..3).for_each(|seed| assert_named(of_gateways::FAULTS, seed));
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn every_fault_is_named_alone_for_many_seeds() {
    for seed in 3..40 {
        for faults in [of_ranks::FAULTS, of_links::FAULTS, of_gateways::FAULTS] {
            assert_named(faults, seed);
        }
    }
}
