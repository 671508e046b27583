//! Tests of the send queue: shares of jobs, parity, and segments of lost lanes.

mod parity;
mod requeue;
mod shares;

use super::queued_segment::NewSegment;
use super::{QueuedSegmentClass, SendQueue};
use crate::lock::lock_ignoring_poison;
use crate::memory::arena::Arena;
use crate::memory::mem_slice::MemSlice;
use hier_collectives::ids::{Epoch, GroupId, SegmentIndex, Sequence, TreeIndex};
use hier_collectives::session::SegmentPriority;
use hier_collectives::size_class::SizeClass;
use hier_collectives::tail_fec::TailParity;
use hier_collectives::wire::{SegmentHeader, SegmentKey};
use std::num::NonZeroU32;

const MIB: u32 = 1 << 20;
const SMALL: u32 = 64 << 10;

fn queue(weights: &[(u64, u32)]) -> SendQueue {
    let weight = |(group, weight): &(u64, u32)| {
        (GroupId(*group), NonZeroU32::new(*weight).expect("a weight"))
    };
    SendQueue::new(weights.iter().map(weight).collect())
}

/// A segment of collective 1 of a job.
fn push(queue: &SendQueue, group: u64, segment: u32, bytes: u32) {
    push_tail(queue, group, Part { sequence: 1, segment, bytes }, TailParity::default());
}

/// The place and size of a segment in its job.
struct Part {
    sequence: u64,
    segment: u32,
    bytes: u32,
}

fn push_tail(queue: &SendQueue, job: u64, part: Part, tail: TailParity) {
    push_of_group(queue, (job, job), part, tail);
}

fn push_of_group(queue: &SendQueue, (job, group): (u64, u64), part: Part, tail: TailParity) {
    let bytes = part.bytes;
    let arena = Arena::anonymous(u64::from(bytes)).expect("memory");
    let key = SegmentKey { sequence: Sequence(part.sequence), ..key(part.segment) };
    let header = SegmentHeader { epoch: Epoch(1), key, bytes, digest: 0, weight: 1.0, parity: 0 };
    let priority = SegmentPriority { class: SizeClass::for_buffer(bytes.into()), depth: 0 };
    queue.push(NewSegment {
        job: GroupId(job),
        group: GroupId(group),
        header,
        priority,
        tail,
        payload: MemSlice::whole(&arena),
    });
}

fn key(segment: u32) -> SegmentKey {
    SegmentKey { sequence: Sequence(1), tree: TreeIndex(0), segment: SegmentIndex(segment) }
}

/// The job and the bytes of the next pulls.
fn pulled(queue: &SendQueue, count: usize) -> Vec<(u64, u64)> {
    let next = |_| {
        lock_ignoring_poison(&queue.scheduler)
            .take_segment(QueuedSegmentClass::Bulk, 1)
            .expect("queued")
    };
    let pulls = (0..count).map(next);
    pulls.map(|segment| (segment.group.0, segment.payload.len())).collect()
}
