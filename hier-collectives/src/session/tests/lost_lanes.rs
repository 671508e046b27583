//! Messages that a lane lost with it: they are repeated, and epochs agree again.

use super::fabrics::*;
use super::world::*;
use crate::ids::*;
use crate::post::*;
use crate::wire::*;

#[test]
fn a_failure_lost_with_its_lane_is_repeated() {
    let mut world = World::new(&[2, 1], plan_of(vec![tree(1, &[0, 1], &[])]), 1, 1 << 20);
    let (first, second) = (GatewayId(0), GatewayId(1));
    world.post(RankId(0), 0, 100);
    world.post(RankId(1), 0, 101);
    world.collect(first);
    world.messages.clear();
    for (one, other) in [(first, second), (second, first)] {
        world.session(one).handle_connection_lane_lost(other);
    }
    world.run();
    world.post(RankId(2), 0, 100);
    world.run();
    for rank in 0..3 {
        assert_eq!(failure_of(&world, rank), Some(FailureCode::Disagreement), "rank {rank}");
    }
    assert!(world.sessions.iter().all(|session| session.collectives.is_empty()));
}

/// The first gateway leaves an epoch before the other is ready for it, or a lane is lost with its
/// End: the next epoch begins all the same.
#[test]
fn an_end_reaches_a_peer_that_missed_it() {
    for lost_with_its_lane in [false, true] {
        let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 7, 1000);
        let (first, second) = (GatewayId(0), GatewayId(1));
        let now = world.now;
        if lost_with_its_lane {
            world.session(first).end_epoch(Failure::new(FailureCode::EpochEnded, "t"), None, now);
            world.collect(first);
            world.messages.clear();
            for (one, other) in [(first, second), (second, first)] {
                world.session(one).handle_connection_lane_lost(other);
            }
        } else {
            // The first gateway enters a new epoch, and leaves it before the other's Ready.
            world.session(second).end_epoch(Failure::new(FailureCode::EpochEnded, "t"), None, now);
            world.collect(second);
            while world.session(first).epoch.number() == Epoch(1) {
                assert!(world.step());
            }
            world.session(first).end_epoch(Failure::new(FailureCode::EpochEnded, "t"), None, now);
        }
        world.run();
        for rank in 0..2 {
            let (epoch, next) = world.epoch_of(RankId(rank));
            assert!(epoch > Epoch(1), "{epoch}");
            world.post(RankId(rank), next.0, 10);
        }
        world.run();
        for rank in 0..2 {
            let ready = world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. }));
            assert_eq!(ready, 1, "rank {rank}, lost with its lane: {lost_with_its_lane}");
        }
    }
}

/// The other gateway fails a collective that is complete here. Its Fail ends the epoch, so that
/// neither gateway waits for receipts that never come or takes the next collective for the last.
#[test]
fn a_remote_failure_of_a_completed_collective_ends_the_epoch() {
    for freed in [false, true] {
        let mut world = World::new(&[1, 1], plan_of(vec![tree(1, &[0, 1], &[])]), 3, 1000);
        let (first, second) = (GatewayId(0), GatewayId(1));
        for rank in 0..2 {
            world.post(RankId(rank), 0, 10);
        }
        // Nothing of the first gateway's bytes arrives.
        let mut held = Vec::new();
        loop {
            held.extend(world.streams.extract_if(.., |stream| stream.from == first));
            if !world.step() {
                break;
            }
        }
        assert_eq!(world.count(0, |e| matches!(e, RankEvent::ResultReady { .. })), 1);
        if freed {
            let SegmentKey { sequence, tree, segment } = held[0].header.key;
            let (epoch, now, segments) = (Epoch(1), world.now, segment.0..segment.0 + 1);
            let receipt = Message::Receipt { epoch, sequence, tree, segments };
            assert_eq!(world.session(first).handle_message(second, receipt, now), Ok(()));
        }
        let at = world.session(second).poll_timeout().expect("a deadline");
        world.now = at;
        world.session(second).handle_timeout(at);
        world.run();
        assert_eq!(failure_of(&world, 1), Some(FailureCode::Stalled));
        assert_eq!(world.count(0, |e| matches!(e, RankEvent::ContributionFree { .. })), 1);
        for rank in 0..2 {
            let (epoch, next) = world.epoch_of(RankId(rank));
            assert_eq!(epoch, Epoch(2), "rank {rank}");
            world.post(RankId(rank), next.0, 10);
        }
        world.run();
        assert_eq!(world.count(0, |e| matches!(e, RankEvent::ResultReady { .. })), 2);
        assert!(world.sessions.iter().all(|session| session.collectives.is_empty()));
    }
}

/// A collective is complete at one end and its receipts are lost with a lane: they are repeated.
#[test]
fn receipts_lost_with_their_lane_are_repeated() {
    let mut world = World::new(&[1, 1], plan_of(vec![tree(1, &[0, 1], &[])]), 3, 1000);
    let (first, second) = (GatewayId(0), GatewayId(1));
    for rank in 0..2 {
        world.post(RankId(rank), 0, 100);
    }
    loop {
        if let Some(queue) = world.messages.get_mut(&(second, first)) {
            queue.retain(|message| !matches!(message, Message::Receipt { .. }));
        }
        if !world.step() {
            break;
        }
    }
    assert_eq!(world.count(1, |e| matches!(e, RankEvent::ContributionFree { .. })), 1);
    assert_eq!(world.count(0, |e| matches!(e, RankEvent::ContributionFree { .. })), 0);
    for (one, other) in [(first, second), (second, first)] {
        world.session(one).handle_connection_lane_lost(other);
    }
    world.run();
    assert_eq!(world.count(0, |e| matches!(e, RankEvent::ContributionFree { .. })), 1);
    world.assert_clean();
}

/// One end notices that the lane is lost before the other does, whose answers are lost on it.
#[test]
fn receipts_are_repeated_when_one_end_notices_late() {
    let mut world = World::new(&[1, 1], plan_of(vec![tree(1, &[0, 1], &[])]), 3, 1000);
    let (first, second) = (GatewayId(0), GatewayId(1));
    for rank in 0..2 {
        world.post(RankId(rank), 0, 100);
    }
    let deaf = |world: &mut World| {
        loop {
            if let Some(queue) = world.messages.get_mut(&(second, first)) {
                queue.retain(|message| !matches!(message, Message::Receipt { .. }));
            }
            if !world.step() {
                break;
            }
        }
    };
    deaf(&mut world);
    world.session(first).handle_connection_lane_lost(second);
    world.collect(first);
    deaf(&mut world);
    assert_eq!(world.count(0, |e| matches!(e, RankEvent::ContributionFree { .. })), 0);
    world.session(second).handle_connection_lane_lost(first);
    world.run();
    assert_eq!(world.count(0, |e| matches!(e, RankEvent::ContributionFree { .. })), 1);
    world.assert_clean();
}
