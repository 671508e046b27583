//! Segments of one traffic class, shared between jobs by deficit round-robin (DRR).
//!
//! The groups of a job share what the job has: they send a segment each in turns, but for those that
//! have to wait.
//!
//! Each job in the round has a deficit: the bytes that it may still send. The job at the front sends
//! while its first segment fits its deficit; else it gets a quantum and goes to the back.

use super::queued_segment::{QueuedSegment, SendOrder};
use hier_collectives::ids::GroupId;
use hier_collectives::wire::SegmentKey;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The queue of one traffic class.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    queues: BTreeMap<GroupId, FairJobQueue>,
    /// The round: jobs with a queued segment or an overdraft to repay, the next one first.
    pub(super) round: VecDeque<RoundEntry>,
}

/// The queued segments of one job. Its groups are in the order of their turns, each with a segment.
#[derive(Debug, Default)]
struct FairJobQueue(VecDeque<(GroupId, BTreeMap<SendOrder, QueuedSegment>)>);

impl FairJobQueue {
    /// Queues a segment of the job, among those of its group.
    fn push_segment(&mut self, segment: QueuedSegment) {
        let at = self.0.iter().position(|(group, _)| *group == segment.group);
        let at = at.unwrap_or_else(|| {
            self.0.push_back((segment.group, BTreeMap::new()));
            self.0.len() - 1
        });
        self.0[at].1.insert(segment.send_order(), segment);
    }

    /// Returns the place of the next group that need not wait, if there is one.
    fn next_place(&self, waiting: &BTreeSet<GroupId>) -> Option<usize> {
        self.0.iter().position(|(group, _)| !waiting.contains(group))
    }

    /// Returns the next segment of a group that need not wait, if there is one.
    fn first_segment(&self, waiting: &BTreeSet<GroupId>) -> Option<&QueuedSegment> {
        self.0[self.next_place(waiting)?].1.values().next()
    }

    /// Takes the next segment of a group that need not wait; then it is another group's turn.
    fn take_first(&mut self, waiting: &BTreeSet<GroupId>) -> Option<QueuedSegment> {
        let (group, mut queue) = self.0.remove(self.next_place(waiting)?)?;
        let segment = queue.pop_first().map(|(_, segment)| segment);
        if !queue.is_empty() {
            self.0.push_back((group, queue));
        }
        segment
    }

    /// Removes the segments of a group that `which` selects; returns whether there was one.
    fn remove_segments(&mut self, group: GroupId, which: impl Fn(&SegmentKey) -> bool) -> bool {
        let Some(at) = self.0.iter().position(|(of, _)| *of == group) else { return false };
        let queue = &mut self.0[at].1;
        let before = queue.len();
        queue.retain(|(_, _, _, key), _| !which(key));
        let has_changed = queue.len() < before;
        if queue.is_empty() {
            self.0.remove(at);
        }
        has_changed
    }
}

/// A job's place in the round.
#[derive(Debug)]
pub(super) struct RoundEntry {
    pub job: GroupId,
    /// Bytes that the job may still send.
    pub deficit: u64,
}

impl FairQueue {
    /// Queues a segment, and puts its job at the back of the round unless it is in it.
    pub fn push_segment(&mut self, segment: QueuedSegment) {
        self.enter_round(segment.job);
        self.queues.entry(segment.job).or_default().push_segment(segment);
    }

    /// Puts a job at the back of the round, unless it is in it.
    pub fn enter_round(&mut self, job: GroupId) {
        if self.round.iter().all(|entry| entry.job != job) {
            self.round.push_back(RoundEntry { job, deficit: 0 });
        }
    }

    /// Iterates over the jobs that have a queued segment.
    pub fn waiting_jobs(&self) -> impl Iterator<Item = GroupId> {
        self.queues.iter().filter(|(_, queue)| !queue.0.is_empty()).map(|(job, _)| *job)
    }

    /// Whether a job has a queued segment of a group that need not wait.
    pub fn has_segment(&self, job: GroupId, waiting: &BTreeSet<GroupId>) -> bool {
        self.queues.get(&job).is_some_and(|queue| queue.next_place(waiting).is_some())
    }

    /// Returns the groups of a job that have a queued segment.
    pub fn groups_of(&self, job: GroupId) -> BTreeSet<GroupId> {
        let queue = self.queues.get(&job);
        queue.map(|queue| queue.0.iter().map(|(of, _)| *of).collect()).unwrap_or_default()
    }

    /// Whether a job has a queued segment of another group than one of its groups.
    pub fn has_segment_beside(&self, job: GroupId, group: GroupId) -> bool {
        let queue = self.queues.get(&job);
        queue.is_some_and(|queue| queue.0.iter().any(|(other, _)| *other != group))
    }

    /// Returns the queued segments of a job's group, in the order of sending.
    pub fn segments_of(
        &self,
        job: GroupId,
        group: GroupId,
    ) -> impl Iterator<Item = &QueuedSegment> {
        let groups = self.queues.get(&job).into_iter().flat_map(|queue| &queue.0);
        groups.filter(move |(of, _)| *of == group).flat_map(|(_, queue)| queue.values())
    }

    /// Takes the next segment by deficit round-robin, but none of groups that are `waiting`.
    /// `quantum(job, has segment)` is called at each turn of a job, and returns the bytes that its
    /// deficit grows by. `None` removes the job from the round.
    pub fn take_segment(
        &mut self,
        waiting: &BTreeSet<GroupId>,
        quantum: &mut dyn FnMut(GroupId, bool) -> Option<u64>,
    ) -> Option<QueuedSegment> {
        while let Some(RoundEntry { job, deficit }) = self.round.front_mut() {
            let queue = self.queues.get_mut(job);
            let first = queue.as_ref().and_then(|queue| queue.first_segment(waiting));
            let first = first.map(|segment| segment.payload.len());
            let has_segment = first.is_some();
            if let Some(bytes) = first.filter(|bytes| *deficit >= *bytes) {
                *deficit -= bytes;
                return queue.and_then(|queue| queue.take_first(waiting));
            }
            match quantum(*job, has_segment) {
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

    /// Removes the queued segments of a group that `which` selects; returns whether there was one.
    pub fn remove_segments(&mut self, group: GroupId, which: impl Fn(&SegmentKey) -> bool) -> bool {
        self.queues.values_mut().any(|queue| queue.remove_segments(group, &which))
    }
}
