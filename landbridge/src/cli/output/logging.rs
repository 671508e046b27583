//! Logs on stderr, filtered by LANDBRIDGE_LOG, in the format of LANDBRIDGE_LOG_FORMAT.
//!
//! Lines go through the queue of [`stdio`], so that no thread waits for whoever reads the log.

use super::command_error::CommandError;
use super::json_log::{JsonLogLines, own_json_log_line};
use super::log_line::LogLineWriter;
use super::sentence_fields::SentenceFields;
use gateway::limits::thread_limits::explain_thread_limits;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use stdio::LineQueue;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::time::SystemTime;
use tracing_subscriber::prelude::*;

/// The target of the log lines of the command line. It begins with `gateway`, so that a filter such
/// as `gateway=debug` covers library and command line alike.
pub(crate) const LOG_TARGET: &str = "gateway::cli";

/// LANDBRIDGE_LOG: the environment variable with the filter of log lines, such as `debug`. A
/// malformed filter is refused as wrong usage.
const LOG_VARIABLE: &str = "LANDBRIDGE_LOG";

/// The filter of log lines where LANDBRIDGE_LOG is unset or empty: the level `info` and above.
const DEFAULT_LOG_FILTER: &str = "info";

/// LANDBRIDGE_LOG_FORMAT: the environment variable with the format of log lines, `text` or `json`.
/// Any other word is refused as wrong usage.
const FORMAT_VARIABLE: &str = "LANDBRIDGE_LOG_FORMAT";

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogFormat {
    /// Time, level, target and a sentence, for people.
    Text,
    /// A JSON object with fields, for programs.
    Json,
}

/// Sends log lines to stderr from now on, filtered by LANDBRIDGE_LOG, and panics unfiltered.
/// `count_lost` hears of each line that was lost, because stderr is full, closed or not read.
///
/// # Errors
/// [`CommandError::Usage`] when a variable holds no filter or no format; [`CommandError::System`]
/// when there is no thread for the log.
pub(crate) fn log_to_stderr(count_lost: impl Fn(u64) + Send + 'static) -> Result<(), CommandError> {
    let text = std::env::var_os(LOG_VARIABLE).unwrap_or_default();
    let filter = parse_log_filter(&text.to_string_lossy()).ok_or_else(|| {
        CommandError::Usage(format!(
            "{LOG_VARIABLE}={text:?}: not a log filter; accepted: error, warn, info, debug, trace \
             or off, and TARGET=LEVEL, with commas between several"
        ))
    })?;
    let text = std::env::var_os(FORMAT_VARIABLE).unwrap_or_default();
    let format = parse_log_format(&text.to_string_lossy()).ok_or_else(|| {
        CommandError::Usage(format!(
            "{FORMAT_VARIABLE}={text:?}: not a log format; accepted: text, json"
        ))
    })?;
    let queue = stdio::stderr_queue().map_err(|error| explain_thread_limits("stderr", error))?;
    queue.observe_losses(count_lost);
    // The subscriber would print its own errors by `eprintln!`, which panics.
    let lines = tracing_subscriber::fmt::layer()
        .log_internal_errors(false)
        .with_writer(move || LogLineWriter(LoggingQueueWriter(queue)));
    match format {
        LogFormat::Text => {
            let lines = lines.fmt_fields(SentenceFields);
            tracing_subscriber::registry().with(lines).with(filter).init();
        }
        LogFormat::Json => {
            queue.set_own_format(own_json_log_line);
            let lines = lines.event_format(JsonLogLines(SystemTime));
            tracing_subscriber::registry().with(lines).with(filter).init();
        }
    }
    // The default hook would wait for the reader of stderr, on the thread that panicked.
    std::panic::set_hook(Box::new(move |panic| log_panic(queue, format, panic)));
    Ok(())
}

/// Writer that queues each event as one line, and never fails: the queue counts what is lost.
struct LoggingQueueWriter(&'static LineQueue);

impl Write for LoggingQueueWriter {
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

/// Queues the message of a panic, and its backtrace where RUST_BACKTRACE asks for one. In JSON both
/// are one line, else the message is a line and the backtrace follows.
fn log_panic(queue: &'static LineQueue, format: LogFormat, panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let line = format!("thread '{}' {panic}\n", thread.name().unwrap_or("unnamed"));
    let trace = Backtrace::capture();
    let trace = (trace.status() == BacktraceStatus::Captured).then(|| format!("{trace}\n"));
    match format {
        LogFormat::Text => {
            // Never fails.
            let _ = LogLineWriter(LoggingQueueWriter(queue)).write(line.as_bytes());
            if let Some(trace) = trace {
                queue.offer(trace.as_bytes());
            }
        }
        LogFormat::Json => {
            queue.offer_message((line + trace.as_deref().unwrap_or_default()).trim_end());
        }
    }
}

/// Parses a log format: `text`, also for an empty text, or `json`. Returns `None` for any other
/// word.
fn parse_log_format(text: &str) -> Option<LogFormat> {
    match text {
        "" | "text" => Some(LogFormat::Text),
        "json" => Some(LogFormat::Json),
        _ => None,
    }
}

/// Parses a log filter; `None` if it is malformed. A word by itself must be a level: [`Targets`]
/// takes any other word for a target, so that a misspelt level would silence the log. The target
/// `landbridge` stands for the whole program, whose own lines have targets of the library.
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
    let whole = text.split(',').filter_map(|word| word.strip_prefix("landbridge="));
    // A later word about the library by its own name wins.
    let whole = whole.map(|level| format!("gateway={level},")).collect::<String>();
    let targets: Targets = (whole + text).parse().ok().filter(|_| valid)?;
    // Without a level of its own, the rest of the program still logs errors.
    let has_default = targets.default_level().is_some();
    Some(if has_default { targets } else { targets.with_default(LevelFilter::ERROR) })
}

#[cfg(test)]
mod tests {
    use super::{LogFormat, parse_log_filter, parse_log_format};
    use tracing_subscriber::filter::LevelFilter;

    #[test]
    fn a_misspelt_level_is_no_filter() {
        for good in ["", "info", "DEBUG", "off", "warn,gateway::wan=trace", "quinn=off"] {
            assert!(parse_log_filter(good).is_some(), "{good}");
        }
        for bad in ["debgu", "info,", "gateway", "gateway=loud", "=info", "info;debug", " "] {
            assert!(parse_log_filter(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn the_target_landbridge_is_the_whole_program() {
        let level = |filter: &str, target: &str| {
            let targets = parse_log_filter(filter).expect("a filter");
            let levels = [LevelFilter::DEBUG, LevelFilter::INFO, LevelFilter::WARN];
            levels
                .into_iter()
                .find(|level| targets.would_enable(target, &level.into_level().expect("no OFF")))
        };
        let debug = Some(LevelFilter::DEBUG);
        assert_eq!(level("landbridge=debug", "gateway::engine"), debug);
        assert_eq!(level("landbridge=debug", "landbridge::flight"), debug);
        assert_eq!(level("landbridge=debug", "quinn"), None, "errors only");
        let (both, warn) = ("gateway::wan=warn,landbridge=debug", Some(LevelFilter::WARN));
        assert_eq!(level(both, "gateway::wan::connect"), warn);
        assert_eq!(level(both, "gateway::engine"), debug);
        assert_eq!(level("gateway=warn,landbridge=debug", "gateway::engine"), warn);
    }

    #[test]
    fn only_two_log_formats_are_known() {
        assert_eq!(parse_log_format(""), Some(LogFormat::Text));
        assert_eq!(parse_log_format("text"), Some(LogFormat::Text));
        assert_eq!(parse_log_format("json"), Some(LogFormat::Json));
        for bad in ["JSON", "logfmt", "json "] {
            assert_eq!(parse_log_format(bad), None, "{bad}");
        }
    }
}
