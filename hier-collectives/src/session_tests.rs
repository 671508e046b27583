//! Whole groups of sessions in one process: messages in order per pair, everything else in
//! any order, streams cut at random. Memory is checked, not only events.

use super::*;
use crate::descriptor::{Dtype, Pattern, ReduceOp};
use proptest::prelude::*;
use world::*;

/// Every rank posts collectives of these lengths, in any interleaving; each ends well everywhere.
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
fn all_post(world: &mut World, lengths: &[u64], mut between: impl FnMut(&mut World)) {
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

    /// Any shape, any order of events, streams cut at random, several collectives at once.
    #[test]
    fn every_result_is_the_sum_and_nothing_is_left(
        seed: u64,
        shape in 0..8usize,
        ranks in proptest::collection::vec(1u32..4, 4),
        lengths in proptest::collection::vec(0u64..200, 1..5),
        partials in 0u64..600,
    ) {
        let (gateways, trees) = shapes().swap_remove(shape);
        let mut world = World::new(&ranks[..gateways], plan_of(trees), seed, partials);
        all_post_and_end(&mut world, &lengths)?;
    }

    /// Reductions to a rank, broadcasts from one and barriers among all-reduces.
    #[test]
    fn who_gets_has_what_was_given(
        seed: u64,
        shape in 0..8usize,
        ranks in proptest::collection::vec(1u32..4, 4),
        posts in proptest::collection::vec((0u64..200, 1u8..5, 0u32..12), 1..6),
        partials in 0u64..600,
    ) {
        let (gateways, trees) = shapes().swap_remove(shape);
        let mut world = World::new(&ranks[..gateways], plan_of(trees), seed, partials);
        let world_size = world.fabric.world_size();
        let of = |code, root| Pattern::from_code(code, RankId(root));
        for (sequence, (_, code, root)) in (0..).zip(&posts) {
            let pattern = of(*code, root % world_size).or(of(*code, 0)).expect("known");
            world.patterns.insert(sequence, pattern);
        }
        let length = |(elements, code, _): &(u64, u8, u32)| if *code == 4 { 0 } else { *elements };
        all_post_and_end(&mut world, &posts.iter().map(length).collect::<Vec<_>>())?;
    }

    /// The plan changes while collectives are under way and lanes are lost: nothing fails,
    /// everything adds up.
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
        let hashes = world.sessions.iter().map(|s| s.status().plan.expect("an epoch").hash());
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
    fn a_lost_peer_ends_the_epoch_and_the_next_one_works(seed: u64, after in 0..200usize) {
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
        prop_assert!(world.sessions.iter().all(|session| session.live.is_empty()));
    }
}

#[test]
fn a_rank_that_never_posts_is_named_when_the_timeout_passes() {
    for impatient in [GatewayId(0), GatewayId(1)] {
        a_rank_that_never_posts_is_named_by(impatient);
    }
}

fn a_rank_that_never_posts_is_named_by(impatient: GatewayId) {
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
    // The late rank hears of it when it comes.
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
fn a_rank_that_goes_away_fails_what_waits_for_it_and_may_come_back() {
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
    // What is said again moves nothing, and puts nothing off.
    let at = world.session(GatewayId(0)).poll_timeout().expect("a deadline");
    let (least, wait) = (Span::from_secs(10), at.since(world.now));
    assert!(wait > Span::from_ms(9_990) && wait <= least, "{wait}");
    world.now = world.now + Span::from_secs(9);
    for (one, other) in [(0, 1), (1, 0)] {
        world.session(GatewayId(one)).handle_lane_lost(GatewayId(other));
        world.collect(GatewayId(one));
    }
    while world.messages.values().any(|queue| !queue.is_empty()) && world.step() {
        world.streams.clear();
    }
    assert_eq!(world.session(GatewayId(0)).poll_timeout(), Some(at));
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
        for told in ["nothing moved for 10 s", "7 segments (800 bytes; the first is 0 of tree 0)"] {
            assert!(text.contains(told), "{told:?} is not in {text:?}");
        }
        assert!(text.contains("missing on gateway g0") && text.contains("gateway g1"), "{text}");
    }
}

/// One gateway receives for a minute what another sends slowly; the third waits for both.
#[test]
fn bytes_that_still_arrive_put_a_stall_off_everywhere() {
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
        world.session(GatewayId(1)).handle_moving(arriving, now);
        world.session(GatewayId(1)).handle_moving(arriving, now);
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

/// Its gateway has the result, and others hold what it sent until their ranks post.
#[test]
fn a_broadcast_that_somebody_never_takes_ends_with_the_roots_timeout() {
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

#[test]
fn integer_averages_and_bad_weights_fail_for_everybody() {
    let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 4, 1000);
    let (epoch, sequence) = world.epoch_of(RankId(0));
    let (op, dtype) = (ReduceOp::Avg, Dtype::I64);
    let descriptor =
        Descriptor { op, dtype, elements: 4, layout_hash: 0, pattern: Pattern::AllReduce };
    let post = Post { epoch, sequence, descriptor, weight: 1.0, timeout: Span::from_secs(1) };
    let now = world.now;
    world.session(GatewayId(0)).handle_post(RankId(0), post, now);
    world.run();
    assert_eq!(failure_of(&world, 0), Some(FailureCode::BadPost));
    world.post(RankId(1), 0, 4);
    assert_eq!(failure_of(&world, 1), Some(FailureCode::BadPost));
}

#[test]
fn what_breaks_the_protocol_is_refused() {
    let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 5, 1000);
    let now = world.now;
    let (epoch, sequence) = world.epoch_of(RankId(0));
    let session = world.session(GatewayId(1));
    let far = Message::Grant { epoch, sequence: Sequence(5000), tree: TreeIndex(0), limit: 1 };
    assert!(matches!(
        session.handle_message(GatewayId(0), far, now),
        Err(PeerError::TooFarAhead { .. })
    ));
    let (boot, last, next) = (BootId(1), Epoch(0), Sequence(0));
    let join = Message::Join { boot, last, next, committed: None };
    assert!(matches!(
        session.handle_message(GatewayId(0), join.clone(), now),
        Err(PeerError::NotYours(_))
    ));
    assert!(matches!(session.handle_message(GatewayId(9), join, now), Err(PeerError::Stranger(_))));
    let header = |tree, segment, bytes| SegmentHeader {
        epoch,
        key: SegmentKey {
            sequence,
            tree: TreeIndex(tree),
            segment: crate::ids::SegmentIndex(segment),
        },
        bytes,
        digest: 1,
        weight: 1.0,
        parity: 0,
    };
    for bad in [header(1, 0, 8), header(0, 0, 4096)] {
        let result = session.handle_arrival(GatewayId(0), &bad);
        assert!(matches!(result, Err(PeerError::NoSuchSegment { .. })), "{result:?}");
    }
    let grant = Message::Grant { epoch, sequence, tree: TreeIndex(1), limit: 1 };
    let result = session.handle_message(GatewayId(0), grant, now);
    assert!(matches!(result, Err(PeerError::NoSuchTree(TreeIndex(1)))), "{result:?}");
    // What a header said first is what memory was set aside for.
    assert!(session.handle_arrival(GatewayId(0), &header(0, 0, 8)).is_ok());
    assert!(session.handle_arrival(GatewayId(0), &header(0, 0, 8)).is_ok());
    for other in [header(0, 0, 16), SegmentHeader { digest: 2, ..header(0, 0, 8) }] {
        let result = session.handle_arrival(GatewayId(0), &other);
        assert!(matches!(result, Err(PeerError::NoSuchSegment { .. })), "{result:?}");
    }
}

/// Early segments fill the room, then it is an overrun; short ones fill it too, and those of no
/// bytes.
#[test]
fn early_segments_are_bounded_however_short() {
    for bytes in [128, 1, 0] {
        let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 5, 1000);
        let (epoch, sequence) = world.epoch_of(RankId(0));
        let header = |segment| {
            let key = SegmentKey {
                sequence,
                tree: TreeIndex(0),
                segment: crate::ids::SegmentIndex(segment),
            };
            SegmentHeader { epoch, key, bytes, digest: 1, weight: 1.0, parity: 0 }
        };
        let session = world.session(GatewayId(1));
        let mut taken = 0;
        let overrun = (0..100_000).find_map(|segment| {
            taken = segment;
            session.handle_arrival(GatewayId(0), &header(segment)).err()
        });
        assert!(matches!(overrun, Some(PeerError::EarlyOverrun { .. })), "{overrun:?}");
        assert!(u64::from(taken) < 2 * MAX_AHEAD, "{taken} segments of {bytes} bytes");
    }
}

/// An epoch that was begun on an old request would give out numbers that are in use: it is left
/// at once for one above them.
#[test]
fn an_epoch_that_begins_too_low_is_left_for_the_next() {
    let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 6, 1000);
    let (first, second, now) = (GatewayId(0), GatewayId(1), world.now);
    for sequence in 0..3 {
        world.post(RankId(1), sequence, 10);
    }
    let boots = vec![BootId(100), BootId(101)];
    let plan = plan_of(shapes().swap_remove(1).1);
    let (epoch, next) = (Epoch(2), Sequence(1));
    let begin = Message::Begin { epoch, next, boots, plan, committed: None };
    assert_eq!(world.session(second).handle_message(first, begin, now), Ok(()));
    assert_eq!(world.session(second).poll_timeout(), None, "in no epoch");
    world.collect(second);
    world.run();
    for rank in 0..2 {
        assert_eq!(world.epoch_of(RankId(rank)), (Epoch(3), Sequence(3)), "rank {rank}");
        world.post(RankId(rank), 3, 10);
    }
    world.run();
    for rank in 0..2 {
        assert_eq!(world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. })), 1);
    }
}

/// Numbers so large that the next ones could not be counted are refused, not taken over.
#[test]
fn numbers_that_nobody_reaches_are_refused() {
    let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 6, 1000);
    let now = world.now;
    world.drop_connection(GatewayId(0), GatewayId(1));
    world.run();
    let (few, most) = (3, u64::MAX);
    for (epoch, next) in [(most, few), (few, most)] {
        let (last, next, boot) = (Epoch(epoch), Sequence(next), BootId(101));
        let join = Message::Join { boot, last, next, committed: None };
        let result = world.session(GatewayId(0)).handle_message(GatewayId(1), join, now);
        assert!(matches!(result, Err(PeerError::Uncountable { .. })), "{result:?}");
        let plan = plan_of(shapes().swap_remove(1).1);
        let boots = vec![BootId(100), BootId(101)];
        let begin = Message::Begin { epoch: last, next, boots, plan, committed: None };
        let result = world.session(GatewayId(1)).handle_message(GatewayId(0), begin, now);
        assert!(matches!(result, Err(PeerError::Uncountable { .. })), "{result:?}");
    }
}

#[test]
fn news_of_a_failure_that_a_lane_took_with_it_is_repeated() {
    let mut world = World::new(&[2, 1], plan_of(vec![tree(1, &[0, 1], &[])]), 1, 1 << 20);
    let (first, second) = (GatewayId(0), GatewayId(1));
    world.post(RankId(0), 0, 100);
    world.post(RankId(1), 0, 101);
    world.collect(first);
    world.messages.clear();
    for (one, other) in [(first, second), (second, first)] {
        world.session(one).handle_lane_lost(other);
    }
    world.run();
    world.post(RankId(2), 0, 100);
    world.run();
    for rank in 0..3 {
        assert_eq!(failure_of(&world, rank), Some(FailureCode::Disagreement), "rank {rank}");
    }
    assert!(world.sessions.iter().all(|session| session.live.is_empty()));
}

/// Whether the first gateway leaves an epoch before the other was ready for it, or a lane
/// takes the news with it: the next epoch begins all the same.
#[test]
fn news_of_an_end_reaches_a_peer_that_missed_it() {
    for lost_with_its_lane in [false, true] {
        let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 7, 1000);
        let (first, second) = (GatewayId(0), GatewayId(1));
        let now = world.now;
        if lost_with_its_lane {
            world.session(first).end_epoch(Failure::new(FailureCode::EpochEnded, "t"), None, now);
            world.collect(first);
            world.messages.clear();
            for (one, other) in [(first, second), (second, first)] {
                world.session(one).handle_lane_lost(other);
            }
        } else {
            // A new epoch: the first gateway enters it, and leaves it before the other's word.
            world.session(second).end_epoch(Failure::new(FailureCode::EpochEnded, "t"), None, now);
            world.collect(second);
            while world.session(first).epoch == Epoch(1) {
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

/// The other gateway gives up on what is done here: its word ends the epoch, so that neither
/// waits for receipts that never come nor takes the next collective for the last.
#[test]
fn a_failure_elsewhere_of_what_is_done_here_ends_the_epoch() {
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
        assert!(world.sessions.iter().all(|session| session.live.is_empty()));
    }
}

/// A collective is done at one end and its receipts die with a lane: they are sent again.
#[test]
fn receipts_of_a_finished_collective_that_a_lane_took_with_it_are_repeated() {
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
        world.session(one).handle_lane_lost(other);
    }
    world.run();
    assert_eq!(world.count(0, |e| matches!(e, RankEvent::ContributionFree { .. })), 1);
    world.assert_clean();
}

/// One end notices that the lane is dead before the other does, whose answers go into it.
#[test]
fn receipts_are_repeated_when_the_lane_is_noticed_late() {
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
    world.session(first).handle_lane_lost(second);
    world.collect(first);
    deaf(&mut world);
    assert_eq!(world.count(0, |e| matches!(e, RankEvent::ContributionFree { .. })), 0);
    world.session(second).handle_lane_lost(first);
    world.run();
    assert_eq!(world.count(0, |e| matches!(e, RankEvent::ContributionFree { .. })), 1);
    world.assert_clean();
}

/// Memory for partials that a failed collective gives back goes to the next one.
#[test]
fn what_waits_for_the_memory_of_a_failed_collective_starts() {
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
    world.session(GatewayId(0)).fail(Sequence(0), failure, None, now);
    world.run();
    for rank in 0..3 {
        assert_eq!(failure_of(&world, rank), Some(FailureCode::Stalled));
        assert_eq!(world.count(rank, ready), 1);
    }
    world.assert_clean();
}

/// A stream of the old epoch still writes when the next one begins: its number is not used
/// again while it lives.
#[test]
fn a_number_still_in_use_by_the_last_epoch_is_not_given_out_again() {
    let mut world = World::new(&[1, 1], plan_of(vec![tree(1, &[0, 1], &[])]), 3, 1000);
    let (first, second) = (GatewayId(0), GatewayId(1));
    let key = SegmentKey {
        sequence: Sequence(0),
        tree: TreeIndex(0),
        segment: crate::ids::SegmentIndex(0),
    };
    let header =
        SegmentHeader { epoch: Epoch(1), key, bytes: 80, digest: 1, weight: 1.0, parity: 0 };
    let arrival = world.session(second).handle_arrival(first, &header).expect("fair");
    let lease = lease_in(&arrival).expect("a lease");
    let now = world.now;
    world.session(second).end_epoch(Failure::new(FailureCode::EpochEnded, "t"), None, now);
    world.run();
    for rank in 0..2 {
        let (epoch, next) = world.epoch_of(RankId(rank));
        assert_eq!(epoch, Epoch(2));
        world.post(RankId(rank), next.0, 10);
    }
    world.session(second).handle_arrival_end(lease, false, now);
    world.run();
    for rank in 0..2 {
        assert_eq!(failure_of(&world, rank), None, "rank {rank}");
        assert_eq!(world.count(rank, |e| matches!(e, RankEvent::ResultReady { .. })), 1);
    }
}

/// The weights of a region's ranks are added and go over the wire, so their sum must be finite.
#[test]
fn weights_whose_sum_is_not_finite_are_refused() {
    let mut world = World::new(&[2, 1], plan_of(vec![tree(1, &[0, 1], &[])]), 4, 1000);
    let (epoch, sequence) = world.epoch_of(RankId(0));
    let (op, dtype) = (ReduceOp::Sum, Dtype::I64);
    let descriptor =
        Descriptor { op, dtype, elements: 4, layout_hash: 0, pattern: Pattern::AllReduce };
    let post = Post { epoch, sequence, descriptor, weight: f64::MAX, timeout: Span::from_secs(1) };
    let now = world.now;
    for rank in 0..2 {
        world.session(GatewayId(0)).handle_post(RankId(rank), post, now);
    }
    world.run();
    assert_eq!(failure_of(&world, 0), Some(FailureCode::BadPost));
}

/// A rank that goes on alone is remembered up to a maximum; then its job starts afresh, here
/// and at the peers, and no connection ends over it.
#[test]
fn ranks_too_far_apart_end_the_epoch_and_go_on_in_the_next() {
    let mut world = World::new(&[2, 1], plan_of(vec![tree(1, &[0, 1], &[])]), 6, 1000);
    let (epoch, first) = world.epoch_of(RankId(0));
    // No average of integers: each fails at once, and waits to be told to the other ranks.
    let descriptor = Descriptor {
        op: ReduceOp::Avg,
        dtype: Dtype::I64,
        elements: 4,
        layout_hash: 0,
        pattern: Pattern::AllReduce,
    };
    let (weight, timeout, now) = (1.0, Span::from_secs(1), world.now);
    for ahead in 0..=MAX_AHEAD {
        assert_eq!(world.epoch_of(RankId(2)).0, epoch, "{ahead}");
        let sequence = Sequence(first.0 + ahead);
        let post = Post { epoch, sequence, descriptor, weight, timeout };
        world.session(GatewayId(0)).handle_post(RankId(0), post, now);
        world.run();
    }
    assert_eq!(failure_of(&world, 0), Some(FailureCode::EpochEnded));
    for rank in 0..3 {
        assert_eq!(world.epoch_of(RankId(rank)).0, Epoch(epoch.0 + 1));
    }
    // A peer whose ranks are alone at it is heard of before it ends its own epoch.
    let (epoch, first) = world.epoch_of(RankId(2));
    let sequence = Sequence(first.0 + MAX_AHEAD);
    let failure = Failure::new(FailureCode::TimedOut, "t");
    let session = world.session(GatewayId(1));
    let far = session.handle_message(GatewayId(0), Message::Fail { epoch, sequence, failure }, now);
    assert_eq!(far, Err(PeerError::TooFarAhead { sequence, limit: MAX_AHEAD }));
    session.handle_overreach(GatewayId(0), &far.expect_err("too far"), now);
    world.run();
    let (epoch, next) = world.epoch_of(RankId(0));
    assert_eq!(epoch, Epoch(3));
    for rank in 0..3 {
        world.post(RankId(rank), next.0, 10);
    }
    world.run();
    assert_eq!(world.count(2, |e| matches!(e, RankEvent::ResultReady { .. })), 1);
}
