//! Lost lanes, receipts and cancels.

use super::*;
use std::pin::Pin;
use std::task::{Context, Waker};

/// A lane's thread may be in the middle of a pull when another connection replaces its own.
#[test]
fn a_segment_pulled_after_replacement_is_requeued_at_the_end() {
    let queue = queue(&[(7, 1)]);
    push(&queue, 7, 0, MIB);
    assert_eq!(queue.requeue_connection(1), 0);
    queue.pull(QueuedSegmentClass::Bulk, 1).expect("queued");
    assert!(queue.pull(QueuedSegmentClass::Bulk, 2).is_none());
    queue.requeue_connection(1);
    assert!(queue.pull(QueuedSegmentClass::Bulk, 2).expect("queued").requeued);
}

/// The segment arrived over a lane that was taken for lost. No sender may read its slot any more.
#[test]
fn a_receipt_stops_a_segment_that_is_being_written() {
    let queue = queue(&[(7, 1)]);
    push(&queue, 7, 0, MIB);
    queue.pull(QueuedSegmentClass::Bulk, 1).expect("queued");
    queue.requeue_connection(1);
    let again = queue.pull(QueuedSegmentClass::Bulk, 2).expect("queued");
    queue.handle_receipt((GroupId(7), again.header.key));
    assert!(again.cancel.is_cancelled());
}

#[test]
fn a_cancel_in_one_job_leaves_the_other_alone() {
    let queue = queue(&[(7, 1), (8, 1)]);
    push(&queue, 7, 0, MIB);
    push(&queue, 8, 0, MIB);
    queue.cancel_collective(GroupId(7), Sequence(1));
    assert_eq!(pulled(&queue, 1), [(8, 1 << 20)]);
    assert_eq!(queue.requeue_connection(1), 1 << 20);
    assert_eq!(pulled(&queue, 1), [(8, 1 << 20)]);
    queue.handle_receipt((GroupId(8), key(0)));
    assert_eq!(queue.requeue_connection(1), 0);
}

#[test]
fn a_lane_that_is_taken_away_pulls_nothing_more() {
    let queue = queue(&[(7, 1)]);
    (0..3).for_each(|segment| push(&queue, 7, segment, MIB));
    let header = queue.pull(QueuedSegmentClass::Bulk, 1).expect("queued").header;
    queue.set_retiring(1, true);
    assert!(queue.pull(QueuedSegmentClass::Bulk, 1).is_none());
    assert!(queue.pull(QueuedSegmentClass::Bulk, 2).is_some(), "others go on");
    assert!(queue.has_pulled(1), "not receipted");
    queue.handle_receipt((GroupId(7), header.key));
    assert!(!queue.has_pulled(1));
    queue.set_retiring(1, false);
    assert!(queue.pull(QueuedSegmentClass::Bulk, 1).is_some(), "it is wanted again");
}

#[test]
fn a_sender_wakes_when_its_lane_is_wanted_again() {
    let mut context = Context::from_waker(Waker::noop());
    let queue = queue(&[(7, 1)]);
    queue.set_retiring(1, true);
    push(&queue, 7, 0, MIB);
    let mut ready = Box::pin(queue.wait_until_ready(QueuedSegmentClass::Bulk, 1));
    assert!(ready.as_mut().poll(&mut context).is_pending());
    queue.set_retiring(1, false);
    assert!(ready.as_mut().poll(&mut context).is_ready());
}

/// A lane's wait for a segment.
type Waiting<'q> = Pin<Box<dyn Future<Output = ()> + 'q>>;

/// Removes the lanes that are woken, and returns their number.
fn count_woken(lanes: &mut Vec<Waiting<'_>>) -> usize {
    let mut context = Context::from_waker(Waker::noop());
    let before = lanes.len();
    lanes.retain_mut(|lane| lane.as_mut().poll(&mut context).is_pending());
    before - lanes.len()
}

/// No other lane wakes for a segment, unless the one that woke is lost before it pulls.
#[test]
fn a_segment_wakes_one_lane_and_a_lost_lane_all() {
    let queue = queue(&[(7, 1)]);
    let mut lanes: Vec<Waiting<'_>> = Vec::new();
    for lane in 1..=4 {
        lanes.push(Box::pin(queue.wait_until_ready(QueuedSegmentClass::Bulk, lane)));
    }
    assert_eq!(count_woken(&mut lanes), 0);
    push(&queue, 7, 0, MIB);
    assert_eq!(count_woken(&mut lanes), 1);
    assert_eq!(count_woken(&mut lanes), 0);
    queue.requeue_connection(1);
    assert_eq!(count_woken(&mut lanes), 3);
}

/// Lanes 1 and 2 wait in this order, so a signal for one lane goes to lane 1 first.
#[test]
fn a_lane_that_is_taken_away_takes_no_signal() {
    for (is_pushed_before, first) in [(false, 0), (true, 1)] {
        let queue = queue(&[(7, 1)]);
        let wait = |lane| -> Waiting<'_> {
            Box::pin(queue.wait_until_ready(QueuedSegmentClass::Bulk, lane))
        };
        let (mut retiring, mut other) = (vec![wait(1)], vec![wait(2)]);
        assert_eq!((count_woken(&mut retiring), count_woken(&mut other)), (0, 0));
        if is_pushed_before {
            push(&queue, 7, 0, MIB);
        }
        queue.set_retiring(1, true);
        assert_eq!((count_woken(&mut retiring), count_woken(&mut other)), (0, first));
        push(&queue, 7, 1, MIB);
        assert_eq!((count_woken(&mut retiring), count_woken(&mut other)), (0, 1 - first));
    }
}

/// Its sender may have waited for tokens of the pacer since it was woken.
#[test]
fn a_vain_pull_of_a_retiring_lane_wakes_another() {
    let queue = queue(&[(7, 1)]);
    queue.set_retiring(1, true);
    let mut lanes: Vec<Waiting<'_>> = Vec::new();
    for lane in 2..=3 {
        lanes.push(Box::pin(queue.wait_until_ready(QueuedSegmentClass::Bulk, lane)));
    }
    assert_eq!(count_woken(&mut lanes), 0);
    push(&queue, 7, 0, MIB);
    assert_eq!(count_woken(&mut lanes), 1);
    assert!(queue.pull(QueuedSegmentClass::Bulk, 1).is_none());
    assert_eq!(count_woken(&mut lanes), 1);
}
