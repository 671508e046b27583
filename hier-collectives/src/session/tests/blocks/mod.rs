//! Operations on blocks: every rank gets the blocks that are meant for it, and no other byte.

pub(super) mod reference;

use super::fabrics::*;
use super::results::all_post;
use super::world::*;
use crate::descriptor::*;
use crate::ids::*;
use crate::plan::*;
use crate::post::*;
use proptest::prelude::*;
use std::sync::Arc;

/// The operations on blocks by wire code, with a root where there is one.
const CODES: std::ops::Range<u8> = 5..10;

/// A fabric of four gateways in a line, so that most blocks pass others.
fn line() -> (usize, Vec<Tree>) {
    (4, vec![tree(1, &[1], &[(0, 1), (2, 1), (3, 2)])])
}

/// Lets ranks post a collective of this pattern. Block lengths follow from `sizes`, or are all alike.
fn set_counts(world: &mut World, sequence: u64, pattern: Pattern, sizes: Option<&[u64]>) -> u64 {
    let ranks = world.fabric.world_size();
    world.patterns.insert(sequence, pattern);
    let Some(sizes) = sizes else { return 7 * u64::from(ranks) };
    let size = |at: u32| sizes[at as usize % sizes.len()];
    if pattern == Pattern::AllToAll {
        for rank in 0..ranks {
            let to: Arc<[u64]> = (0..ranks).map(|other| size(rank * ranks + other)).collect();
            let from: Arc<[u64]> = (0..ranks).map(|other| size(other * ranks + rank)).collect();
            world.counts.insert((RankId(rank), sequence), Counts::ByPair { to, from });
        }
        return 0;
    }
    let list: Arc<[u64]> = (0..ranks).map(size).collect();
    for rank in 0..ranks {
        world.counts.insert((RankId(rank), sequence), Counts::ByRank(Arc::clone(&list)));
    }
    list.iter().sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any shape, any order of events, streams cut at random, several collectives at once.
    #[test]
    fn every_rank_gets_its_blocks_and_nothing_is_left(
        seed: u64,
        shape in 0..9usize,
        ranks in proptest::collection::vec(1u32..4, 4),
        posts in proptest::collection::vec((CODES, 0u32..12, any::<bool>()), 1..5),
        sizes in proptest::collection::vec(prop_oneof![Just(0), 0u64..40], 1..30),
        partials in 0u64..600,
        streamed in 0usize..3,
    ) {
        let (gateways, trees) = shapes().into_iter().chain([line()]).nth(shape).expect("a shape");
        let mut world = World::new(&ranks[..gateways], plan_of(trees), seed, partials);
        world.streamed_of_three = streamed;
        let world_size = world.fabric.world_size();
        let mut lengths = Vec::new();
        for (sequence, (code, root, even)) in (0..).zip(&posts) {
            let of = |root| Pattern::from_code(*code, RankId(root));
            let pattern = of(root % world_size).or(of(0)).expect("known");
            let sizes = (!even).then_some(&sizes[..]);
            lengths.push(set_counts(&mut world, sequence, pattern, sizes));
        }
        all_post(&mut world, &lengths, |_| ());
        for rank in 0..world_size {
            let ready = world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. }));
            prop_assert_eq!(ready, lengths.len(), "rank {} of {:?}", rank, world.patterns);
            let free = world.count(rank, |e| matches!(e, RankEvent::ContributionFree { .. }));
            prop_assert_eq!(free, lengths.len());
        }
        world.assert_clean();
    }

    /// Two ranks that differ about the elements between them are named, on every rank, wherever
    /// they are.
    #[test]
    fn a_difference_of_counts_by_pair_names_both_ranks(seed: u64, from in 0u32..5, to in 0u32..5) {
        let mut world = World::new(&[2, 1, 2], plan_of(vec![tree(1, &[0], &[(1, 0), (2, 1)])]), seed, 600);
        let elements = set_counts(&mut world, 0, Pattern::AllToAll, Some(&[3, 0, 17, 5]));
        let key = (RankId(to), 0);
        let Some(Counts::ByPair { to: sent, from: received }) = world.counts.remove(&key) else {
            return Err(TestCaseError::fail("no counts"));
        };
        let mut other = received.to_vec();
        other[from as usize] += 1;
        world.counts.insert(key, Counts::ByPair { to: sent, from: other.into() });
        for rank in 0..5 {
            world.post(RankId(rank), 0, elements);
            for _ in 0..world.dice.roll(30) {
                world.step();
            }
        }
        world.run();
        for rank in 0..5 {
            let failures = world.events[&RankId(rank)].iter().filter_map(|event| match event {
                RankEvent::Failed { failure, .. } => Some(failure.clone()),
                RankEvent::EpochBegan { ended, .. } => ended.clone(),
                _ => None,
            });
            let failures: Vec<Failure> = failures.collect();
            let names = |failure: &Failure| {
                failure.code == FailureCode::Disagreement
                    && failure.text.contains(&format!("rank {from} "))
                    && failure.text.contains(&format!("to rank {to} "))
            };
            prop_assert!(failures.iter().any(names), "rank {}: {:?}", rank, failures);
        }
    }
}

/// A part that nobody posted is refused by a gateway that has started, and so is a wrong length.
#[test]
fn counts_that_do_not_fit_fail_for_everybody() {
    let mut world = World::new(&[1, 1], plan_of(vec![tree(1, &[0, 1], &[])]), 4, 1000);
    world.patterns.insert(0, Pattern::AllGather);
    world.post(RankId(0), 0, 7);
    world.run();
    assert_eq!(failure_of(&world, 0), Some(FailureCode::BadPost));
    world.post(RankId(1), 0, 7);
    assert_eq!(failure_of(&world, 1), Some(FailureCode::BadPost));
}
