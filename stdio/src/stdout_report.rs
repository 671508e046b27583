//! A report on standard output, which is written whole or fails the command.

use crate::write_whole;
use rustix::process::{Resource, getrlimit};
use std::io;

/// A report was not written, or only a part of it. The command has failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}{remedy}", remedy = stdout_report_remedy(.0))]
pub struct UnwrittenReport(io::Error);

impl UnwrittenReport {
    /// Returns whether the reader has closed the pipe, as `head` does. It then knows more than any
    /// message tells it.
    pub fn is_reader_gone(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

impl From<UnwrittenReport> for io::Error {
    /// Makes an I/O error with the kind and the text of the unwritten report.
    fn from(unwritten: UnwrittenReport) -> Self {
        Self::new(unwritten.0.kind(), unwritten)
    }
}

/// Returns the limit on the size of files (`ulimit -f`) and the remedy, where a write has met that
/// limit; else an empty text.
fn stdout_report_remedy(error: &io::Error) -> String {
    let limit = getrlimit(Resource::Fsize).current;
    let met = limit.filter(|_| error.kind() == io::ErrorKind::FileTooLarge);
    met.map_or_else(String::new, |limit| {
        let limit = units::ByteCount::new(limit).rounded();
        format!(": the limit is {limit} (ulimit -f); raise it")
    })
}

/// Writes a report and a line break to standard output; waits for its reader. Writes nothing where
/// the report is empty.
///
/// # Errors
/// [`UnwrittenReport`]: the reader is gone, or the disk is full.
pub fn write_stdout_report(report: &str) -> Result<(), UnwrittenReport> {
    let report = report.trim_end();
    let text = if report.is_empty() { String::new() } else { format!("{report}\n") };
    let (_, outcome) = write_whole::write_whole(rustix::stdio::stdout(), text.as_bytes());
    outcome.map_err(UnwrittenReport)
}
