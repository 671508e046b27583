//! Gateways that agree on terms in virtual time. Faults cut links one way or both, and start gateways again.
//! Leaders are lost, operators take regions out and in, and gateways refuse fabrics or have another one. At most
//! one part goes on, and all regions go on once everything is back.

mod operators;
mod world;
mod world_fabrics;
mod world_parts;

use hier_collectives::ids::{BootId, GatewayId, RegionId};
use hier_collectives::membership::{
    FabricVersion, Term, TermAction, TermAgreement, TermId, TermMessage,
};
use hier_collectives::mesh::{MeshConnectionState, MeshGraph};
#[cfg(feature = "mutants")]
use hier_collectives::mutant::{self, Mutant};
use hier_collectives::testing::{FabricBuilder, lossless_link, mbit, symmetric_port};
use hier_collectives::topology::QuorumSpec;
#[cfg(feature = "mutants")]
use std::process::Command;
use std::sync::Arc;
use units::TimeNs;
use world::{Shape, World};
use world_parts::Tally;

/// Returns fabrics of two to six regions, each with a quorum, some with a witness.
fn shapes() -> Vec<Shape> {
    let named =
        |names: &[&str]| QuorumSpec::Named(names.iter().map(|name| (*name).to_owned()).collect());
    let shape = |gateways: &[usize], quorum: QuorumSpec| {
        let gateways = gateways.to_vec();
        Shape { gateways, quorum, witness: false, votes: vec![] }
    };
    let witnessed = |gateways: &[usize], quorum: QuorumSpec| {
        let gateways = gateways.to_vec();
        Shape { gateways, quorum, witness: true, votes: vec![] }
    };
    let of_votes = |shape: Shape, votes: &[u16]| Shape { votes: votes.to_vec(), ..shape };
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
        of_votes(shape(&[1, 1], QuorumSpec::Majority), &[1, 2]),
        of_votes(shape(&[1, 1, 2, 1], QuorumSpec::Majority), &[2, 1, 1, 1]),
        of_votes(shape(&[1, 1, 1], QuorumSpec::Count(4)), &[2, 2, 1]),
        of_votes(witnessed(&[1, 1, 1], QuorumSpec::Majority), &[2, 1, 1, 1]),
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
    let mut again = World::new(shape, seed);
    again.has_messages_traced = true;
    again.run();
    panic!("seed {seed}, {shape:?}: {:?}\n{}", again.wrong, again.trace.join("\n"));
}

/// Runs these seeds, and asserts that the schedules do what they are for.
fn check_seeds(seeds: std::ops::Range<u64>) {
    let count = seeds.end - seeds.start;
    let sum = seeds.map(check_seed).fold(Tally::default(), |mut sum, tally| {
        sum += tally;
        sum
    });
    let wanted = [
        (sum.terms, 22),
        (sum.partial_terms, 9),
        (sum.witnessed_terms, 2),
        (sum.restarts, 11),
        (sum.cuts, 22),
        (sum.leaves, 3),
        (sum.joins, 2),
        (sum.terms_after_leave, 4),
        (sum.called_off, 2),
        (sum.offers, 5),
        (sum.adopted, 5),
        (sum.refusals, 2),
        (sum.other_files, 2),
        (sum.left_out, 1),
    ];
    for (done, in_ten_seeds) in wanted {
        assert!(10 * done > in_ten_seeds * count, "{done} of {in_ten_seeds} in ten seeds: {sum:?}");
    }
}

#[test]
fn at_most_one_part_goes_on_under_every_fault() {
    check_seeds(0..4_500);
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn at_most_one_part_goes_on_in_ten_thousand_seeds() {
    check_seeds(4_500..10_000);
}

#[cfg(feature = "mutants")]
#[test]
#[ignore = "each_mutant_of_fabrics_is_found runs it in a process of its own"]
fn seeds_go_right_under_a_mutant() {
    // The name of a test to skip, of which there is none.
    let is_named = |mutant: &Mutant| std::env::args().any(|argument| argument == mutant.name());
    let Some(mutant) = Mutant::ALL.into_iter().find(is_named) else { return };
    mutant::activate_mutant(mutant);
    for seed in 0..1000 {
        check_seed(seed);
    }
}

#[cfg(feature = "mutants")]
#[test]
fn each_mutant_of_fabrics_is_found() {
    for (mutant, words) in [
        (Mutant::AdoptHalfHeld, "with a fabric that it lacks"),
        (Mutant::IgnoreFabricDigest, "in one term in the end"),
        (Mutant::TakeOldFabric, "takes an old fabric"),
    ] {
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        child.args(["--ignored", "--exact", "seeds_go_right_under_a_mutant", "--skip"]);
        let found = child.arg(mutant.name()).output().expect("runs");
        let said = String::from_utf8_lossy(&found.stdout).into_owned()
            + &String::from_utf8_lossy(&found.stderr);
        assert!(!found.status.success() && said.contains(words), "{}: {said}", mutant.name());
    }
}

#[test]
fn a_term_that_begins_with_other_regions_is_refused() {
    let wan = Some(symmetric_port(mbit(1)));
    let regions = ["a", "b", "c"].into_iter();
    let builder =
        regions.fold(FabricBuilder::default(), |to, name| to.region(name, vec![(1, wan)]));
    let fabric = builder.all_pairs(lossless_link(mbit(1), 100)).build();
    let fabric = Arc::new(fabric.with_quorum(&QuorumSpec::Majority).expect("valid"));
    let (leader, boot, now) = (GatewayId(0), BootId(7), TimeNs::from_ns(1));
    let version = FabricVersion::default();
    let mut member = TermAgreement::new(Arc::clone(&fabric), version, GatewayId(1), boot);
    let all_up = MeshGraph::uniform(&fabric, MeshConnectionState::Up);
    member.handle_connections(&all_up, "start", now);
    let id = TermId { number: 1, boot: BootId(1) };
    let term = Term { id, regions: [0, 1, 2].map(RegionId).into(), fabric: version };
    let propose = TermMessage::Propose { term: term.clone(), to: boot };
    member.handle_message(leader, propose, now).expect("a good term");
    let votes = |action: &TermAction| {
        matches!(action, TermAction::Message { message: TermMessage::Vote { .. }, .. })
    };
    assert!(std::iter::from_fn(|| member.poll_action()).any(|action| votes(&action)));
    for regions in [vec![0, 1, 999], vec![0, 1], vec![3]] {
        let regions = regions.into_iter().map(RegionId).collect();
        let forged = Term { id, regions, fabric: version };
        let begins = TermMessage::Begin(forged);
        member.handle_message(leader, begins, now).expect_err("not what was proposed");
    }
    let begins = TermMessage::Begin(term.clone());
    member.handle_message(leader, begins, now).expect("as proposed");
    let enters =
        |action: TermAction| matches!(action, TermAction::Enter(entered) if entered == term);
    assert!(std::iter::from_fn(|| member.poll_action()).any(enters));
}
