//! Commits, drains, and ends of epochs in the middle of everything.

use super::*;
use proptest::prelude::*;
use world::*;

/// Two regions with two ranks and one.
fn pair(seed: u64) -> World {
    World::new(&[2, 1], plan_of(vec![tree(1, &[0, 1], &[])]), seed, 600)
}

const EAST: GatewayId = GatewayId(0);
const WEST: GatewayId = GatewayId(1);
const RANKS: u32 = 3;

fn committed(world: &World, rank: u32) -> Vec<u64> {
    let step = |event: &RankEvent| match event {
        RankEvent::Committed { step } => Some(step.0),
        _ => None,
    };
    world.events[&RankId(rank)].iter().filter_map(step).collect()
}

fn commit_failures(world: &World, rank: u32) -> Vec<Failure> {
    let failure = |event: &RankEvent| match event {
        RankEvent::CommitFailed { failure, .. } => Some(failure.clone()),
        _ => None,
    };
    world.events[&RankId(rank)].iter().filter_map(failure).collect()
}

/// What a rank was told of earlier steps when its last epoch began.
fn told_committed(world: &World, rank: u32) -> Option<u64> {
    let began = world.events[&RankId(rank)].iter().rev().find_map(|event| match event {
        RankEvent::EpochBegan { committed, .. } => Some(*committed),
        _ => None,
    });
    began.flatten().map(|step| step.0)
}

fn post_and_run_all(world: &mut World, elements: u64) {
    let posts: Vec<_> = (0..RANKS).map(|r| (r, world.epoch_of(RankId(r)).1.0)).collect();
    for (rank, next) in posts {
        world.post(RankId(rank), next, elements);
    }
    world.run();
}

/// A script for each rank: posts and commits, in order.
#[derive(Debug, Clone, Copy)]
enum Deed {
    Post(u64),
    Commit(u64, u64, u64),
}

/// Steps of one to three collectives, each step committed.
fn script(lengths: &[Vec<u64>]) -> Vec<Deed> {
    let (mut deeds, mut next) = (Vec::new(), 0);
    for (step, lengths) in lengths.iter().enumerate() {
        let from = next;
        for length in lengths {
            deeds.push(Deed::Post(*length));
            next += 1;
        }
        deeds.push(Deed::Commit(step as u64, from, next));
    }
    deeds
}

/// Ranks follow the script, each at its own pace, as long as `go_on`.
fn follow(world: &mut World, deeds: &[Deed], mut go_on: impl FnMut(&mut World) -> bool) {
    let mut at = [0usize; RANKS as usize];
    let mut next = [0u64; RANKS as usize];
    loop {
        let behind: Vec<usize> = (0..RANKS as usize).filter(|r| at[*r] < deeds.len()).collect();
        if behind.is_empty() || !go_on(world) {
            return;
        }
        let rank = behind[world.dice.roll(behind.len())];
        let id = RankId(rank as u32);
        match deeds[at[rank]] {
            Deed::Post(length) => {
                world.post(id, next[rank], length);
                next[rank] += 1;
            }
            Deed::Commit(step, from, below) => world.commit(id, step, from..below),
        }
        at[rank] += 1;
        for _ in 0..world.dice.roll(20) {
            world.step();
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Vec<u64>>> {
    proptest::collection::vec(proptest::collection::vec(0u64..120, 0..4), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any order, lanes lost on the way: every commit is confirmed, in order, and (checked by
    /// the world) never before all ranks have what it covers.
    #[test]
    fn every_commit_is_confirmed_once_every_rank_has_all(seed: u64, steps in steps()) {
        let mut world = pair(seed);
        follow(&mut world, &script(&steps), |_| true);
        world.run();
        for rank in 0..RANKS {
            let all: Vec<u64> = (0..steps.len() as u64).collect();
            prop_assert_eq!(committed(&world, rank), all);
        }
        world.assert_clean();
    }

    /// The connection is lost at any point: every commit gets one answer, and if one rank was
    /// told that a step is complete, the next epoch tells all.
    #[test]
    fn a_step_that_one_rank_saw_confirmed_is_known_to_all_afterwards(
        seed: u64, steps in steps(), after in 0..40usize, more in 0..200usize,
    ) {
        let mut world = pair(seed);
        let mut left = after;
        follow(&mut world, &script(&steps), |_| {
            left = left.saturating_sub(1);
            left > 0
        });
        for _ in 0..more {
            world.step();
        }
        world.lose_connection(EAST, WEST);
        world.run();
        let last = (0..RANKS).filter_map(|rank| committed(&world, rank).last().copied()).max();
        for rank in 0..RANKS {
            let asked = world.steps.keys().filter(|(of, _)| of.0 == rank).count();
            let answered = committed(&world, rank).len() + commit_failures(&world, rank).len();
            prop_assert_eq!(answered, asked);
            prop_assert_eq!(told_committed(&world, rank), last);
        }
        post_and_run_all(&mut world, 50);
        for rank in 0..RANKS {
            let (_, next) = world.epoch_of(RankId(rank));
            world.steps.clear();
            world.commit(RankId(rank), 900, next.0..next.0 + 1);
        }
        world.run();
        for rank in 0..RANKS {
            prop_assert_eq!(committed(&world, rank).last().copied(), Some(900));
        }
        world.assert_clean();
    }

    /// A rank attaches again in the middle: streams of the old epoch go on for a while and
    /// read slots, but nobody gets a wrong sum (checked by the world), and every post ends.
    #[test]
    fn an_epoch_that_ends_under_open_streams_spoils_no_sum(
        seed: u64, after in 0..200usize, who in 0..RANKS, lengths in proptest::collection::vec(0u64..200, 1..5),
    ) {
        let mut world = pair(seed);
        for (sequence, length) in lengths.iter().enumerate() {
            for rank in 0..RANKS {
                world.post(RankId(rank), sequence as u64, *length);
            }
        }
        for _ in 0..after {
            world.step();
        }
        let (gateway, now) = (world.gateway_of(RankId(who)), world.now);
        world.session(gateway).handle_attach(RankId(who), now);
        world.run();
        for rank in 0..RANKS {
            let ended = |e: &RankEvent| {
                matches!(e, RankEvent::Failed { .. } | RankEvent::ContributionFree { .. })
            };
            prop_assert_eq!(world.count(rank, ended), lengths.len());
            prop_assert_eq!(world.epoch_of(RankId(rank)).0, Epoch(2));
        }
        post_and_run_all(&mut world, 70);
        world.assert_clean();
    }

    /// A gateway drains at any point: what its ranks have all posted is finished, the rest
    /// fails everywhere naming it, commits that wait are confirmed, then the epoch ends.
    #[test]
    fn a_drain_finishes_what_is_posted_and_fails_the_rest(
        seed: u64, steps in steps(), after in 1..30usize, who in 0..2u16,
    ) {
        let mut world = pair(seed);
        let mut left = after;
        follow(&mut world, &script(&steps), |_| {
            left -= 1;
            left > 0
        });
        let (gateway, now) = (GatewayId(who), world.now);
        let posted_by_all = |world: &World| {
            let posts = |rank| world.memory[usize::from(world.gateway_of(RankId(rank)).0)]
                .keys()
                .filter(|b| matches!(b, Buffer::Contribution(_, of) if of.0 == rank))
                .count();
            (0..RANKS).map(posts).min().expect("ranks")
        };
        let finished = posted_by_all(&world);
        let from = world.session(gateway).oldest();
        world.session(gateway).handle_drain(Span::from_secs(30), now);
        world.collect(gateway);
        world.run();
        for rank in 0..RANKS {
            let buffers = world.memory[usize::from(world.gateway_of(RankId(rank)).0)].keys();
            let refused = |b: &&Buffer| {
                matches!(b, Buffer::Result(sequence, of) if of.0 == rank && *sequence >= from)
            };
            let refused = buffers.filter(refused).count();
            let failed = world.count(rank, |e| matches!(e, RankEvent::Failed { .. }));
            prop_assert_eq!(failed, refused, "told at once, rank {}", rank);
        }
        // Time passes only when nothing else happens.
        while let Some(at) = world.session(gateway).poll_timeout() {
            world.now = world.now.max(at);
            let now = world.now;
            world.session(gateway).handle_timeout(now);
            world.run();
        }
        prop_assert!(world.session(gateway).is_drained());
        for rank in 0..RANKS {
            let ready = world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. }));
            prop_assert_eq!(ready, finished, "rank {}", rank);
            let asked = world.steps.keys().filter(|(of, _)| of.0 == rank).count();
            let answered = committed(&world, rank).len() + commit_failures(&world, rank).len();
            prop_assert_eq!(answered, asked);
            for event in &world.events[&RankId(rank)] {
                if let RankEvent::Failed { failure, .. } = event {
                    let name = if who == 0 { "gateway g0" } else { "gateway g1" };
                    prop_assert_eq!(failure.code, FailureCode::ShuttingDown);
                    prop_assert!(failure.text.contains(name), "{}", failure);
                }
            }
        }
        world.assert_clean();
    }
}

#[test]
fn a_commit_fails_with_what_each_region_is_known_to_have() {
    let mut world = pair(1);
    for sequence in 0..3 {
        for rank in 0..2 {
            world.post(RankId(rank), sequence, 40);
        }
    }
    for sequence in 0..2 {
        world.post(RankId(2), sequence, 40);
    }
    world.run();
    // West's rank commits two of the three, so that east hears that they are complete there.
    world.commit(RankId(2), 7, 0..2);
    world.commit(RankId(0), 8, 0..3);
    world.run();
    assert_eq!(committed(&world, 2), [7]);
    world.lose_connection(EAST, WEST);
    world.run();
    let failures = commit_failures(&world, 0);
    assert_eq!(failures.len(), 1);
    let Failure { code, text } = &failures[0];
    assert_eq!(*code, FailureCode::RegionLost);
    let told = [
        "step 8 is not known to be complete",
        "collectives 0 to 2",
        "at least those below 2: region r0, region r1",
        "gateway g1 cannot be reached",
    ];
    for part in told {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    assert_eq!((told_committed(&world, 0), told_committed(&world, 2)), (Some(7), Some(7)));
}

#[test]
fn a_commit_of_a_failed_collective_fails_and_the_next_one_does_not() {
    let mut world = pair(2);
    for rank in 0..RANKS {
        world.post(RankId(rank), 0, 10 + u64::from(rank));
        world.post(RankId(rank), 1, 10);
    }
    world.run();
    for rank in 0..RANKS {
        world.commit(RankId(rank), 1, 0..0);
    }
    world.run();
    for rank in 0..RANKS {
        assert_eq!(commit_failures(&world, rank)[0].code, FailureCode::Disagreement);
        world.post(RankId(rank), 2, 10);
    }
    world.run();
    for rank in 0..RANKS {
        world.commit(RankId(rank), 1, 2..3);
    }
    world.run();
    for rank in 0..RANKS {
        assert_eq!(committed(&world, rank), [1]);
    }
}

#[test]
fn a_commit_that_a_region_does_not_answer_ends_with_its_timeout() {
    let mut world = pair(3);
    for rank in 0..2 {
        world.post(RankId(rank), 0, 10);
    }
    world.commit(RankId(0), 5, 0..1);
    world.run();
    let status = world.session(EAST).status();
    assert_eq!(status.commits.len(), 1);
    assert_eq!(status.commits[0].awaited_gateways, [EAST, WEST]);
    let at = world.session(EAST).poll_timeout().expect("a deadline");
    world.session(EAST).handle_timeout(at);
    world.run();
    let failures = commit_failures(&world, 0);
    assert_eq!(failures[0].code, FailureCode::TimedOut, "{}", failures[0]);
}

/// A lane dies with every word about a commit on it: all of it is said again.
#[test]
fn words_about_commits_that_a_lane_took_with_it_are_repeated() {
    let mut world = pair(4);
    for rank in 0..RANKS {
        world.post(RankId(rank), 0, 10);
    }
    world.run();
    for rank in 0..RANKS {
        world.commit(RankId(rank), 1, 0..1);
    }
    world.messages.clear();
    for (one, other) in [(EAST, WEST), (WEST, EAST)] {
        world.session(one).handle_lane_lost(other);
    }
    world.run();
    for rank in 0..RANKS {
        assert_eq!(committed(&world, rank), [1]);
    }
}

/// Only one rank of one region commits; the others are asked.
#[test]
fn a_commit_needs_no_other_rank_to_commit() {
    let mut world = pair(5);
    world.post(RankId(0), 0, 10);
    world.post(RankId(2), 0, 10);
    world.commit(RankId(2), 1, 0..1);
    world.run();
    assert!(committed(&world, 2).is_empty());
    world.post(RankId(1), 0, 10);
    world.run();
    assert_eq!(committed(&world, 2), [1]);
}

/// A rank that commits its steps gets to commit the last one before its gateway leaves.
#[test]
fn a_drain_waits_for_the_commit_of_what_is_complete() {
    for commits in [true, false] {
        let mut world = pair(6);
        for step in 0..2 {
            for rank in 0..RANKS {
                world.post(RankId(rank), step, 10);
            }
            world.run();
            for rank in 0..RANKS {
                if step == 0 {
                    world.commit(RankId(rank), step, 0..1);
                }
            }
            world.run();
        }
        let now = world.now;
        world.session(WEST).handle_drain(Span::from_secs(30), now);
        world.run();
        assert_eq!(world.session(WEST).poll_timeout(), Some(now + Span::from_secs(30)));
        if commits {
            for rank in 0..RANKS {
                world.commit(RankId(rank), 1, 1..2);
            }
        } else {
            // Its next post is refused, so it knows.
            world.post(RankId(2), 2, 10);
        }
        world.run();
        assert_eq!(world.session(WEST).poll_timeout(), Some(TimeNs::default()));
        world.session(WEST).handle_timeout(now);
        world.run();
        assert!(world.session(WEST).is_drained());
        for rank in 0..RANKS {
            let last = if commits { vec![0, 1] } else { vec![0] };
            assert_eq!(committed(&world, rank), last);
        }
    }
}

#[test]
fn a_drain_ends_with_its_bound_and_does_not_join_again() {
    let mut world = pair(7);
    for rank in 0..2 {
        world.post(RankId(rank), 0, 10);
    }
    world.run();
    let until = world.now + Span::from_secs(30);
    let now = world.now;
    world.session(EAST).handle_drain(Span::from_secs(30), now);
    world.run();
    assert_eq!(world.session(EAST).poll_timeout(), Some(until));
    world.session(EAST).handle_timeout(until);
    world.run();
    assert!(world.session(EAST).is_drained());
    assert_eq!(failure_of(&world, 0), Some(FailureCode::ShuttingDown));
    world.lose_connection(EAST, WEST);
    world.run();
    assert_eq!(world.epoch_of(RankId(0)).0, Epoch(1));
}

#[test]
fn a_gateway_outside_any_epoch_is_drained_at_once() {
    let mut world = pair(8);
    let now = world.now;
    world.drop_connection(EAST, WEST);
    world.session(WEST).handle_drain(Span::from_secs(30), now);
    world.run();
    assert!(world.session(WEST).is_drained());
}

#[test]
fn a_commit_of_what_fails_later_fails_at_once() {
    let mut world = pair(9);
    world.post(RankId(0), 0, 10);
    world.commit(RankId(0), 1, 0..0);
    world.run();
    assert!(commit_failures(&world, 0).is_empty());
    world.post(RankId(2), 0, 11);
    world.run();
    let failures = commit_failures(&world, 0);
    assert_eq!(failures[0].code, FailureCode::Disagreement, "{}", failures[0]);
}

/// West's epoch ends while its last segments are still on the way: they may be read from the
/// rank's slots until their streams have stopped, and be whole in the east before it hears.
#[test]
fn slots_are_the_ranks_again_only_when_no_stream_reads_them() {
    for complete_in_west in [true, false] {
        let plan = plan_of(vec![tree(1, &[0, 1], &[])]);
        let mut world = World::new(&[1, 1], plan, 10, 1 << 20);
        for rank in 0..2 {
            world.post(RankId(rank), 0, 100);
        }
        let held_back = |stream: &mut Stream| stream.from == WEST || !complete_in_west;
        let mut held = Vec::new();
        loop {
            held.extend(world.streams.extract_if(.., held_back));
            if !world.step() {
                break;
            }
        }
        let now = world.now;
        world.session(WEST).handle_attach(RankId(1), now);
        world.collect(WEST);
        held.retain(|stream| stream.from == WEST);
        assert!(!held.is_empty());
        world.cuts_left = 0;
        for stream in held {
            world.streams.push(stream);
            for _ in 0..2 {
                world.move_stream(world.streams.len() - 1);
            }
        }
        world.run();
        let ready = |e: &RankEvent| matches!(e, RankEvent::ResultReady { .. });
        let free = |e: &RankEvent| {
            matches!(e, RankEvent::Failed { .. } | RankEvent::ContributionFree { .. })
        };
        assert_eq!(world.count(0, ready), 1, "whole in the east");
        assert_eq!(world.count(1, ready), usize::from(complete_in_west));
        assert_eq!(world.count(1, free), 1);
        assert_eq!(world.epoch_of(RankId(0)).0, Epoch(2));
        world.assert_clean();
    }
}

/// In a tree only the root is a neighbour: all the same nobody's progress has a deadline before
/// the last post anywhere, and everybody can say who is awaited.
#[test]
fn deadlines_start_at_the_last_post_anywhere() {
    let plan = plan_of(vec![tree(1, &[0], &[(1, 0), (2, 1), (3, 1)])]);
    let mut world = World::new(&[1, 2, 1, 1], plan, 11, 1 << 20);
    for rank in 0..4 {
        world.post(RankId(rank), 0, 50);
    }
    world.run();
    world.now = world.now + Span::from_secs(50);
    for gateway in (0..4).map(GatewayId) {
        let status = world.session(gateway).status();
        let awaited = &status.collectives[0];
        if gateway == GatewayId(3) {
            assert_eq!(awaited.awaited_ranks, [RankId(4)]);
            assert_eq!(awaited.awaited_gateways, []);
        } else {
            assert_eq!(awaited.awaited_gateways, [GatewayId(3)], "as {gateway} knows");
        }
        let now = world.now;
        world.session(gateway).handle_timeout(now);
        world.collect(gateway);
    }
    world.run();
    for rank in 0..4 {
        assert_eq!(failure_of(&world, rank), None, "rank {rank}");
    }
    world.post(RankId(4), 0, 50);
    world.run();
    for rank in 0..5 {
        assert_eq!(world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. })), 1);
    }
    world.assert_clean();
}

/// Commits that are given up leave questions behind at the other region: too many of them are
/// the group's own affair.
#[test]
fn more_questions_than_are_remembered_end_the_epoch_alone() {
    let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 6, 1000);
    let (epoch, Sequence(first)) = world.epoch_of(RankId(0));
    let (asker, now) = (GatewayId(0), world.now);
    let session = world.session(GatewayId(1));
    let ranges = (0..64).flat_map(|from| (from + 1..=64).map(move |below| (from, below)));
    let refused = ranges.into_iter().find_map(|(from, below)| {
        let (from, below) = (Sequence(first + from), Sequence(first + below));
        session.handle_message(asker, Message::Ask { epoch, from, below }, now).err()
    });
    let error = refused.expect("2080 questions");
    assert!(matches!(error, PeerError::TooManyAsks { .. }) && error.is_of_ranks(), "{error}");
    session.handle_overreach(asker, &error, now);
    world.run();
    for rank in 0..2 {
        let (next, sequence) = world.epoch_of(RankId(rank));
        assert_eq!(next, Epoch(epoch.0 + 1));
        world.post(RankId(rank), sequence.0, 10);
    }
    world.run();
    assert_eq!(world.count(1, |e| matches!(e, RankEvent::ResultReady { .. })), 1);
}

/// Of a gateway without peers nothing else moves.
#[test]
fn local_work_that_goes_on_is_no_stall() {
    let mut world = World::new(&[2], plan_of(vec![tree(1, &[0], &[])]), 3, 1 << 20);
    let length = 10 * SEGMENT_BYTES / 8;
    (0..2).for_each(|rank| world.post(RankId(rank), 0, length));
    let mut rounds = 0;
    while world.count(0, |event| matches!(event, RankEvent::ResultReady { .. })) == 0 {
        // Each job takes half of what nothing may move for.
        world.now = world.now + Span::from_secs(5);
        let now = world.now;
        world.session(GatewayId(0)).handle_timeout(now);
        world.collect(GatewayId(0));
        assert_eq!(failure_of(&world, 0), None, "after {rounds} jobs");
        assert!(world.step(), "stuck after {rounds} jobs");
        rounds += 1;
    }
    assert!(rounds > 5, "{rounds} jobs are no test");
}

/// However much of a collective is here, its receipts are said again as a few ranges.
#[test]
fn what_a_lost_lane_makes_repeat_does_not_grow_with_what_was_received() {
    let mut world = World::new(&[1, 1], plan_of(vec![tree(1, &[0, 1], &[])]), 3, 1 << 20);
    let receipts = |world: &World| {
        let queue = world.messages.get(&(WEST, EAST));
        let is_one = |message: &&Message| matches!(message, Message::Receipt { .. });
        queue.map_or(0, |queue| queue.iter().filter(is_one).count())
    };
    // 625 segments each way.
    for rank in 0..2 {
        world.post(RankId(rank), 0, 10_000);
    }
    // All of it arrives, and nobody hears that it did.
    loop {
        for queue in world.messages.values_mut() {
            queue.retain(|message| !matches!(message, Message::Receipt { .. }));
        }
        if !world.step() {
            break;
        }
    }
    assert_eq!(receipts(&world), 0);
    for (one, other) in [(EAST, WEST), (WEST, EAST)] {
        world.session(one).handle_lane_lost(other);
        world.collect(one);
    }
    assert_eq!(receipts(&world), 1, "for 625 segments");
    world.run();
    world.assert_clean();
}
