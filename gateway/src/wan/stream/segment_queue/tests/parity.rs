//! The last segments of a collective have parity.

use super::*;

/// The parity of the last segments, within five segments of the receiver's memory.
fn tail() -> TailParity {
    TailParity { parity: 4, room: u64::from(5 * MIB) }
}

/// Ten segments, of which the last five may have parity.
fn push_with_tail(queue: &SendQueue, first: u32) {
    for index in 0..10 {
        let tail = if index < 5 { TailParity::default() } else { tail() };
        push_tail(queue, 7, Part { sequence: 1, segment: first + index, bytes: MIB }, tail);
    }
}

/// The parity shards of the next pulls.
fn parities(queue: &SendQueue, count: usize) -> Vec<u16> {
    let next = |_| queue.pull(QueuedSegmentClass::Bulk, 1).expect("queued").header.parity;
    (0..count).map(next).collect()
}

#[test]
fn only_segments_followed_by_few_bytes_have_parity() {
    let queue = queue(&[(7, 1)]);
    push_with_tail(&queue, 0);
    assert_eq!(parities(&queue, 6), [0, 0, 0, 0, 0, 4]);
    // Of the four that are left five more follow the last.
    (10..15).for_each(|segment| push(&queue, 7, segment, MIB));
    assert_eq!(parities(&queue, 9), [0; 9]);
}

#[test]
fn a_segment_that_overtakes_earlier_bulk_keeps_its_parity() {
    let queue = queue(&[(7, 1)]);
    (0..10).for_each(|segment| push(&queue, 7, segment, MIB));
    push_tail(&queue, 7, Part { sequence: 2, segment: 0, bytes: SMALL }, tail());
    assert_eq!(queue.pull(QueuedSegmentClass::Small, 1).expect("queued").header.parity, 4);
}

#[test]
fn parity_is_bounded_until_receipts_come() {
    let queue = queue(&[(7, 1)]);
    push_with_tail(&queue, 0);
    assert_eq!(parities(&queue, 10)[5..], [4; 5]);
    push_with_tail(&queue, 10);
    assert_eq!(parities(&queue, 6), [0; 6]);
    [0, 8, 9].iter().for_each(|segment| queue.handle_receipt((GroupId(7), key(*segment))));
    assert_eq!(parities(&queue, 4), [4, 4, 0, 0]);
}

#[test]
fn requeued_segments_keep_their_parity() {
    let queue = queue(&[(7, 1)]);
    push_with_tail(&queue, 0);
    parities(&queue, 10);
    queue.requeue_connection(1);
    // A segment that overtakes them finds the bound reached.
    push_tail(&queue, 7, Part { sequence: 2, segment: 0, bytes: SMALL }, tail());
    assert_eq!(queue.pull(QueuedSegmentClass::Small, 1).expect("queued").header.parity, 0);
    assert_eq!(parities(&queue, 10), [0, 0, 0, 0, 0, 4, 4, 4, 4, 4]);
}
