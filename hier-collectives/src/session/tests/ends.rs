//! Drains, ends of epochs at any moment, and deadlines.

use super::fabrics::*;
use super::steps::*;
use super::world::*;
use crate::ids::*;
use crate::post::*;
use crate::session::*;
use crate::wire::*;
use proptest::prelude::*;
use units::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// A rank attaches again in the middle, while streams of the old epoch still read slots. No
    /// rank gets a wrong sum (checked by the world), and every post ends.
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

    /// A gateway drains at any point. Collectives that all its ranks have posted finish, others
    /// fail everywhere and name the gateway, waiting commits are confirmed, then the epoch ends.
    #[test]
    fn a_drain_finishes_posted_collectives_and_fails_the_rest(
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
        let from = world.session(gateway).collectives.oldest_unposted();
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
            prop_assert_eq!(failed, refused, "failed at once, rank {}", rank);
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

/// A rank that commits its steps gets to commit the last one before its gateway leaves.
#[test]
fn a_drain_waits_for_the_commit_of_complete_collectives() {
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
            // The rank's next post is refused.
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
fn a_drain_ends_with_its_bound_and_joins_no_more() {
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

/// West's epoch ends while its last segments are still on the way. Their streams may read the
/// rank's slots until they stop, and may be whole in the east before End arrives there.
#[test]
fn slots_are_freed_only_when_no_stream_reads_them() {
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

/// In a tree only the root is a neighbour. Still no stall deadline runs before the last post
/// anywhere, and every gateway can name the awaited ranks.
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
            assert_eq!(awaited.awaited_local_ranks, [RankId(4)]);
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

/// On a gateway without peers only local tasks make progress.
#[test]
fn local_work_under_way_is_no_stall() {
    let mut world = World::new(&[2], plan_of(vec![tree(1, &[0], &[])]), 3, 1 << 20);
    let length = 10 * SEGMENT_BYTES / 8;
    (0..2).for_each(|rank| world.post(RankId(rank), 0, length));
    let mut rounds = 0;
    while world.count(0, |event| matches!(event, RankEvent::ResultReady { .. })) == 0 {
        // Each task takes half of the stall deadline.
        world.now = world.now + Span::from_secs(5);
        let now = world.now;
        world.session(GatewayId(0)).handle_timeout(now);
        world.collect(GatewayId(0));
        assert_eq!(failure_of(&world, 0), None, "after {rounds} tasks");
        assert!(world.step(), "stuck after {rounds} tasks");
        rounds += 1;
    }
    assert!(rounds > 5, "{rounds} tasks are no test");
}

/// However many segments of a collective are here, their receipts are repeated as a few ranges.
#[test]
fn repeats_after_a_lost_lane_stay_bounded() {
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
    // All segments arrive, and all receipts are lost.
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
        world.session(one).handle_connection_lane_lost(other);
        world.collect(one);
    }
    assert_eq!(receipts(&world), 1, "for 625 segments");
    world.run();
    world.assert_clean();
}
