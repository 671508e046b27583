//! The records of a rank: its last collectives, and what it knows of its job.
//!
//! Tasks of the connection and threads that write dumps share it. A lock is held for a moment only.

use super::client_dump::{ClientDump, DumpedCollective};
use crate::events::GroupNumber;
use crate::lock::lock_ignoring_poison;
use hier_collectives::descriptor::{Dtype, Pattern, ReduceOp, SlotElements};
use hier_collectives::ids::{Epoch, RankId, Sequence};
use hier_collectives::post::Failure;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::SystemTime;

/// 512 collectives of one rank, in all its groups: the recorder forgets older ones. The number is
/// chosen: twice as many as may be under way, so that what came before them is seen too.
/// Tested by `the_last_collectives_of_a_rank_are_kept`.
pub(super) const RECORDED_COLLECTIVES_MAX: usize = 512;

/// A collective as its rank has posted it.
#[derive(Debug, Clone, Copy)]
pub(in crate::client) struct RecordedPost {
    /// The number by which this rank knows the group.
    pub group: GroupNumber,
    /// The epoch of the group.
    pub epoch: Epoch,
    /// Its number in the group.
    pub sequence: Sequence,
    /// Its pattern.
    pub pattern: Pattern,
    /// Its reduction, where the pattern reduces.
    pub op: ReduceOp,
    /// Its element type.
    pub dtype: Dtype,
    /// Elements of contribution and result.
    pub elements: SlotElements,
}

/// A collective of this rank, with the times of its post and of its end.
#[derive(Debug)]
struct RecordedCollective {
    post: RecordedPost,
    posted: SystemTime,
    /// The time of its end, and the failure if it failed; `None` while it is under way.
    end: Option<(SystemTime, Option<Failure>)>,
}

/// The last collectives of a rank, in the order of their posts.
#[derive(Debug, Default)]
struct RecordedCollectives {
    last: VecDeque<RecordedCollective>,
    /// Number of collectives that were forgotten: the number of the first record.
    forgotten: u64,
}

/// Facts of a rank's job, which another attachment may change.
#[derive(Debug, Clone, Default)]
struct JobFacts {
    fabric: String,
    world_size: u32,
}

/// The flight recorder of a rank.
#[derive(Debug)]
pub(super) struct RankRecorder {
    job: String,
    rank: RankId,
    facts: Mutex<JobFacts>,
    collectives: Mutex<RecordedCollectives>,
}

impl RankRecorder {
    /// Makes the empty recorder of a rank of a job.
    pub fn new(job: &str, rank: RankId) -> Self {
        let (facts, collectives) = (Mutex::default(), Mutex::default());
        Self { job: job.to_owned(), rank, facts, collectives }
    }

    /// Adds a collective that was posted at this time; returns the number of its record.
    pub fn add(&self, post: RecordedPost, posted: SystemTime) -> u64 {
        let record = RecordedCollective { post, posted, end: None };
        lock_ignoring_poison(&self.collectives).add(record)
    }

    /// Records that a collective ended at this time: with its result, or with a failure. Does nothing
    /// for one that has ended, or was forgotten.
    pub fn note_end(&self, number: u64, ended: SystemTime, failure: Option<&Failure>) {
        let mut collectives = lock_ignoring_poison(&self.collectives);
        let at = number.checked_sub(collectives.forgotten);
        let at = at.and_then(|at| usize::try_from(at).ok());
        if let Some(record) = at.and_then(|at| collectives.last.get_mut(at)) {
            record.end.get_or_insert_with(|| (ended, failure.cloned()));
        }
    }

    /// Stores what the gateway says of the job: the fabric's name, and the number of its ranks.
    pub fn note_job(&self, fabric: &str, world_size: u32) {
        let fabric = fabric.to_owned();
        *lock_ignoring_poison(&self.facts) = JobFacts { fabric, world_size };
    }

    /// Stores the number of ranks with which the job goes on.
    pub fn note_world_size(&self, world_size: u32) {
        lock_ignoring_poison(&self.facts).world_size = world_size;
    }

    /// Returns the records in the form of a dump.
    pub fn dump(&self) -> ClientDump {
        let JobFacts { fabric, world_size } = lock_ignoring_poison(&self.facts).clone();
        let collectives = lock_ignoring_poison(&self.collectives);
        ClientDump {
            fabric,
            job: self.job.clone(),
            rank: self.rank.0,
            world_size,
            dumped_seconds: unix_seconds(SystemTime::now()),
            collectives: collectives.last.iter().map(RecordedCollective::describe).collect(),
        }
    }
}

impl RecordedCollectives {
    /// Adds a record, and forgets the oldest one where there is no room; returns its number.
    fn add(&mut self, record: RecordedCollective) -> u64 {
        if self.last.len() == RECORDED_COLLECTIVES_MAX {
            self.last.pop_front();
            self.forgotten += 1;
        }
        self.last.push_back(record);
        self.forgotten + self.last.len() as u64 - 1
    }
}

impl RecordedCollective {
    /// Returns the record in the form of a dump.
    fn describe(&self) -> DumpedCollective {
        let RecordedPost { group, epoch, sequence, pattern, op, dtype, elements } = self.post;
        let SlotElements { contribution, result } = elements;
        let (ended, failure) = match &self.end {
            None => (None, None),
            Some((ended, failure)) => (Some(unix_seconds(*ended)), failure.as_ref()),
        };
        DumpedCollective {
            group: group.0,
            epoch: epoch.0,
            sequence: sequence.0,
            operation: pattern.name().replace('-', "_"),
            op: pattern.is_reduced().then(|| op.name().to_owned()),
            root: pattern.root().map(|root| root.0),
            dtype: dtype.name().to_owned(),
            // A rank that only receives has no contribution.
            shape: vec![if contribution == 0 { result } else { contribution }],
            contribution_bytes: contribution.saturating_mul(dtype.size()),
            result_bytes: result.saturating_mul(dtype.size()),
            posted_seconds: unix_seconds(self.posted),
            ended_seconds: ended,
            code: failure.map(|failure| failure.code as u8),
            error_text: failure.map(ToString::to_string),
        }
    }
}

/// Returns the seconds from the start of 1970 to a time; 0 for an earlier one.
pub(super) fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
