//! The file of `landbridge run --trace`: a thread writes records as JSON lines.
//!
//! Lanes never wait for it: where the file is slow, records are lost, and a line tells how many.

use crate::cli::output::command_error::CommandError;
use crate::cli::output::logging::LOG_TARGET;
use gateway::limits::thread_limits::spawn_thread_within_limits;
use gateway::wan::link_trace::{LinkTrace, LinkTraceReader};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::warn;

/// 200 ms: records in memory are written to the trace's file once no other has come for so long, or
/// when the buffer is full. The time is chosen, so that one can follow a trace as it grows.
const TRACE_FLUSH_INTERVAL: Duration = Duration::from_millis(200);

/// A trace that is being written.
pub(super) struct TraceFile {
    is_ending: Arc<AtomicBool>,
    writer: JoinHandle<()>,
}

impl TraceFile {
    /// Creates the file, starts its thread, and returns the trace to write to.
    pub fn create(path: &Path) -> Result<(Self, LinkTrace), CommandError> {
        let unusable = |source| CommandError::Path { path: path.to_owned(), source };
        let mut file = BufWriter::new(File::create(path).map_err(unusable)?);
        let (trace, mut reader) = LinkTrace::with_reader();
        let is_ending = Arc::new(AtomicBool::new(false));
        let (ending, name) = (Arc::clone(&is_ending), path.display().to_string());
        let writer = spawn_thread_within_limits("trace", move || {
            if let Err(error) = write_trace_file(&mut reader, &mut file, &ending) {
                warn!(target: LOG_TARGET, "the trace ends, since {name} cannot be written: {error}");
            }
        })?;
        Ok((Self { is_ending, writer }, trace))
    }

    /// Writes what is left, and ends the file.
    pub fn finish(self) {
        self.is_ending.store(true, Ordering::Relaxed);
        // The panic of the thread is logged, and ends nothing else.
        let _ = self.writer.join();
    }
}

/// Writes records as they come, until the trace ends.
fn write_trace_file(
    reader: &mut LinkTraceReader,
    file: &mut impl Write,
    is_ending: &AtomicBool,
) -> io::Result<()> {
    loop {
        // Read first, so that what was offered before the end is written.
        let ends = is_ending.load(Ordering::Relaxed);
        match reader.next_record(TRACE_FLUSH_INTERVAL) {
            Ok(Some(record)) => {
                serde_json::to_writer(&mut *file, &record)?;
                file.write_all(b"\n")?;
            }
            Ok(None) if !ends => file.flush()?,
            Ok(None) | Err(_) => return file.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_file_that_nobody_writes_to_ends() {
        let (_trace, mut reader) = LinkTrace::with_reader();
        let mut file = Vec::new();
        write_trace_file(&mut reader, &mut file, &AtomicBool::new(true)).expect("in memory");
        assert!(file.is_empty());
    }

    #[test]
    fn a_trace_file_in_a_missing_folder_is_named() {
        let missing = tempfile::tempdir().expect("a folder").path().join("none/trace.jsonl");
        let Err(error) = TraceFile::create(&missing) else { panic!("it is missing") };
        assert!(error.to_string().contains("none/trace.jsonl"), "{error}");
    }
}
