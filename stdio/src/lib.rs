//! Standard output and standard error of a command.
//!
//! A report goes to standard output. It is written whole, or the command fails with
//! [`UnwrittenReport`]. Everything else goes to standard error through one [`LineQueue`]: log
//! lines, messages and progress. So no caller ever waits for the reader of standard error, and an
//! unwritten line is counted. A terminal neither stops a program that writes in its background nor
//! ends one that shall outlive it.
//!
//! Files that a user names are read here too: nobody waits for a pipe without a writer.
//!
//! All functions may be called on any thread. `println!` and `eprintln!` are no substitute: they
//! panic where a stream is full or closed.

// They panic or wait where a stream is closed, full or not read: use `stdio`.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod columns;
mod drawing_terminal;
mod input_file;
mod line_queue;
mod terminal_signals;
mod word_wrap;
mod write_whole;

pub use columns::{help_columns, output_columns};
pub use drawing_terminal::is_drawing_terminal;
pub use input_file::{open_input_file, read_input_file_up_to, read_input_text_up_to};
pub use line_queue::{LineQueue, OwnFormat};
pub use terminal_signals::{
    ExitOnTerminalSignal, allow_terminal_background_writes, forbid_terminal_background_writes,
    is_terminal_hangup_ignored, unblock_terminal_signals,
};
pub use word_wrap::wrap_words;

use rustix::process::{Resource, getrlimit};
use std::fmt::Display;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

/// 500 ms: the longest wait for lines on standard error at the end of a command. Supervisors
/// commonly kill a gateway 30 s after SIGTERM, 29 s of which it may need.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// The one queue of lines for standard error, made by its first use; `None` where the system gave
/// it no thread.
static STDERR_QUEUE: OnceLock<Option<LineQueue>> = OnceLock::new();

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

/// Returns the queue of standard error. The first call starts its thread.
///
/// # Errors
/// The system gives no thread.
pub fn stderr_queue() -> io::Result<&'static LineQueue> {
    let start = || LineQueue::start("stderr", rustix::stdio::stderr()).ok();
    let queue = STDERR_QUEUE.get_or_init(start).as_ref();
    queue.ok_or_else(|| io::Error::other("a thread for standard error was refused"))
}

/// Queues a message and a line break for standard error. The message may be lost.
pub fn print_stderr_message(message: impl Display) {
    let text = message.to_string();
    let text = text.trim_end();
    match stderr_queue() {
        Ok(queue) => {
            // A lost line is counted by the queue.
            queue.offer_message(text);
        }
        // The message may say why there is no thread. It is the last of a command that fails.
        Err(_) => {
            let line = format!("{text}\n");
            drop(write_whole::write_whole(rustix::stdio::stderr(), line.as_bytes()));
        }
    }
}

/// Queues progress for standard error if nothing else waits for its reader. Returns whether it was
/// queued. Progress that is not shown is not counted as lost.
pub fn show_stderr_progress(text: &str) -> bool {
    stderr_queue().is_ok_and(|queue| queue.offer_progress(text.as_bytes()))
}

/// Waits until standard error has taken everything, at most 500 ms. Returns whether it has. Every
/// program calls this last.
pub fn flush_stderr() -> bool {
    let queue = STDERR_QUEUE.get().and_then(Option::as_ref);
    queue.is_none_or(|queue| queue.flush(FLUSH_TIMEOUT))
}
