//! Jobs share a link by weight.

use super::*;
use crate::wan::pacing::pacer::RELEASE_ORDER_FIRST;
use std::task::{Context, Waker};

fn share(pulls: &[(u64, u64)], group: u64) -> u64 {
    pulls.iter().filter(|(of, _)| *of == group).map(|(_, bytes)| bytes).sum()
}

#[test]
fn jobs_share_by_weight_with_segments_of_any_size() {
    for (weights, sizes) in [((1, 1), (MIB, MIB)), ((3, 1), (MIB, MIB)), ((3, 1), (MIB, 4 * MIB))] {
        let queue = queue(&[(7, weights.0), (8, weights.1)]);
        for segment in 0..200 {
            push(&queue, 7, segment, sizes.0);
            push(&queue, 8, segment, sizes.1);
        }
        let pulls = pulled(&queue, 120);
        let (left, right) = (share(&pulls, 7) as f64, share(&pulls, 8) as f64);
        let (expected, actual) = (f64::from(weights.0) / f64::from(weights.1), left / right);
        let off = (actual / expected - 1.0).abs();
        assert!(off < 0.08, "{weights:?} {sizes:?}: {actual}, {expected} expected");
    }
}

/// The heavier job's turns have no more bytes than any other's, so the lighter job never waits long.
#[test]
fn a_light_job_waits_briefly_for_a_heavy_one() {
    let queue = queue(&[(7, 1000), (8, 1)]);
    (0..4100).for_each(|segment| push(&queue, 7, segment, MIB));
    (0..4).for_each(|segment| push(&queue, 8, segment, MIB));
    let pulls = pulled(&queue, 4004);
    let places: Vec<_> = (0..).zip(&pulls).filter(|(_, pull)| pull.0 == 8).collect();
    let gaps: Vec<u32> = places.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert!(places[0].0 <= 1010, "{places:?}");
    assert!(gaps.iter().all(|gap| (950..1050).contains(gap)), "{gaps:?}");
}

#[test]
fn a_job_alone_has_all_and_saves_nothing_up() {
    let queue = queue(&[(7, 1), (8, 1)]);
    for segment in 0..100 {
        push(&queue, 7, segment, MIB);
    }
    assert_eq!(share(&pulled(&queue, 50), 7), 50 << 20);
    for segment in 0..40 {
        push(&queue, 8, segment, MIB);
    }
    let pulls = pulled(&queue, 20);
    assert!((9..=11).contains(&(share(&pulls, 8) >> 20)), "{pulls:?}");
}

/// Job 7 posts small operations without end, job 8 bulk.
#[test]
fn small_segments_do_not_starve_another_jobs_bulk() {
    for weights in [(1, 1), (3, 1), (1, 3)] {
        let queue = queue(&[(7, weights.0), (8, weights.1)]);
        (0..3500).for_each(|segment| push(&queue, 7, segment, SMALL));
        (0..100).for_each(|segment| push(&queue, 8, segment, MIB));
        let mut pulls = Vec::new();
        while share(&pulls, 8) < 60 << 20 {
            // Lanes pull small segments as long as any may leave.
            let small = queue.pull(QueuedSegmentClass::Small, 1);
            let next = small.or_else(|| queue.pull(QueuedSegmentClass::Bulk, 1)).expect("queued");
            assert_eq!(next.order == RELEASE_ORDER_FIRST, next.group == GroupId(7));
            pulls.push((next.group.0, next.payload.len()));
        }
        let (small, bulk) = (share(&pulls, 7) as f64, share(&pulls, 8) as f64);
        let (expected, actual) = (f64::from(weights.0) / f64::from(weights.1), small / bulk);
        let off = (actual / expected - 1.0).abs();
        assert!(off < 0.08, "{weights:?}: {actual}, {expected} expected");
    }
}

/// Group 70 of job 7 posts small operations without end, the job itself and group 71 bulk.
#[test]
fn small_segments_do_not_starve_another_groups_bulk() {
    let queue = queue(&[(7, 1), (8, 1)]);
    let push = |group: u64, segment: u32, bytes: u32| {
        let part = Part { sequence: 1, segment, bytes };
        push_of_group(&queue, (7, group), part, TailParity::default());
    };
    (0..3000).for_each(|segment| push(70, segment, SMALL));
    (0..60).for_each(|segment| push(7, segment, MIB));
    (0..60).for_each(|segment| push(71, segment, MIB));
    let pull = || {
        let small = queue.pull(QueuedSegmentClass::Small, 1);
        let next = small.or_else(|| queue.pull(QueuedSegmentClass::Bulk, 1)).expect("queued");
        (next.group.0, next.payload.len())
    };
    let mut pulls = Vec::new();
    while share(&pulls, 7) + share(&pulls, 71) < 100 << 20 {
        pulls.push(pull());
    }
    let (small, bulk) = (share(&pulls, 70) as f64, (100 << 20) as f64);
    assert!((0.92..1.08).contains(&(small / bulk)), "{small} beside {bulk}");
    // Without bulk of others nothing waits, and nothing is remembered.
    while lock_ignoring_poison(&queue.scheduler).has_segment(QueuedSegmentClass::Bulk) {
        queue.pull(QueuedSegmentClass::Bulk, 1).expect("queued");
    }
    while queue.pull(QueuedSegmentClass::Small, 1).is_some() {}
    let scheduler = lock_ignoring_poison(&queue.scheduler);
    let is_empty = scheduler.group_overdrafts.is_empty();
    assert!(is_empty && !scheduler.has_segment(QueuedSegmentClass::Small), "{scheduler:?}");
}

#[test]
fn small_segments_of_a_job_alone_precede_its_bulk() {
    let queue = queue(&[(7, 1), (8, 1)]);
    (0..100).for_each(|segment| push(&queue, 7, segment, MIB));
    (100..1100).for_each(|segment| push(&queue, 7, segment, SMALL));
    for _ in 0..1000 {
        queue.pull(QueuedSegmentClass::Small, 1).expect("a small one");
    }
    // Another job's bulk finds no overdraft.
    push(&queue, 8, 0, MIB);
    push(&queue, 7, 2000, SMALL);
    queue.pull(QueuedSegmentClass::Small, 1).expect("a small one");
}

#[test]
fn a_sender_of_small_segments_wakes_once_bulk_has_repaid() {
    let mut context = Context::from_waker(Waker::noop());
    let queue = queue(&[(7, 1), (8, 1)]);
    (0..10).for_each(|segment| push(&queue, 7, segment, SMALL));
    (0..10).for_each(|segment| push(&queue, 8, segment, MIB));
    while queue.pull(QueuedSegmentClass::Small, 1).is_some() {}
    let mut ready = Box::pin(queue.wait_until_ready(QueuedSegmentClass::Small, 1));
    assert!(ready.as_mut().poll(&mut context).is_pending());
    queue.pull(QueuedSegmentClass::Bulk, 1).expect("queued");
    assert!(ready.as_mut().poll(&mut context).is_ready());
}

#[test]
fn overdrafts_end_with_the_peer() {
    let queue = queue(&[(7, 1), (8, 1)]);
    (0..10).for_each(|segment| push(&queue, 7, segment, SMALL));
    (0..10).for_each(|segment| push(&queue, 8, segment, MIB));
    while queue.pull(QueuedSegmentClass::Small, 1).is_some() {}
    queue.clear();
    push(&queue, 7, 20, SMALL);
    push(&queue, 8, 20, MIB);
    assert!(queue.pull(QueuedSegmentClass::Small, 1).is_some());
}

#[test]
fn relayed_messages_of_unknown_jobs_cost_known_jobs_nothing() {
    let queue = queue(&[(7, 1)]);
    push(&queue, 7, 0, MIB);
    (100..200).for_each(|group| queue.charge_control_bytes(GroupId(group), 1 << 20));
    let scheduler = lock_ignoring_poison(&queue.scheduler);
    let unchanged = scheduler.overdrafts.is_empty() && scheduler.bulk.round.len() == 1;
    assert!(unchanged, "{scheduler:?}");
}
