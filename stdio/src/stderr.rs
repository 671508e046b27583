//! The one queue of lines for standard error: log lines, messages and progress.

use crate::line_queue::LineQueue;
use crate::write_whole;
use std::fmt::Display;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

/// 500 ms: the longest wait at the end of a command until standard error has taken all lines; lines
/// that still wait are lost. Supervisors commonly kill a gateway 30 s after SIGTERM, 29 s of which
/// it may need.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// The one queue of lines for standard error, which its first use starts; `None` inside where the
/// system refused the queue's thread.
static STDERR_QUEUE: OnceLock<Option<LineQueue>> = OnceLock::new();

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
