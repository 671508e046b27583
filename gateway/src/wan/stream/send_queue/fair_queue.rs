//! Segments of one traffic class, shared between jobs by deficit round-robin (DRR).
//!
//! Each job in the round has a deficit: the bytes that it may still send. The job at the front sends
//! while its first segment fits its deficit; else it gets a quantum and goes to the back.

use super::segment::{QueuedSegment, SendOrder};
use hier_collectives::ids::GroupId;
use hier_collectives::wire::SegmentKey;
use std::collections::{BTreeMap, VecDeque};

/// The queue of one traffic class.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    queues: BTreeMap<GroupId, BTreeMap<SendOrder, QueuedSegment>>,
    /// The round: jobs with a queued segment or an overdraft to repay, the next one first.
    pub(super) round: VecDeque<RoundEntry>,
}

/// A job's place in the round.
#[derive(Debug)]
pub(super) struct RoundEntry {
    pub group: GroupId,
    /// Bytes that the job may still send.
    pub deficit: u64,
}

impl FairQueue {
    /// Queues a segment, and puts its job at the back of the round unless it is in it.
    pub fn push_segment(&mut self, segment: QueuedSegment) {
        let group = segment.group;
        self.enter_round(group);
        self.queues.entry(group).or_default().insert(segment.send_order(), segment);
    }

    /// Puts a job at the back of the round, unless it is in it.
    pub fn enter_round(&mut self, group: GroupId) {
        if self.round.iter().all(|entry| entry.group != group) {
            self.round.push_back(RoundEntry { group, deficit: 0 });
        }
    }

    /// Returns the jobs with a queued segment.
    pub fn waiting_jobs(&self) -> impl Iterator<Item = GroupId> {
        self.queues.iter().filter(|(_, queue)| !queue.is_empty()).map(|(group, _)| *group)
    }

    /// Returns the queued segments of a job, in the order of sending.
    pub fn segments_of(&self, group: GroupId) -> impl Iterator<Item = &QueuedSegment> {
        self.queues.get(&group).into_iter().flat_map(BTreeMap::values)
    }

    /// Takes the next segment by deficit round-robin. `quantum(job, has segment)` is called at each
    /// turn of a job, and returns the bytes that its deficit grows by. `None` removes the job from
    /// the round.
    pub fn take_segment(
        &mut self,
        quantum: &mut dyn FnMut(GroupId, bool) -> Option<u64>,
    ) -> Option<QueuedSegment> {
        while let Some(RoundEntry { group, deficit }) = self.round.front_mut() {
            let first = self.queues.get_mut(group).and_then(BTreeMap::first_entry);
            let has_segment = first.is_some();
            if let Some(first) = first.filter(|first| *deficit >= first.get().payload.len()) {
                *deficit -= first.get().payload.len();
                return Some(first.remove());
            }
            match quantum(*group, has_segment) {
                Some(more) if has_segment => *deficit += more,
                // A job without a segment saves nothing up.
                Some(_) => *deficit = 0,
                None => {
                    self.round.pop_front();
                    continue;
                }
            }
            self.round.rotate_left(1);
        }
        None
    }

    /// Removes the queued segments of a job that `which` selects; returns whether there was one.
    pub fn remove_segments(&mut self, group: GroupId, which: impl Fn(&SegmentKey) -> bool) -> bool {
        let Some(queue) = self.queues.get_mut(&group) else { return false };
        let before = queue.len();
        queue.retain(|(_, _, _, key), _| !which(key));
        queue.len() < before
    }
}
