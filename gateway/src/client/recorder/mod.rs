//! The flight recorder of a rank: its last collectives, for the question why a step hangs.
//!
//! It has them for all groups of the rank, and outlives connections. A post adds a record, and the end of
//! the collective completes it (`connection`); nobody waits for more than the lock of a moment.
//! [`client_dump`] is the form in which it is written, which is that of the client in Python.
//! [`failure_dumps`] writes it on a thread of its own when a collective fails.

pub(super) mod client_dump;
mod failure_dumps;
pub(super) mod flight_recorder;
#[cfg(test)]
mod tests;

use super::attach::AttachOptions;
use client_dump::ClientDump;
use failure_dumps::FailureDumps;
use flight_recorder::{RankRecorder, RecordedPost};
use hier_collectives::post::{Failure, FailureCode};
use std::sync::Arc;
use std::time::SystemTime;

/// The hold of a rank's connections on its recorder. Dropping the last waits for a dump that is being
/// written, 1 s at most.
#[derive(Debug)]
pub(super) struct RankRecorderHold {
    recorder: Arc<RankRecorder>,
    dumps: Option<Arc<FailureDumps>>,
}

/// The record of a collective under way, whose end is still to be noted.
#[derive(Debug)]
pub(super) struct CollectiveRecord {
    recorder: Arc<RankRecorder>,
    number: u64,
}

impl RankRecorderHold {
    /// Makes the recorder of a rank that attaches by `options`, which name a folder if its failures are
    /// to be dumped.
    pub fn new(options: &AttachOptions) -> Self {
        let recorder = Arc::new(RankRecorder::new(&options.job, options.rank));
        let dumps = options.dumps.clone().map(|folder| {
            let writer = format!("{}-rank-{}", options.job, options.rank);
            Arc::new(FailureDumps::new(folder, writer, Arc::clone(&recorder)))
        });
        Self { recorder, dumps }
    }

    /// Adds a collective that is posted now; returns the record, which takes its end.
    pub fn record_post(&self, post: RecordedPost) -> CollectiveRecord {
        let number = self.recorder.add(post, SystemTime::now());
        CollectiveRecord { recorder: Arc::clone(&self.recorder), number }
    }

    /// Stores what the gateway says of the job: the fabric's name, and the number of its ranks.
    pub fn note_job(&self, fabric: &str, world_size: u32) {
        self.recorder.note_job(fabric, world_size);
    }

    /// Stores the number of ranks with which the job goes on.
    pub fn note_world_size(&self, world_size: u32) {
        self.recorder.note_world_size(world_size);
    }

    /// Has the recorder written into the folder of dumps, if there is one and somebody should look at a
    /// failure of this code. Waits for nothing.
    pub fn note_failure(&self, code: FailureCode) {
        if let Some(dumps) = &self.dumps {
            dumps.note_failure(code);
        }
    }

    /// Returns the records of this moment.
    pub fn dump(&self) -> ClientDump {
        self.recorder.dump()
    }
}

impl Drop for RankRecorderHold {
    /// Lets a dump under way be finished.
    fn drop(&mut self) {
        if let Some(dumps) = &self.dumps {
            dumps.end();
        }
    }
}

impl CollectiveRecord {
    /// Records that the collective ends now: with its result, or with a failure.
    pub fn note_end(&self, failure: Option<&Failure>) {
        self.recorder.note_end(self.number, SystemTime::now(), failure);
    }
}
