//! Posts and messages that are refused, and epochs that they end.

use super::fabrics::*;
use super::world::*;
use crate::descriptor::*;
use crate::ids::*;
use crate::post::*;
use crate::session::collective::recent_collectives;
use crate::session::*;
use crate::wire::*;
use units::*;

/// Returns a post of four integers, at an epoch and a sequence number.
fn integer_post((epoch, sequence): (Epoch, Sequence), op: ReduceOp, weight: f64) -> Post {
    let descriptor = Descriptor {
        op,
        dtype: Dtype::I64,
        elements: 4,
        layout_hash: 0,
        shape: ArrayShape::FLAT,
        pattern: Pattern::AllReduce,
        counts: AgreedCounts::Even,
    };
    let (counts, timeout) = (Counts::Even, Span::from_secs(1));
    Post { epoch, sequence, descriptor, counts, weight, timeout }
}

#[test]
fn integer_averages_and_bad_weights_fail_for_everybody() {
    let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 4, 1000);
    let (epoch, sequence) = world.epoch_of(RankId(0));
    let post = integer_post((epoch, sequence), ReduceOp::Avg, 1.0);
    let now = world.now;
    world.session(GatewayId(0)).handle_post(RankId(0), post, now);
    world.run();
    assert_eq!(failure_of(&world, 0), Some(FailureCode::BadPost));
    world.post(RankId(1), 0, 4);
    assert_eq!(failure_of(&world, 1), Some(FailureCode::BadPost));
}

#[test]
fn a_post_that_announces_other_bytes_fails_for_everybody() {
    let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 4, 1000);
    let (epoch, sequence) = world.epoch_of(RankId(0));
    let post = integer_post((epoch, sequence), ReduceOp::Sum, 1.0);
    let contribution = post.descriptor.bytes();
    let misfit = Some(ContributionMisfit { announced: contribution - 1, contribution });
    let transport = PostTransport { missing_from: Some(0), misfit, ..PostTransport::default() };
    let now = world.now;
    world.session(GatewayId(0)).handle_streamed_post(RankId(0), post, transport, now);
    world.run();
    assert_eq!(failure_of(&world, 0), Some(FailureCode::BadPost));
    world.post(RankId(1), 0, 4);
    assert_eq!(failure_of(&world, 1), Some(FailureCode::BadPost));
}

#[test]
fn an_undefined_reduction_of_a_peer_is_a_disagreement() {
    let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 4, 1000);
    let (epoch, sequence) = world.epoch_of(RankId(0));
    world.post(RankId(0), 0, 4);
    let agreed = Descriptor::of_bytes(Pattern::AllReduce, 4);
    let descriptor = Descriptor { op: ReduceOp::Bxor, dtype: Dtype::F32, ..agreed };
    let (rank, all, sent, now) = (RankId(1), true, None, world.now);
    let announce = Message::Announce { epoch, sequence, rank, descriptor, all, sent };
    let handled = world.session(GatewayId(0)).handle_message(GatewayId(1), announce, now);
    assert!(handled.is_ok(), "{handled:?}");
    world.run();
    assert_eq!(failure_of(&world, 0), Some(FailureCode::Disagreement));
}

#[test]
fn messages_against_the_protocol_are_refused() {
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
    let prepared = PreparedSteps::default();
    let join = Message::Join { boot, last, next, committed: None, prepared };
    assert!(matches!(
        session.handle_message(GatewayId(0), join.clone(), now),
        Err(PeerError::NotYours(_))
    ));
    assert!(matches!(
        session.handle_message(GatewayId(9), join, now),
        Err(PeerError::UnknownPeer(_))
    ));
    let header = |tree, segment, bytes| SegmentHeader {
        epoch,
        key: SegmentKey { sequence, tree: TreeIndex(tree), segment: SegmentIndex(segment) },
        bytes,
        digest: 1,
        weight: 1.0,
        parity: 0,
    };
    for bad in [header(4, 0, 8), header(0, 0, 4096)] {
        let result = session.handle_arrival(GatewayId(0), &bad);
        assert!(matches!(result, Err(PeerError::NoSuchSegment { .. })), "{result:?}");
    }
    let grant = Message::Grant { epoch, sequence, tree: TreeIndex(4), limit: 1 };
    let result = session.handle_message(GatewayId(0), grant, now);
    assert!(matches!(result, Err(PeerError::NoSuchTree(TreeIndex(4)))), "{result:?}");
    // Memory was reserved by the first header.
    assert!(session.handle_arrival(GatewayId(0), &header(0, 0, 8)).is_ok());
    assert!(session.handle_arrival(GatewayId(0), &header(0, 0, 8)).is_ok());
    for other in [header(0, 0, 16), SegmentHeader { digest: 2, ..header(0, 0, 8) }] {
        let result = session.handle_arrival(GatewayId(0), &other);
        assert!(matches!(result, Err(PeerError::NoSuchSegment { .. })), "{result:?}");
    }
}

/// Segments without a grant fill the unsolicited window, then they are an overrun. So do short
/// segments and empty ones.
#[test]
fn unsolicited_segments_are_bounded_however_short() {
    for bytes in [128, 1, 0] {
        let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 5, 1000);
        let (epoch, sequence) = world.epoch_of(RankId(0));
        let header = |segment| {
            let key = SegmentKey { sequence, tree: TreeIndex(0), segment: SegmentIndex(segment) };
            SegmentHeader { epoch, key, bytes, digest: 1, weight: 1.0, parity: 0 }
        };
        let session = world.session(GatewayId(1));
        let mut taken = 0;
        let overrun = (0..100_000).find_map(|segment| {
            taken = segment;
            session.handle_arrival(GatewayId(0), &header(segment)).err()
        });
        assert!(matches!(overrun, Some(PeerError::UnsolicitedOverrun { .. })), "{overrun:?}");
        assert!(
            u64::from(taken) < 2 * recent_collectives::COLLECTIVES_AHEAD_MAX,
            "{taken} segments of {bytes} bytes"
        );
    }
}

/// An epoch that was begun on an old request would reuse sequences: it is left at once for an epoch
/// above them.
#[test]
fn an_epoch_that_begins_too_low_is_skipped() {
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

/// Numbers so large that the next ones could not be counted are refused.
#[test]
fn numbers_that_nobody_reaches_are_refused() {
    let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 6, 1000);
    let now = world.now;
    world.drop_connection(GatewayId(0), GatewayId(1));
    world.run();
    let (few, most) = (3, u64::MAX);
    for (epoch, next) in [(most, few), (few, most)] {
        let (last, next, boot) = (Epoch(epoch), Sequence(next), BootId(101));
        let prepared = PreparedSteps::default();
        let join = Message::Join { boot, last, next, committed: None, prepared };
        let result = world.session(GatewayId(0)).handle_message(GatewayId(1), join, now);
        assert!(matches!(result, Err(PeerError::Uncountable { .. })), "{result:?}");
        let plan = plan_of(shapes().swap_remove(1).1);
        let boots = vec![BootId(100), BootId(101)];
        let begin = Message::Begin { epoch: last, next, boots, plan, committed: None };
        let result = world.session(GatewayId(1)).handle_message(GatewayId(0), begin, now);
        assert!(matches!(result, Err(PeerError::Uncountable { .. })), "{result:?}");
    }
}

/// A Join with steps behind its own last collective, or of epochs after its last one.
#[test]
fn steps_of_the_future_in_a_join_are_refused() {
    let mut world = World::new(&[1, 1], plan_of(shapes().swap_remove(1).1), 6, 1000);
    let now = world.now;
    world.drop_connection(GatewayId(0), GatewayId(1));
    world.run();
    let mut is_refused = |epoch, below, is_prepared: bool| {
        let (epoch, below) = (EpochId { term: 9, number: Epoch(epoch) }, Sequence(below));
        let step = Step(4);
        let committed = (!is_prepared).then_some(Committed { below, step, epoch });
        let steps = vec![(below, step)];
        let prepared =
            if is_prepared { PreparedSteps { epoch, steps } } else { Default::default() };
        let (boot, last, next) = (BootId(101), Epoch(1), Sequence(3));
        let join = Message::Join { boot, last, next, committed, prepared };
        let result = world.session(GatewayId(0)).handle_message(GatewayId(1), join, now);
        assert!(matches!(result, Ok(()) | Err(PeerError::NotYours(_))), "{result:?}");
        result.is_err()
    };
    for is_prepared in [true, false] {
        assert!(!is_refused(1, 3, is_prepared), "its last epoch and collective");
        assert!(is_refused(2, 3, is_prepared), "a later epoch");
        assert!(is_refused(1, 4, is_prepared), "a later collective");
    }
}

/// A stream of the old epoch still writes when the next one begins: its sequence is not reused
/// while it lives.
#[test]
fn a_sequence_in_use_is_not_given_out_again() {
    let mut world = World::new(&[1, 1], plan_of(vec![tree(1, &[0, 1], &[])]), 3, 1000);
    let (first, second) = (GatewayId(0), GatewayId(1));
    let key = SegmentKey { sequence: Sequence(0), tree: TreeIndex(0), segment: SegmentIndex(0) };
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
    let post = integer_post((epoch, sequence), ReduceOp::Sum, f64::MAX);
    let now = world.now;
    for rank in 0..2 {
        world.session(GatewayId(0)).handle_post(RankId(rank), post.clone(), now);
    }
    world.run();
    assert_eq!(failure_of(&world, 0), Some(FailureCode::BadPost));
}

/// Posts of a rank that runs ahead alone are remembered up to a maximum. Then the epoch ends, here
/// and at the peers, and no connection does.
#[test]
fn ranks_too_far_apart_end_the_epoch() {
    let mut world = World::new(&[2, 1], plan_of(vec![tree(1, &[0, 1], &[])]), 6, 1000);
    let (epoch, first) = world.epoch_of(RankId(0));
    // Integers have no average: each post fails at once, and the failure waits for the other ranks'
    // posts.
    let descriptor = Descriptor {
        op: ReduceOp::Avg,
        dtype: Dtype::I64,
        elements: 4,
        layout_hash: 0,
        shape: ArrayShape::FLAT,
        pattern: Pattern::AllReduce,
        counts: AgreedCounts::Even,
    };
    let (weight, timeout, now) = (1.0, Span::from_secs(1), world.now);
    for ahead in 0..=recent_collectives::COLLECTIVES_AHEAD_MAX {
        assert_eq!(world.epoch_of(RankId(2)).0, epoch, "{ahead}");
        let sequence = Sequence(first.0 + ahead);
        let post = Post { epoch, sequence, descriptor, counts: Counts::Even, weight, timeout };
        world.session(GatewayId(0)).handle_post(RankId(0), post, now);
        world.run();
    }
    assert_eq!(failure_of(&world, 0), Some(FailureCode::EpochEnded));
    for rank in 0..3 {
        assert_eq!(world.epoch_of(RankId(rank)).0, Epoch(epoch.0 + 1));
    }
    // A peer's ranks run ahead, and their announcements arrive before the peer ends its epoch.
    let (epoch, first) = world.epoch_of(RankId(2));
    let sequence = Sequence(first.0 + recent_collectives::COLLECTIVES_AHEAD_MAX);
    let failure = Failure::new(FailureCode::TimedOut, "t");
    let session = world.session(GatewayId(1));
    let far = session.handle_message(GatewayId(0), Message::Fail { epoch, sequence, failure }, now);
    assert_eq!(
        far,
        Err(PeerError::TooFarAhead { sequence, limit: recent_collectives::COLLECTIVES_AHEAD_MAX })
    );
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
