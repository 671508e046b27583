//! Whole groups of sessions in one process, with messages in order for each pair and everything
//! else in any order. Memory is checked, not only events.

use super::fabrics::*;
use super::world::*;
use crate::descriptor::*;
use crate::ids::*;
use crate::post::*;
use proptest::prelude::*;
use std::collections::*;

/// Every rank posts collectives of these lengths, in any interleaving; each completes everywhere.
fn all_post_and_end(world: &mut World, lengths: &[u64]) -> Result<(), TestCaseError> {
    all_post(world, lengths, |_| {});
    for rank in 0..world.fabric.world_size() {
        let ready = world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. }));
        prop_assert_eq!(ready, lengths.len());
        let free = world.count(rank, |e| matches!(e, RankEvent::ContributionFree { .. }));
        prop_assert_eq!(free, lengths.len());
    }
    world.assert_clean();
    Ok(())
}

/// Every rank posts collectives of these lengths, in any interleaving with `between`.
pub(super) fn all_post(world: &mut World, lengths: &[u64], mut between: impl FnMut(&mut World)) {
    let mut due: Vec<(u32, u64)> = (0..world.fabric.world_size()).map(|rank| (rank, 0)).collect();
    while !due.is_empty() {
        between(world);
        let index = world.dice.roll(due.len());
        let (rank, sequence) = due[index];
        world.post(RankId(rank), sequence, lengths[sequence as usize]);
        due[index].1 += 1;
        if due[index].1 == lengths.len() as u64 {
            due.swap_remove(index);
        }
        for _ in 0..world.dice.roll(30) {
            world.step();
        }
    }
    world.run();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any shape, any order of events, streams cut at random, several collectives at once, and
    /// contributions whose bytes come later than their posts.
    #[test]
    fn every_result_is_the_sum_and_nothing_is_left(
        seed: u64,
        shape in 0..8usize,
        ranks in proptest::collection::vec(1u32..4, 4),
        lengths in proptest::collection::vec(0u64..200, 1..5),
        partials in 0u64..600,
        streamed in 0usize..3,
    ) {
        let (gateways, trees) = shapes().swap_remove(shape);
        let mut world = World::new(&ranks[..gateways], plan_of(trees), seed, partials);
        world.streamed_of_three = streamed;
        all_post_and_end(&mut world, &lengths)?;
    }

    /// Reductions to a rank, broadcasts from one and barriers among all-reduces.
    #[test]
    fn receivers_have_the_data_of_the_senders(
        seed: u64,
        shape in 0..8usize,
        ranks in proptest::collection::vec(1u32..4, 4),
        posts in proptest::collection::vec((0u64..200, 1u8..5, 0u32..12), 1..6),
        partials in 0u64..600,
        streamed in 0usize..3,
    ) {
        let (gateways, trees) = shapes().swap_remove(shape);
        let mut world = World::new(&ranks[..gateways], plan_of(trees), seed, partials);
        world.streamed_of_three = streamed;
        let world_size = world.fabric.world_size();
        let of = |code, root| Pattern::from_code(code, RankId(root));
        for (sequence, (_, code, root)) in (0..).zip(&posts) {
            let pattern = of(*code, root % world_size).or(of(*code, 0)).expect("known");
            world.patterns.insert(sequence, pattern);
        }
        let length = |(elements, code, _): &(u64, u8, u32)| if *code == 4 { 0 } else { *elements };
        all_post_and_end(&mut world, &posts.iter().map(length).collect::<Vec<_>>())?;
    }

    /// The plan changes while collectives are under way and lanes are lost: nothing fails, and all
    /// sums are right.
    #[test]
    fn a_plan_changes_between_two_collectives_everywhere(
        seed: u64,
        plans in proptest::collection::vec(0..4usize, 2..5),
        ranks in proptest::collection::vec(1u32..3, 3),
        // Up to twice what a relay may hold.
        lengths in proptest::collection::vec(0u64..600, 1..7),
    ) {
        let trees = |index: usize| match index {
            0 => vec![tree(1, &[0, 1, 2], &[])],
            1 => shapes().swap_remove(4).1,
            2 => apart(1, 1, [&[(0, 1), (2, 1)], &[(0, 2), (2, 1)]]).to_vec(),
            _ => vec![
                tree(1, &[1], &[(0, 1), (2, 1)]),
                tree(0, &[0, 1, 2], &[]),
                tree(4, &[2], &[(0, 1), (1, 2)]),
            ],
        };
        let mut world = World::new(&ranks, plan_of(trees(plans[0])), seed, 600);
        let mut plans = plans[1..].iter();
        all_post(&mut world, &lengths, |world| {
            if world.dice.roll(8) == 0 && let Some(index) = plans.next() {
                let now = world.now;
                world.session(GatewayId(0)).handle_plan(plan_of(trees(*index)), now);
                world.collect(GatewayId(0));
            }
            if world.dice.roll(8) == 0 {
                let pairs = [(0, 1), (0, 2), (1, 2)];
                let (one, other) = pairs[world.dice.roll(3)];
                world.lose_lane(GatewayId(one), GatewayId(other));
            }
        });
        let hashes = world.sessions.iter().map(|s| s.status().plan.expect("an epoch").encoding_hash());
        let hashes: BTreeSet<u64> = hashes.collect();
        prop_assert_eq!(hashes.len(), 1, "they follow several plans");
        for rank in 0..world.fabric.world_size() {
            let ready = world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. }));
            prop_assert_eq!(ready, lengths.len());
        }
        world.assert_clean();
    }

    /// A disagreement reaches every rank with one text, and the next collective works.
    #[test]
    fn a_disagreement_names_field_and_values_everywhere(seed: u64, odd in 0u32..4) {
        let mut world = World::new(&[3, 1], plan_of(shapes().swap_remove(1).1), seed, 1000);
        for rank in 0..4 {
            world.post(RankId(rank), 0, if rank == odd { 30 } else { 20 });
            for _ in 0..world.dice.roll(30) {
                world.step();
            }
        }
        world.run();
        let mut texts = Vec::new();
        for rank in 0..4 {
            let failures = world.events[&RankId(rank)].iter().filter_map(|event| match event {
                RankEvent::Failed { failure, .. } => Some(failure.clone()),
                _ => None,
            });
            texts.extend(failures);
        }
        prop_assert_eq!(texts.len(), 4);
        for failure in &texts {
            prop_assert_eq!(failure.code, FailureCode::Disagreement);
            prop_assert!(failure.text.contains("length"), "{}", failure.text);
            prop_assert!(failure.text.contains("20") && failure.text.contains("30"));
        }
        for rank in 0..4 {
            world.post(RankId(rank), 1, 25);
        }
        world.run();
        for rank in 0..4 {
            prop_assert_eq!(world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. })), 1);
        }
    }

    /// Peers go away at any point: every post ends, and the next epoch works.
    #[test]
    fn a_lost_peer_ends_the_epoch_but_not_the_next(seed: u64, after in 0..200usize) {
        let mut world = World::new(&[2, 2], plan_of(shapes().swap_remove(1).1), seed, 300);
        for rank in 0..4 {
            world.post(RankId(rank), 0, 150);
        }
        for _ in 0..after {
            world.step();
        }
        world.lose_connection(GatewayId(0), GatewayId(1));
        world.run();
        for rank in 0..4 {
            let ended = |e: &RankEvent| {
                matches!(e, RankEvent::Failed { .. } | RankEvent::ContributionFree { .. })
            };
            prop_assert_eq!(world.count(rank, ended), 1);
            let (epoch, next) = world.epoch_of(RankId(rank));
            prop_assert_eq!((epoch, next), (Epoch(2), Sequence(1)));
            world.post(RankId(rank), 1, 100);
        }
        world.run();
        for rank in 0..4 {
            let ready = |e: &RankEvent| {
                matches!(e, RankEvent::ResultReady { sequence: Sequence(1), .. })
            };
            prop_assert_eq!(world.count(rank, ready), 1);
        }
        prop_assert!(world.sessions.iter().all(|session| session.collectives.is_empty()));
    }
}
