//! Errors of an accept loop: a log line now and then, with what to do.
//!
//! The local plane and the status server each own one [`AcceptErrors`]. An error such as a lack of
//! file descriptors lasts, and comes again with every attempt to accept.

use crate::log_throttle::LogThrottle;
use crate::warn_if_due;
use crate::warnings::{WarningCause, Warnings};
use rustix::io::Errno;
use std::io;
use units::{Span, TimeNs};

/// 100 ms: the pause between an accept of a connection that failed and the next one. Without the
/// pause, an error that lasts would keep a core busy.
pub(crate) const ACCEPT_RETRY_PAUSE: Span = Span::from_ms(100);

/// Logs the errors of one accept loop.
#[derive(Debug)]
pub(crate) struct AcceptErrors {
    throttle: LogThrottle,
    warnings: Warnings,
    /// Names what could not be accepted.
    connection: &'static str,
}

impl AcceptErrors {
    /// Makes the log of a loop that accepts connections of this name.
    pub fn new(connection: &'static str, warnings: Warnings) -> Self {
        Self { throttle: LogThrottle::default(), warnings, connection }
    }

    /// Logs an error of accept at `now`, unless the log throttle suppresses the line.
    pub fn log(&self, error: &io::Error, now: TimeNs) {
        if let Some(line) = self.line(error, now) {
            let subject = format!("{} {}", self.connection, error.kind());
            warn_if_due!(self.warnings.is_due(WarningCause::Accept, &subject, now), "{line}");
        }
    }

    /// Returns the log line for an error of an accept at `now`; `None` while the log throttle
    /// suppresses it.
    fn line(&self, error: &io::Error, now: TimeNs) -> Option<String> {
        let suppressed = self.throttle.permit(now)?;
        let what = format!("{} could not be accepted: {error}", self.connection);
        Some(match accept_error_remedy(error) {
            Some(remedy) => format!("{what}: {remedy}{suppressed}"),
            None => format!("{what}{suppressed}"),
        })
    }
}

/// The remedy that a log line or error gives where the process has no file descriptor left for a
/// connection or an arena.
pub(crate) const DESCRIPTORS_REMEDY: &str =
    "the gateway has as many files open as it may; raise its limit: ulimit -n, or LimitNOFILE";

/// Returns what the operator can do about an error; `None` where it passes by itself.
fn accept_error_remedy(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::MFILE => Some(DESCRIPTORS_REMEDY),
        Errno::NFILE => Some("this host has as many files open as it may; raise fs.file-max"),
        Errno::NOBUFS | Errno::NOMEM => Some("this host has too little memory"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lasting_error_is_told_once_in_ten_seconds() {
        let errors = AcceptErrors::new("a connection", Warnings::default());
        let start = TimeNs::from_ns(5);
        let error = io::Error::from(Errno::MFILE);
        let retry = |attempt: u64| {
            let now = start + Span::from_ns(attempt * ACCEPT_RETRY_PAUSE.ns());
            errors.line(&error, now)
        };
        let lines: Vec<String> = (0..200).filter_map(retry).collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("a connection could not be accepted"), "{lines:?}");
        assert!(lines[0].contains("ulimit -n") && lines[1].contains("99 more such"), "{lines:?}");
    }
}
