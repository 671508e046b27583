//! Dumps that a client writes by itself when a collective of its rank fails.
//!
//! The task that hears of the failure starts a thread, which writes the dump, and then waits until the next
//! one may follow. So no collective waits for a disk. Dumps are at least [`DUMP_INTERVAL`] apart.

use super::flight_recorder::{RankRecorder, unix_seconds};
use crate::dump_folder::{DUMP_INTERVAL, DumpFolder};
use crate::failure_signal::is_failure_to_look_at;
use crate::limits::thread_limits::spawn_thread_within_limits;
use crate::lock::lock_ignoring_poison;
use hier_collectives::post::FailureCode;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tracing::{info, warn};

/// 1 s: the longest wait for a dump when the rank detaches. After that time a slow disk is left alone,
/// and the dump may be missing. The time is chosen: a disk that works takes milliseconds.
const END_WAIT_MAX: Duration = Duration::from_secs(1);

/// The folder into which the failures of one rank are dumped.
#[derive(Debug)]
pub(super) struct FailureDumps {
    folder: DumpFolder,
    recorder: Arc<RankRecorder>,
    pub(super) progress: Mutex<DumpProgress>,
    changed: Condvar,
}

/// The progress of the thread that writes dumps.
#[derive(Debug, Default)]
pub(super) struct DumpProgress {
    /// Whether a failure has no dump yet.
    pub(super) is_due: bool,
    /// Whether the thread runs.
    pub(super) is_running: bool,
    /// Whether the thread writes at this moment.
    pub(super) is_writing: bool,
    /// Whether the rank is detached for good.
    is_over: bool,
}

impl DumpProgress {
    /// Returns whether the thread will write, or does so now.
    fn has_work(&self) -> bool {
        self.is_writing || self.is_running && self.is_due
    }
}

impl FailureDumps {
    /// Prepares dumps of a recorder in a folder, in files that begin with the name of the writer. Nothing
    /// is written yet.
    pub fn new(folder: PathBuf, writer: String, recorder: Arc<RankRecorder>) -> Self {
        let folder = DumpFolder { folder, writer };
        Self { folder, recorder, progress: Mutex::default(), changed: Condvar::new() }
    }

    /// Has the recorder written for a failure, unless it follows another one, or an operator or the program
    /// asked for it. Waits for nothing.
    pub fn note_failure(self: &Arc<Self>, code: FailureCode) {
        // The gateway that is lost writes no dump.
        if !is_failure_to_look_at(code) && code != FailureCode::GatewayLost {
            return;
        }
        let mut progress = lock_ignoring_poison(&self.progress);
        progress.is_due = true;
        if progress.is_running || progress.is_over {
            return;
        }
        let dumps = Arc::clone(self);
        let body = move || dumps.write_due_dumps();
        match spawn_thread_within_limits("landbridge-dump", body) {
            Ok(_) => progress.is_running = true,
            Err(error) => warn!("a collective failed, and there is no thread to dump it: {error}"),
        }
    }

    /// Writes a dump, and one more after each interval in which something failed.
    fn write_due_dumps(&self) {
        let mut progress = lock_ignoring_poison(&self.progress);
        while progress.is_due {
            (progress.is_due, progress.is_writing) = (false, true);
            drop(progress);
            self.write();
            progress = lock_ignoring_poison(&self.progress);
            progress.is_writing = false;
            self.changed.notify_all();
            let waited =
                self.changed.wait_timeout_while(progress, DUMP_INTERVAL, |now| !now.is_over);
            (progress, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        progress.is_running = false;
    }

    /// Writes one dump. A folder that takes none costs a warning.
    fn write(&self) {
        let text = self.recorder.dump().to_json();
        match self.folder.write(&text, unix_seconds(SystemTime::now()) as u64) {
            Ok(path) => info!("a collective failed: `landbridge explain` reads {}", path.display()),
            Err(error) => warn!(
                "a collective failed, and its dump cannot be written into {}: {error}",
                self.folder.folder.display()
            ),
        }
    }

    /// Waits until a dump that is due is written, [`END_WAIT_MAX`] at most, and lets the thread end.
    pub fn end(&self) {
        let mut progress = lock_ignoring_poison(&self.progress);
        progress.is_over = true;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(progress, END_WAIT_MAX, |now| now.has_work());
        drop(waited);
    }
}
