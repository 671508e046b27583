//! Ranks that post different collectives: all of them hear one text, in any order of posts and
//! messages, also where a region has its result already.

use super::fabrics::*;
use super::steps::*;
use super::world::*;
use crate::descriptor::*;
use crate::ids::*;
use crate::post::*;
use proptest::prelude::*;
use std::collections::VecDeque;

/// Returns the descriptor of a pattern by its wire code, with a root where it has one.
fn posted(code: u8, root: u32, elements: u64) -> Descriptor {
    let of = |root| Pattern::from_code(code, RankId(root));
    let pattern = of(root).or(of(0)).expect("known");
    descriptor(pattern, if pattern == Pattern::Barrier { 0 } else { elements })
}

/// Returns a descriptor that differs from `agreed` in one field; `other` has another pattern, root
/// or length.
fn with_other_field(agreed: Descriptor, other: Descriptor, field: usize) -> Descriptor {
    let shape = ArrayShape::new(&[1, agreed.elements]).expect("two dimensions");
    match field {
        0 => Descriptor { op: ReduceOp::Max, ..agreed },
        1 => Descriptor { dtype: Dtype::F64, ..agreed },
        2 => Descriptor { shape, ..agreed },
        3 => Descriptor { layout_hash: 7, ..agreed },
        _ => other,
    }
}

/// Returns the collective behind the one on which ranks disagree.
fn next_collective() -> Descriptor {
    descriptor(Pattern::AllReduce, 33)
}

/// Returns all failures of collectives that a rank was notified of, in order.
fn failures(world: &World, rank: u32) -> Vec<Failure> {
    let failure = |event: &RankEvent| match event {
        RankEvent::Failed { failure, .. } => Some(failure.clone()),
        _ => None,
    };
    world.events[&RankId(rank)].iter().filter_map(failure).collect()
}

/// Returns why the first epoch ended, as a rank was notified when the second began.
fn end_of_first_epoch(world: &World, rank: u32) -> Option<Failure> {
    world.events[&RankId(rank)].iter().find_map(|event| match event {
        RankEvent::EpochBegan { epoch: Epoch(2), ended, .. } => ended.clone(),
        _ => None,
    })
}

/// Runs all tasks of the gateways, and delivers no message.
fn run_tasks(world: &mut World) {
    while let Some((gateway, task)) = world.tasks.pop() {
        world.do_task(gateway, &task);
    }
}

/// Posts the next collective on every rank, and asserts that all get its result.
fn assert_next_works(world: &mut World) {
    let ranks = 0..world.fabric.world_size();
    let next: Vec<u64> = ranks.clone().map(|rank| world.epoch_of(RankId(rank)).1.0).collect();
    for rank in ranks.clone() {
        world.post(RankId(rank), next[rank as usize], 33);
    }
    world.run();
    for rank in ranks {
        let sequence = Sequence(next[rank as usize]);
        let ready = |event: &RankEvent| matches!(event, RankEvent::ResultReady { sequence: of, .. } if *of == sequence);
        assert_eq!(world.count(rank, ready), 1, "rank {rank}, collective {sequence}");
    }
}

/// Returns the ranks in the order in which they post.
fn shuffled(world: &mut World) -> Vec<u32> {
    let mut ranks: Vec<u32> = (0..world.fabric.world_size()).collect();
    let mut order = Vec::new();
    while !ranks.is_empty() {
        let next = world.dice.roll(ranks.len());
        order.push(ranks.swap_remove(next));
    }
    order
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Some ranks post one collective and some another, with the next one right behind it or not.
    #[test]
    fn every_rank_hears_the_same_reason_in_any_order(
        seed: u64,
        shape in 1..8usize,
        ranks in proptest::collection::vec(1u32..4, 4),
        agreed in (1u8..5, 0u32..12, 1u64..100),
        other in (1u8..5, 0u32..12, 1u64..100),
        field in 0..10usize,
        dissenters: u32,
        pipelined: u32,
    ) {
        let (gateways, trees) = shapes().swap_remove(shape);
        let mut world = World::new(&ranks[..gateways], plan_of(trees), seed, 600);
        let size = world.fabric.world_size();
        let [agreed, other] =
            [agreed, other].map(|(code, root, elements)| posted(code, root % size, elements));
        let other = with_other_field(agreed, other, field);
        prop_assume!(agreed != other);
        let dissents = |rank: u32| match rank {
            0 => dissenters & 1 == 0,
            1 => dissenters & 1 == 1,
            _ => (dissenters >> rank) & 1 == 1,
        };
        let pipelines = |rank: u32| (pipelined >> rank) & 1 == 1;
        for rank in shuffled(&mut world) {
            let own = if dissents(rank) { other } else { agreed };
            // Late ranks may know of the second epoch, and still post as if in the first.
            world.post_descriptor(Epoch(1), RankId(rank), 0, own);
            if pipelines(rank) {
                world.post_descriptor(Epoch(1), RankId(rank), 1, next_collective());
            }
            for _ in 0..world.dice.roll(60) {
                world.step();
            }
        }
        world.run();
        let is_over = world.epoch_of(RankId(0)).0 > Epoch(1);
        // Each rank has the result of the first, or knows that it failed, and goes on.
        for rank in 0..size {
            if is_over {
                world.post_descriptor(Epoch(1), RankId(rank), 2, next_collective());
            } else if !pipelines(rank) {
                world.post_descriptor(Epoch(1), RankId(rank), 1, next_collective());
            }
        }
        world.run();
        let reason = failures(&world, 0).first().cloned().expect("rank 0 hears it");
        prop_assert_eq!(reason.code, FailureCode::Disagreement);
        for rank in 0..size {
            let heard = failures(&world, rank);
            prop_assert!(!heard.is_empty(), "rank {} hears nothing", rank);
            prop_assert!(heard.iter().all(|failure| *failure == reason), "{:?}", heard);
            prop_assert_eq!(end_of_first_epoch(&world, rank), is_over.then(|| reason.clone()));
        }
        if is_over {
            assert_next_works(&mut world);
        }
        world.assert_clean();
    }
}

/// Both roots have their own data as the result before they hear of each other.
#[test]
fn two_roots_of_one_broadcast_end_the_epoch() {
    let mut world = World::new(&[1, 1], plan_of(vec![tree(1, &[0, 1], &[])]), 1, 1000);
    for rank in [RankId(0), RankId(1)] {
        let own = descriptor(Pattern::Broadcast { from: rank }, 10);
        world.post_descriptor(Epoch(1), rank, 0, own);
        run_tasks(&mut world);
        assert_eq!(world.count(rank.0, |e| matches!(e, RankEvent::ResultReady { .. })), 1);
    }
    world.run();
    for rank in 0..2 {
        assert!(failures(&world, rank).is_empty(), "results are not withdrawn");
        let reason = end_of_first_epoch(&world, rank).expect("the epoch ended");
        assert_eq!(reason.code, FailureCode::Disagreement);
        for words in ["rank 0 (r0) posted broadcast from rank 0", "posted broadcast from rank 1"] {
            assert!(reason.text.contains(words), "{words:?} is not in {}", reason.text);
        }
        world.post_descriptor(Epoch(1), RankId(rank), 1, next_collective());
        assert_eq!(failures(&world, rank), [reason], "to a rank that posts late");
    }
    assert_next_works(&mut world);
    world.assert_clean();
}

/// Other failures of a collective that is complete elsewhere end the epoch with their own text.
#[test]
fn the_root_hears_why_its_broadcast_failed_elsewhere() {
    let mut world = pair(2);
    world.patterns.insert(1, Pattern::Broadcast { from: RankId(0) });
    (0..RANKS).for_each(|rank| world.post(RankId(rank), 0, 10));
    world.run();
    let now = world.now;
    world.session(WEST).handle_detach(RankId(2), now);
    for rank in 0..2 {
        world.post(RankId(rank), 1, 10);
        world.post(RankId(rank), 2, 10);
    }
    run_tasks(&mut world);
    world.run();
    for rank in 0..2 {
        let heard = failures(&world, rank);
        assert_eq!(heard.len(), 1, "rank {rank}: {heard:?}");
        assert_eq!(heard[0].code, FailureCode::RankLost);
        assert!(heard[0].text.contains("collective 1: rank 2 (r1) went away"), "{}", heard[0]);
    }
}

/// They are done before the root has posted. That it never does ends the epoch.
#[test]
fn contributors_hear_why_their_reduce_failed_at_its_root() {
    let mut world = pair(2);
    world.patterns.insert(1, Pattern::Reduce { to: RankId(2) });
    (0..RANKS).for_each(|rank| world.post(RankId(rank), 0, 10));
    run_tasks(&mut world);
    world.run();
    (0..2).for_each(|rank| world.post(RankId(rank), 1, 10));
    run_tasks(&mut world);
    world.run();
    for rank in 0..2 {
        let done = |event: &RankEvent| matches!(event, RankEvent::ResultReady { .. });
        assert_eq!(world.count(rank, done), 2, "rank {rank}");
        let freed = |event: &RankEvent| matches!(event, RankEvent::ContributionFree { .. });
        assert_eq!(world.count(rank, freed), 1, "the slots of rank {rank}");
    }
    let now = world.now;
    world.session(WEST).handle_detach(RankId(2), now);
    world.run();
    for rank in 0..2 {
        assert!(failures(&world, rank).is_empty(), "rank {rank} was done");
        let reason = end_of_first_epoch(&world, rank).expect("the epoch ended");
        assert_eq!(reason.code, FailureCode::RankLost);
        let words = "collective 1: rank 2 (r1) went away";
        assert!(reason.text.contains(words), "{words:?} is not in {}", reason.text);
        world.post_descriptor(Epoch(1), RankId(rank), 2, next_collective());
        let late = failures(&world, rank);
        assert_eq!(late.len(), 1, "rank {rank}: {late:?}");
        assert!(late[0].text.contains(words), "{words:?} is not in {}", late[0].text);
    }
}

/// A gateway's proposal is lost with its lane, and so is the decision of the first one.
#[test]
fn a_proposal_lost_with_its_lane_is_repeated() {
    for lost in [WEST, EAST] {
        let mut world = World::new(&[1, 2], plan_of(vec![tree(1, &[0, 1], &[])]), 1, 1 << 20);
        for (rank, elements) in [(1, 100), (2, 101)] {
            world.post(RankId(rank), 0, elements);
        }
        assert!(failures(&world, 1).is_empty(), "the first gateway has not decided");
        let is_decided =
            |world: &World| !world.messages.get(&(EAST, WEST)).is_none_or(VecDeque::is_empty);
        while lost == EAST && !is_decided(&world) {
            assert!(world.step(), "a decision");
        }
        world.messages.clear();
        for (one, other) in [(EAST, WEST), (WEST, EAST)] {
            world.session(one).handle_connection_lane_lost(other);
        }
        world.run();
        world.post(RankId(0), 0, 100);
        world.run();
        let reason = failures(&world, 0);
        assert_eq!(reason.len(), 1);
        assert_eq!(reason[0].code, FailureCode::Disagreement);
        for rank in 1..3 {
            assert_eq!(failures(&world, rank), reason, "rank {rank}, lost by {lost}");
        }
        assert!(world.sessions.iter().all(|session| session.collectives.is_empty()));
    }
}

/// The first gateway is lost before it decides: its peers' ranks hear what their gateway found.
#[test]
fn a_proposal_that_nobody_decides_is_still_told() {
    let mut world = World::new(&[1, 2], plan_of(vec![tree(1, &[0, 1], &[])]), 1, 1 << 20);
    for (rank, elements) in [(1, 100), (2, 101)] {
        world.post(RankId(rank), 0, elements);
    }
    world.drop_connection(EAST, WEST);
    world.run();
    for rank in 1..3 {
        let heard = failures(&world, rank);
        assert_eq!(heard.len(), 1, "{heard:?}");
        assert!(heard[0].text.contains("ranks disagree on length"), "{}", heard[0]);
    }
}
