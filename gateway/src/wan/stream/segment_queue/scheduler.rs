//! The order of a send queue: which segment a lane gets next, and whether with parity.
//!
//! Jobs share the link by weight. In each turn of the round a job may send
//! `QUANTUM_BYTES x weight / heaviest waiting weight` bytes. Small segments do not wait for the round
//! of the bulk. They overdraw their job's share instead, which its bulk turns repay. A job whose
//! overdraft reaches `QUANTUM_BYTES x weight` waits while others have bulk: small operations without
//! end would starve them.
//!
//! Within a job the same holds between its groups, of equal weight: small segments of a group whose
//! overdraft reaches `QUANTUM_BYTES` wait while other groups of the job have bulk, which repays it.

use super::fair_queue::FairQueue;
use super::queued_segment::{QueuedSegment, QueuedSegmentClass, SegmentId};
use crate::events::ConnectionId;
use crate::wan::error_code::SEGMENT_CANCELLED_CODE;
use crate::wan::pacing::pacer::RELEASE_ORDER_FIRST;
use hier_collectives::ids::GroupId;
use hier_collectives::tail_fec::TailParity;
use hier_collectives::wire::SegmentKey;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

/// 256 KiB of segments: what each turn lets the waiting job of the largest weight send, others in
/// proportion to weight, so that no turn takes long. Small segments of a job wait once 256 KiB
/// times its weight of them have gone before other jobs' bulk.
/// Tested by `a_light_job_waits_briefly_for_a_heavy_one`.
const QUANTUM_BYTES: u64 = 256 << 10;

/// The segments of a send queue.
#[derive(Debug)]
pub(super) struct Scheduler {
    weights: BTreeMap<GroupId, NonZeroU32>,
    small: FairQueue,
    pub(super) bulk: FairQueue,
    /// Bytes that a job's small segments took before other jobs' bulk. Below zero: bytes that bulk turns
    /// left to small segments that wait.
    pub(super) overdrafts: BTreeMap<GroupId, i64>,
    /// Bytes that small segments of groups took before bulk of other groups of their job, by job. Below
    /// zero: bytes that bulk left to small segments that wait. A job without queued bulk has none.
    pub(super) group_overdrafts: BTreeMap<GroupId, BTreeMap<GroupId, i64>>,
    /// The segments that lanes have pulled and the peer has not receipted.
    pub(super) pulled: BTreeMap<SegmentId, PulledSegment>,
    /// The connections of lanes that are being taken away, which pull nothing more.
    pub(super) retiring: BTreeSet<ConnectionId>,
    /// The number of pulls so far.
    pulls: u64,
}

/// A segment that a lane has pulled.
#[derive(Debug)]
pub(super) struct PulledSegment {
    pub connection: ConnectionId,
    pub segment: QueuedSegment,
    /// The stream once it is written; kept until the receipt, so that a cancel can still reset it.
    pub stream: Option<quinn::SendStream>,
}

impl Scheduler {
    /// Creates a scheduler without segments, for jobs of the given weights.
    pub fn new(weights: BTreeMap<GroupId, NonZeroU32>) -> Self {
        Self {
            weights,
            small: FairQueue::default(),
            bulk: FairQueue::default(),
            overdrafts: BTreeMap::new(),
            group_overdrafts: BTreeMap::new(),
            pulled: BTreeMap::new(),
            retiring: BTreeSet::new(),
            pulls: 0,
        }
    }

    /// Sets the weights of all jobs, by which they share the link.
    pub fn set_weights(&mut self, weights: BTreeMap<GroupId, NonZeroU32>) {
        self.weights = weights;
    }

    /// Queues a segment with the small ones or the bulk, by its size class.
    pub fn push_segment(&mut self, segment: QueuedSegment) {
        match QueuedSegmentClass::of(segment.priority) {
            QueuedSegmentClass::Small => self.small.push_segment(segment),
            QueuedSegmentClass::Bulk => self.bulk.push_segment(segment),
        }
    }

    /// Returns whether a lane could pull a segment of the class now. Small segments of jobs and
    /// groups that must wait for bulk do not count.
    pub fn has_segment(&self, class: QueuedSegmentClass) -> bool {
        match class {
            QueuedSegmentClass::Small => {
                let waiting = self.overdrawn_groups();
                let may_send =
                    |job| !self.is_overdrawn(job) && self.small.has_segment(job, &waiting);
                self.small.waiting_jobs().any(may_send)
            }
            QueuedSegmentClass::Bulk => self.bulk.waiting_jobs().next().is_some(),
        }
    }

    /// Takes the next segment of a class for a lane's connection, and decides its parity. `None` if
    /// there is none that may be sent, or if the lane is being taken away.
    pub fn take_segment(
        &mut self,
        class: QueuedSegmentClass,
        connection: ConnectionId,
    ) -> Option<QueuedSegment> {
        if self.retiring.contains(&connection) {
            return None;
        }
        let mut segment = match class {
            QueuedSegmentClass::Small => self.take_small()?,
            QueuedSegmentClass::Bulk => self.take_bulk()?,
        };
        self.pulls += 1;
        segment.order =
            if class == QueuedSegmentClass::Small { RELEASE_ORDER_FIRST } else { self.pulls };
        if !segment.requeued {
            segment.header.parity = self.parity_for(&segment);
        }
        let pulled = PulledSegment { connection, segment: segment.clone(), stream: None };
        self.pulled.insert(segment.segment_id(), pulled);
        Some(segment)
    }

    /// Removes the queued segments of a group that `which` selects; returns whether there was one.
    pub fn remove_segments(&mut self, group: GroupId, which: impl Fn(&SegmentKey) -> bool) -> bool {
        let small = self.small.remove_segments(group, &which);
        let bulk = self.bulk.remove_segments(group, &which);
        if bulk {
            let jobs_with_bulk: BTreeSet<_> = self.bulk.waiting_jobs().collect();
            self.group_overdrafts.retain(|job, _| jobs_with_bulk.contains(job));
        }
        bulk || small
    }

    /// Drops all segments; returns those that lanes have pulled, whose writers are still to be
    /// stopped.
    pub fn clear(&mut self) -> BTreeMap<SegmentId, PulledSegment> {
        (self.small, self.bulk) = (FairQueue::default(), FairQueue::default());
        self.overdrafts.clear();
        self.group_overdrafts.clear();
        std::mem::take(&mut self.pulled)
    }

    /// Charges bytes of control messages to the share of the job `group`. Does nothing for a job
    /// without a share here, whose messages this gateway only relays.
    pub fn charge_control_bytes(&mut self, group: GroupId, bytes: u64) {
        if self.weights.contains_key(&group) {
            self.overdraw(group, bytes);
        }
    }

    /// Returns whether a job's small segments must wait for other jobs' bulk: its overdraft has
    /// reached a quantum of its weight.
    fn is_overdrawn(&self, group: GroupId) -> bool {
        let overdraft = self.overdrafts.get(&group).copied().unwrap_or(0);
        overdraft >= (QUANTUM_BYTES * self.job_weight(group)) as i64 && self.others_have_bulk(group)
    }

    /// Returns the weight of a job, 1 if it has none.
    fn job_weight(&self, group: GroupId) -> u64 {
        scheduler_job_weight(&self.weights, group)
    }

    /// Returns whether another job has bulk segments that wait.
    fn others_have_bulk(&self, group: GroupId) -> bool {
        self.bulk.waiting_jobs().any(|other| other != group)
    }

    /// Adds bytes to a job's overdraft if other jobs' bulk waits for them.
    fn overdraw(&mut self, group: GroupId, bytes: u64) {
        if self.others_have_bulk(group) {
            *self.overdrafts.entry(group).or_default() += bytes as i64;
            self.bulk.enter_round(group);
        }
    }

    /// Returns the parity shards of a group's next segment. Only the last segments of a collective
    /// have parity: a loss in earlier ones is retransmitted while the rest is sent. A later
    /// collective's segment that overtakes them counts as last as well.
    fn parity_for(&self, next: &QueuedSegment) -> u16 {
        let TailParity { parity, room } = next.tail;
        if parity == 0 {
            return 0;
        }
        let queued = || {
            let small = self.small.segments_of(next.job, next.group);
            small.chain(self.bulk.segments_of(next.job, next.group))
        };
        let pulled = self.pulled.iter().filter(|((group, _), _)| *group == next.group);
        let pulled = pulled.map(|(_, pulled)| &pulled.segment);
        let bytes_of = |some: &mut dyn Iterator<Item = &QueuedSegment>| -> u64 {
            some.map(|segment| segment.payload.len()).sum()
        };
        // A requeued segment counts too: its receiver may hold a part of it.
        let protected = pulled.chain(queued()).filter(|segment| segment.header.parity > 0);
        let used = bytes_of(&mut protected.into_iter());
        let follows = |one: &&QueuedSegment| one.header.key.sequence >= next.header.key.sequence;
        let following = bytes_of(&mut queued().filter(follows));
        if following < room && used + next.payload.len() <= room { parity } else { 0 }
    }

    /// Takes the next bulk segment; each turn of a job first repays the overdraft of its small
    /// segments.
    fn take_bulk(&mut self) -> Option<QueuedSegment> {
        if !self.has_segment(QueuedSegmentClass::Bulk) {
            return None;
        }
        let small: BTreeSet<_> = self.small.waiting_jobs().collect();
        let heaviest = self.heaviest_weight(&self.bulk);
        let mut turn = |group, has_segment: bool| {
            let quantum =
                scheduler_quantum_bytes(scheduler_job_weight(&self.weights, group), heaviest);
            let overdraft = self.overdrafts.entry(group).or_default();
            let repaid = match has_segment {
                true => (*overdraft).clamp(0, quantum as i64),
                false if small.contains(&group) => quantum as i64,
                false if *overdraft <= 0 => {
                    self.overdrafts.remove(&group);
                    return None;
                }
                false => (*overdraft).min(quantum as i64),
            };
            *overdraft -= repaid;
            Some(quantum - repaid as u64)
        };
        let segment = self.bulk.take_segment(&BTreeSet::new(), &mut turn)?;
        self.repay_groups(segment.job, segment.group, segment.payload.len());
        Some(segment)
    }

    /// Returns the groups whose small segments must wait for bulk of other groups of their jobs.
    fn overdrawn_groups(&self) -> BTreeSet<GroupId> {
        let of_jobs = self.group_overdrafts.iter();
        let overdrawn = of_jobs.flat_map(|(job, groups)| {
            let groups = groups.iter().filter(|(_, overdraft)| **overdraft >= QUANTUM_BYTES as i64);
            groups.filter(|(group, _)| self.bulk.has_segment_beside(*job, **group))
        });
        overdrawn.map(|(group, _)| *group).collect()
    }

    /// Adds bytes of small segments to a group's overdraft if bulk of other groups of its job waits for
    /// them.
    fn overdraw_group(&mut self, job: GroupId, group: GroupId, bytes: u64) {
        if self.bulk.has_segment_beside(job, group) {
            *self.group_overdrafts.entry(job).or_default().entry(group).or_default() +=
                bytes as i64;
        }
    }

    /// Repays the overdrafts of groups by bulk that another group of their job has sent.
    fn repay_groups(&mut self, job: GroupId, sender: GroupId, bytes: u64) {
        let Some(groups) = self.group_overdrafts.get_mut(&job) else { return };
        let with_small = self.small.groups_of(job);
        groups.retain(|group, overdraft| {
            if *group != sender {
                *overdraft -= bytes as i64;
            }
            // A group without small segments saves nothing up.
            if !with_small.contains(group) {
                *overdraft = (*overdraft).max(0);
            }
            *overdraft != 0
        });
        if groups.is_empty() || !self.bulk.has_segment(job, &BTreeSet::new()) {
            self.group_overdrafts.remove(&job);
        }
    }

    /// Takes the next small segment of a job that is not overdrawn; `None` if there is none.
    fn take_small(&mut self) -> Option<QueuedSegment> {
        if !self.has_segment(QueuedSegmentClass::Small) {
            return None;
        }
        let overdrawn: Vec<_> =
            self.small.waiting_jobs().filter(|group| self.is_overdrawn(*group)).collect();
        let entries = self.small.round.iter_mut();
        entries.filter(|entry| overdrawn.contains(&entry.job)).for_each(|entry| entry.deficit = 0);
        let heaviest = self.heaviest_weight(&self.small);
        let waiting = self.overdrawn_groups();
        let queued: BTreeSet<_> = self.small.waiting_jobs().collect();
        let segment = self.small.take_segment(&waiting, &mut |job, _| {
            let quantum =
                scheduler_quantum_bytes(scheduler_job_weight(&self.weights, job), heaviest);
            queued.contains(&job).then_some(if overdrawn.contains(&job) { 0 } else { quantum })
        })?;
        self.overdraw(segment.job, segment.payload.len());
        self.overdraw_group(segment.job, segment.group, segment.payload.len());
        Some(segment)
    }

    /// Returns the weight of the heaviest job in the round of `queue`.
    fn heaviest_weight(&self, queue: &FairQueue) -> u64 {
        queue.round.iter().map(|entry| self.job_weight(entry.job)).max().unwrap_or(1)
    }
}

impl PulledSegment {
    /// Stops the writer of the segment, and resets its stream if it is written.
    pub fn stop_writer(self) {
        self.segment.cancel.cancel();
        if let Some(mut stream) = self.stream {
            // A stream that is finished and acknowledged needs no reset.
            let _ = stream.reset(SEGMENT_CANCELLED_CODE.into());
        }
    }
}

/// Returns the weight of a job among `weights`, 1 if it has none there.
fn scheduler_job_weight(weights: &BTreeMap<GroupId, NonZeroU32>, group: GroupId) -> u64 {
    weights.get(&group).map_or(1, |weight| weight.get().into())
}

/// Returns the bytes that a job of this weight may send in each turn, at least 1. They are
/// [`QUANTUM_BYTES`] for the job of the largest weight, `heaviest`, and in proportion for others.
fn scheduler_quantum_bytes(weight: u64, heaviest: u64) -> u64 {
    (QUANTUM_BYTES * weight / heaviest).max(1)
}
