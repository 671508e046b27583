//! Logs on stderr, filtered by LANDBRIDGE_LOG.
//!
//! Lines go through the queue of [`stdio`], so that no thread waits for whoever reads the log.

use super::exit::CommandError;
use super::log_line::OneLine;
use gateway::limits::threads::explain_thread_refusal;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use stdio::LineQueue;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// Target of the log lines of the binary itself: a filter such as `gateway=debug` covers the
/// library and the command line alike.
pub(crate) const LOG_TARGET: &str = "gateway::cli";

/// Environment variable with the log filter.
const LOG_VARIABLE: &str = "LANDBRIDGE_LOG";

/// Log filter in force when LANDBRIDGE_LOG is unset or empty.
const DEFAULT_LOG_FILTER: &str = "info";

/// Sends log lines to stderr from now on, filtered by LANDBRIDGE_LOG, and panics unfiltered.
/// `count_lost` hears of each line that was lost, because stderr is full, closed or not read.
///
/// # Errors
/// [`CommandError::Usage`] when the variable holds no filter; [`CommandError::System`] when there
/// is no thread for the log.
pub(crate) fn log_to_stderr(count_lost: impl Fn(u64) + Send + 'static) -> Result<(), CommandError> {
    let text = std::env::var_os(LOG_VARIABLE).unwrap_or_default();
    let filter = parse_log_filter(&text.to_string_lossy()).ok_or_else(|| {
        CommandError::Usage(format!(
            "{LOG_VARIABLE}={text:?}: not a log filter; accepted: error, warn, info, debug, trace \
             or off, and TARGET=LEVEL, with commas between several"
        ))
    })?;
    let queue = stdio::stderr_queue().map_err(|error| explain_thread_refusal("stderr", error))?;
    queue.observe_losses(count_lost);
    // The subscriber would print its own errors by `eprintln!`, which panics.
    let lines = tracing_subscriber::fmt::layer()
        .log_internal_errors(false)
        .with_writer(move || OneLine(QueuedLine(queue)));
    tracing_subscriber::registry().with(lines).with(filter).init();
    // The default hook would wait for the reader of stderr, on the thread that panicked.
    std::panic::set_hook(Box::new(move |panic| log_panic(queue, panic)));
    Ok(())
}

/// Writer that queues each event as one line, and never fails: the queue counts what is lost.
struct QueuedLine(&'static LineQueue);

impl Write for QueuedLine {
    /// Queues one log event.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.offer(event);
        Ok(event.len())
    }

    /// Does nothing: the queue's thread writes as soon as it can.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Queues a panic as one line, and its backtrace where RUST_BACKTRACE asks for one.
fn log_panic(queue: &'static LineQueue, panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let line = format!("thread '{}' {panic}\n", thread.name().unwrap_or("unnamed"));
    // Never fails.
    let _ = OneLine(QueuedLine(queue)).write(line.as_bytes());
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        queue.offer(format!("{trace}\n").as_bytes());
    }
}

/// Parses a log filter; `None` if it is malformed. A word by itself must be a level: [`Targets`]
/// takes any other word for a target, so that a misspelt level would silence the log.
fn parse_log_filter(text: &str) -> Option<Targets> {
    let is_level = |word: &str| {
        let levels = ["error", "warn", "info", "debug", "trace", "off"];
        levels.iter().any(|level| word.eq_ignore_ascii_case(level))
    };
    let text = if text.is_empty() { DEFAULT_LOG_FILTER } else { text };
    let mut words = text.split(',');
    let valid = words.all(|word| match word.rsplit_once('=') {
        Some((target, level)) => !target.is_empty() && is_level(level),
        None => is_level(word),
    });
    let targets: Targets = text.parse().ok().filter(|_| valid)?;
    // Without a level of its own, the rest of the program still logs errors.
    let has_default = targets.default_level().is_some();
    Some(if has_default { targets } else { targets.with_default(LevelFilter::ERROR) })
}

#[cfg(test)]
mod tests {
    use super::parse_log_filter;

    #[test]
    fn a_misspelt_level_is_no_filter() {
        for good in ["", "info", "DEBUG", "off", "warn,gateway::wan=trace", "quinn=off"] {
            assert!(parse_log_filter(good).is_some(), "{good}");
        }
        for bad in ["debgu", "info,", "gateway", "gateway=loud", "=info", "info;debug", " "] {
            assert!(parse_log_filter(bad).is_none(), "{bad}");
        }
    }
}
