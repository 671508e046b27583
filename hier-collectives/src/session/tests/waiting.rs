//! Ranks and peers that keep others waiting: timeouts, stalls, lost ranks, contributions that come
//! after their posts.

use super::fabrics::*;
use super::world::*;
use crate::descriptor::*;
use crate::ids::*;
use crate::post::*;
use crate::session::SessionNote;
use crate::wire::*;
use units::*;

#[test]
fn a_missing_rank_is_named_after_the_timeout() {
    for impatient in [GatewayId(0), GatewayId(1)] {
        missing_rank_is_named_by(impatient);
    }
}

fn missing_rank_is_named_by(impatient: GatewayId) {
    let mut world = World::new(&[2, 1], plan_of(shapes().swap_remove(1).1), 1, 1000);
    world.post(RankId(0), 0, 10);
    world.post(RankId(2), 0, 10);
    world.run();
    let later = world.now + Span::from_secs(61);
    assert!(world.session(impatient).poll_timeout().is_some_and(|at| at < later));
    world.session(impatient).handle_timeout(later);
    world.run();
    for rank in [0, 2] {
        let text = world.events[&RankId(rank)].iter().find_map(|event| match event {
            RankEvent::Failed { failure, .. } => Some(failure.to_string()),
            _ => None,
        });
        let text = text.expect("failed");
        assert!(text.contains("waiting for rank 1 (r0);"), "rank {rank}: {text}");
    }
    assert_eq!(failure_of(&world, 0), Some(FailureCode::TimedOut));
    assert_eq!(failure_of(&world, 2), Some(FailureCode::TimedOut));
    // The late rank is notified of the failure when it posts.
    world.post(RankId(1), 0, 10);
    world.run();
    assert_eq!(failure_of(&world, 1), Some(FailureCode::TimedOut));
    for rank in 0..3 {
        world.post(RankId(rank), 1, 10);
    }
    world.run();
    for rank in 0..3 {
        assert_eq!(world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. })), 1);
    }
}

#[test]
fn an_end_of_a_collective_names_the_awaited_peers() {
    let mut world = World::new(&[2, 1], plan_of(shapes().swap_remove(1).1), 1, 1000);
    world.post(RankId(0), 0, 10);
    world.post(RankId(1), 0, 10);
    world.run();
    world.now = world.now + Span::from_ms(7);
    let late = world.now;
    world.post(RankId(2), 0, 10);
    world.run();
    // Nobody else posts the next one.
    world.post(RankId(2), 1, 10);
    world.run();
    let at = world.now + Span::from_secs(61);
    world.session(GatewayId(1)).handle_timeout(at);
    world.run();
    let end = |(gateway, note): &(GatewayId, SessionNote)| match note {
        SessionNote::Completed { begun, timing, awaited, .. } => {
            Some((gateway.0, [*begun < late, timing.posted < late], awaited.clone()))
        }
        SessionNote::Failed { begun, awaited, .. } => {
            Some((gateway.0, [begun.is_some_and(|at| at < late), false], awaited.clone()))
        }
        _ => None,
    };
    let mut ends: Vec<_> = world.notes.iter().filter_map(end).collect();
    // Stable, so that the ends of one gateway stay in order.
    ends.sort_by_key(|(gateway, ..)| *gateway);
    let [east, west] = [0, 1].map(GatewayId);
    let expected = [
        (0, [true, true], vec![west]),
        (0, [false, false], vec![]),
        (1, [true, false], vec![]),
        (1, [false, false], vec![east]),
    ];
    assert_eq!(ends, expected);
}

#[test]
fn a_lost_rank_fails_collectives_and_may_return() {
    let mut world = World::new(&[2, 1], plan_of(shapes().swap_remove(1).1), 2, 1000);
    for rank in 0..3 {
        world.post(RankId(rank), 0, 10);
    }
    world.run();
    world.post(RankId(2), 1, 10);
    let now = world.now;
    world.session(GatewayId(0)).handle_detach(RankId(1), now);
    world.run();
    assert_eq!(failure_of(&world, 2), Some(FailureCode::RankLost));
    world.post(RankId(0), 1, 10);
    world.run();
    assert_eq!(failure_of(&world, 0), Some(FailureCode::RankLost));
    world.session(GatewayId(0)).handle_attach(RankId(1), now);
    world.run();
    for rank in 0..3 {
        let (epoch, next) = world.epoch_of(RankId(rank));
        assert_eq!(epoch, Epoch(2));
        world.post(RankId(rank), next.0, 33);
    }
    world.run();
    for rank in 0..3 {
        assert_eq!(world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. })), 2);
    }
}

#[test]
fn nothing_moving_after_the_last_post_is_a_stall() {
    let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 3, 1000);
    world.post(RankId(0), 0, 100);
    world.post(RankId(1), 0, 100);
    while !world.streams.is_empty() || world.messages.values().any(|queue| !queue.is_empty()) {
        world.streams.clear();
        if !world.step() {
            break;
        }
    }
    // Repeated messages are no progress, and defer no deadline.
    let at = world.session(GatewayId(0)).poll_timeout().expect("a deadline");
    let (least, wait) = (Span::from_secs(10), at.since(world.now));
    assert!(wait > Span::from_ms(9_990) && wait <= least, "{wait}");
    world.now = world.now + Span::from_secs(9);
    for (one, other) in [(0, 1), (1, 0)] {
        world.session(GatewayId(one)).handle_connection_lane_lost(GatewayId(other));
        world.collect(GatewayId(one));
    }
    while world.messages.values().any(|queue| !queue.is_empty()) && world.step() {
        world.streams.clear();
    }
    assert_eq!(world.session(GatewayId(0)).poll_timeout(), Some(at));
    let missing = world.session(GatewayId(0)).missing_bytes(Sequence(0));
    let missing: Vec<_> =
        missing.iter().map(|of| (of.gateway, of.awaited, of.unreceipted)).collect();
    assert_eq!(missing, [(GatewayId(1), 800, 800)]);
    assert_eq!(world.session(GatewayId(0)).missing_bytes(Sequence(1)), []);
    world.now = at;
    world.session(GatewayId(0)).handle_timeout(at);
    world.run();
    for rank in 0..2 {
        let failure = world.events[&RankId(rank)].iter().find_map(|event| match event {
            RankEvent::Failed { failure, .. } => Some(failure.clone()),
            _ => None,
        });
        let Failure { code, text } = failure.expect("failed");
        assert_eq!(code, FailureCode::Stalled);
        for part in ["nothing moved for 10 s", "7 segments (800 B; the first is 0 of tree 0)"] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        assert!(text.contains("missing on gateway g0") && text.contains("gateway g1"), "{text}");
    }
}

/// Its own time without a processor says nothing about its peers.
#[test]
fn a_stall_counts_from_when_the_gateway_runs() {
    let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 3, 1000);
    (0..2).for_each(|rank| world.post(RankId(rank), 0, 100));
    while world.streams.is_empty() && world.step() {}
    world.streams.clear();
    while world.step() {
        world.streams.clear();
    }
    let session = world.session(GatewayId(0));
    let at = session.poll_timeout().expect("a deadline");
    let resumed = at + Span::from_secs(2);
    session.handle_scheduling_delay(resumed);
    session.note_peer_silence(GatewayId(1), Span::from_ms(12_345));
    let later = session.poll_timeout().expect("a deadline");
    assert_eq!(later, resumed + Span::from_secs(10));
    session.handle_timeout(at + Span::from_secs(3));
    world.run();
    assert_eq!(failure_of(&world, 0), None);
    world.session(GatewayId(0)).handle_timeout(later);
    world.run();
    let failure = world.events[&RankId(0)].iter().find_map(|event| match event {
        RankEvent::Failed { failure, .. } => Some(failure.to_string()),
        _ => None,
    });
    let text = failure.expect("failed");
    assert!(text.contains("; gateway g1 has acknowledged nothing for 12.3 s; "), "{text}");
}

/// One gateway receives for a minute what another sends slowly; the third waits for both.
#[test]
fn arriving_bytes_defer_a_stall_everywhere() {
    let mut world =
        World::new(&[1, 1, 1], plan_of(vec![tree(1, &[0], &[(1, 0), (2, 1)])]), 3, 1000);
    (0..3).for_each(|rank| world.post(RankId(rank), 0, 100));
    let arriving = loop {
        let lease = |stream: &Stream| (stream.to == GatewayId(1)).then(|| lease_of(stream))?;
        if let Some(lease) = world.streams.iter().find_map(lease) {
            break lease;
        }
        assert!(world.step(), "a stream to gateway 1");
    };
    let slow = world.streams.iter().position(|stream| lease_of(stream) == Some(arriving));
    let slow = world.streams.swap_remove(slow.expect("there"));
    world.streams.clear();
    while world.step() {
        world.streams.clear();
    }
    let begun = world.now;
    for second in 1..=60 {
        world.now = begun + Span::from_secs(second);
        let now = world.now;
        for id in 0..3 {
            world.session(GatewayId(id)).handle_timeout(now);
            world.collect(GatewayId(id));
        }
        world.session(GatewayId(1)).handle_arrival_progress(arriving, now);
        world.session(GatewayId(1)).handle_arrival_progress(arriving, now);
        world.collect(GatewayId(1));
        let said = world.messages.values().flatten();
        assert_eq!(said.filter(|m| matches!(m, Message::Moving { .. })).count(), 2);
        while world.step() {}
    }
    assert!((0..3).all(|rank| failure_of(&world, rank).is_none()));
    world.streams.push(slow);
    let at = world.now + Span::from_secs(11);
    world.session(GatewayId(2)).handle_timeout(at);
    world.collect(GatewayId(2));
    world.run();
    assert!((0..3).all(|rank| failure_of(&world, rank) == Some(FailureCode::Stalled)));
}

/// The gateway has the result, and others hold its segments until their ranks post.
#[test]
fn an_untaken_broadcast_ends_with_its_roots_timeout() {
    let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 5, 1000);
    world.patterns.insert(0, Pattern::Broadcast { from: RankId(0) });
    world.post(RankId(0), 0, 10);
    world.run();
    assert_eq!(world.count(0, |e| matches!(e, RankEvent::ResultReady { .. })), 1);
    assert_eq!(world.count(0, |e| matches!(e, RankEvent::ContributionFree { .. })), 0);
    let at = world.session(GatewayId(0)).poll_timeout().expect("the root's timeout");
    assert!(at <= world.now + Span::from_secs(60));
    world.now = at;
    world.session(GatewayId(0)).handle_timeout(at);
    world.run();
    assert_eq!(world.count(0, |e| matches!(e, RankEvent::ContributionFree { .. })), 1);
    for rank in 0..2 {
        let (epoch, next) = world.epoch_of(RankId(rank));
        assert_eq!(epoch, Epoch(2));
        world.post(RankId(rank), next.0, 33);
    }
    world.run();
    assert_eq!(world.count(1, |e| matches!(e, RankEvent::ResultReady { .. })), 1);
}

/// Memory for partials that a failed collective gives back goes to the next one.
#[test]
fn memory_of_a_failed_collective_starts_the_next() {
    let plan = plan_of(vec![tree(1, &[0, 1], &[])]);
    let mut world = World::new(&[2, 1], plan, 3, SEGMENT_BYTES);
    for sequence in 0..2 {
        for rank in 0..3 {
            world.post(RankId(rank), sequence, 16);
        }
    }
    loop {
        world.streams.retain(|stream| stream.header.key.sequence != Sequence(0));
        if !world.step() {
            break;
        }
    }
    let ready = |e: &RankEvent| matches!(e, RankEvent::ResultReady { .. });
    assert_eq!(world.count(0, ready), 0, "the memory is in use");
    let now = world.now;
    let failure = Failure::new(FailureCode::Stalled, "t");
    world.session(GatewayId(0)).fail_collective(Sequence(0), failure, None, now);
    world.run();
    for rank in 0..3 {
        assert_eq!(failure_of(&world, rank), Some(FailureCode::Stalled));
        assert_eq!(world.count(rank, ready), 1);
    }
    world.assert_clean();
}

/// A world of two ranks, each on its own gateway, that have posted sums of 100 elements. No byte of
/// them has come.
fn posted_without_bytes(seed: u64) -> World {
    let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), seed, 1000);
    world.streamed_of_three = 3;
    world.post(RankId(0), 0, 100);
    world.post(RankId(1), 0, 100);
    world
}

/// The last failure of a rank.
fn failure_text(world: &World, rank: u32) -> String {
    let mut failures = world.events[&RankId(rank)].iter().rev().filter_map(|event| match event {
        RankEvent::Failed { failure, .. } => Some(failure.to_string()),
        _ => None,
    });
    failures.next().expect("failed")
}

#[test]
fn segments_leave_before_the_whole_contribution_is_here() {
    let mut world = posted_without_bytes(1);
    let mut left_early = false;
    while !world.arriving.is_empty() {
        for key in world.arriving.keys().copied().collect::<Vec<_>>() {
            world.arrive(key.0, key.1);
        }
        // One that was not here can neither be sent nor be added to what comes.
        left_early |= !world.arriving.is_empty() && !world.streams.is_empty();
        while !world.streams.is_empty() {
            world.move_stream(0);
        }
    }
    assert!(left_early, "nothing moved before the last byte");
    world.run();
    for rank in 0..2 {
        assert_eq!(world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. })), 1);
    }
}

#[test]
fn a_rank_that_goes_before_its_bytes_fails_its_collective() {
    let mut world = posted_without_bytes(2);
    world.arrive(RankId(0), Sequence(0));
    world.withheld.extend([RankId(0), RankId(1)]);
    world.run();
    let now = world.now;
    world.session(GatewayId(0)).handle_detach(RankId(0), now);
    world.run();
    for rank in 0..2 {
        assert_eq!(failure_of(&world, rank), Some(FailureCode::RankLost));
        let text = failure_text(&world, rank);
        assert!(text.contains("rank 0 (r0) went away before all of its contribution"), "{text}");
    }
    // Bytes that were under way change nothing.
    world.session(GatewayId(0)).handle_contribution_bytes(RankId(0), Sequence(0), None, now);
    world.run();
    assert_eq!(world.count(0, |e| matches!(e, RankEvent::ResultReady { .. })), 0);
}

#[test]
fn bytes_that_never_come_are_a_stall_with_their_rank() {
    let mut world = posted_without_bytes(3);
    world.withheld.insert(RankId(0));
    world.run();
    let at = world.session(GatewayId(0)).poll_timeout().expect("a deadline");
    // Bytes that come defer it.
    world.now = TimeNs::from_ns(at.ns() - 1_000_000_000);
    let now = world.now;
    world.session(GatewayId(0)).handle_contribution_bytes(RankId(0), Sequence(0), Some(8), now);
    world.now = at;
    world.session(GatewayId(0)).handle_timeout(at);
    let later = world.session(GatewayId(0)).poll_timeout().expect("a deadline");
    assert!(later > at, "{later:?} {at:?}");
    // Progress elsewhere does not.
    world.now = at + Span::from_ms(1);
    let (moving, now) = (Message::Moving { epoch: Epoch(1) }, world.now);
    world.session(GatewayId(0)).handle_message(GatewayId(1), moving, now).expect("a report");
    assert_eq!(world.session(GatewayId(0)).poll_timeout(), Some(later));
    world.now = later;
    world.session(GatewayId(0)).handle_timeout(later);
    world.run();
    for rank in 0..2 {
        assert_eq!(failure_of(&world, rank), Some(FailureCode::Stalled));
        let text = failure_text(&world, rank);
        assert!(text.contains("the contribution of rank 0 (r0) behind its first 8 B"), "{text}");
    }
}

/// The last bytes come just after a progress report, or long before the peer's rank posts, so that the
/// peer waits for less time.
#[test]
fn the_gateway_that_awaits_bytes_is_the_first_to_fail() {
    for posts_last in [false, true] {
        let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 3, 1000);
        world.streamed_of_three = 3;
        world.withheld.insert(RankId(0));
        let (sender, peer) = (GatewayId(0), GatewayId(1));
        let begun = world.now;
        world.post(RankId(0), 0, 100);
        let posted_at = if posts_last { 9_000 } else { 0 };
        let mut events = [(posted_at, None), (2_000, Some(8)), (2_900, Some(16))];
        events.sort_unstable();
        for (ms, missing_from) in events {
            world.now = begun + Span::from_ms(ms);
            let now = world.now;
            if missing_from.is_none() {
                world.post(RankId(1), 0, 100);
            } else {
                let session = world.session(sender);
                session.handle_contribution_bytes(RankId(0), Sequence(0), missing_from, now);
            }
            world.run();
        }
        let reported = world.session(sender).poll_timeout().expect("a report");
        world.now = reported;
        world.session(sender).handle_timeout(reported);
        world.run();
        let [first, second] =
            [sender, peer].map(|id| world.session(id).poll_timeout().expect("one"));
        assert!(first > reported + Span::from_secs(5), "no further report is due");
        assert!(second >= first + Span::from_ms(900), "{first:?} {second:?}");
        world.now = first;
        world.session(sender).handle_timeout(first);
        world.run();
        let text = failure_text(&world, 1);
        assert!(text.contains("the contribution of rank 0 (r0) behind its first 16 B"), "{text}");
    }
}
