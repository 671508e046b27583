//! Rate limiting of log lines that a peer, a trainer or an unauthenticated
//! connection can cause as often as it likes.
//!
//! Each source of such lines owns one [`LogThrottle`]: a lane, a job, the local plane. Callers may
//! be on any thread.

use crate::lock::lock_ignoring_poison;
use std::fmt;
use std::sync::Mutex;
use units::{Span, TimeNs};

/// Lets at most `lines` lines pass in each [`THROTTLE_PERIOD`], and counts the others.
#[derive(Debug)]
pub(crate) struct LogThrottle {
    lines: u64,
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    /// When the first line of this period was logged.
    began: Option<TimeNs>,
    /// Lines logged in this period.
    logged: u64,
    /// Lines suppressed since the last one that was logged.
    suppressed: u64,
}

/// 10 s: the period in which a log throttle lets a fixed number of lines pass. It suppresses
/// further lines and counts them, so that a flood of lines cannot fill a disk within hours.
const THROTTLE_PERIOD: Span = Span::from_secs(10);

/// Number of lines suppressed since the last one; shown at the end of a line, or empty for zero.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ThrottledLogLines(u64);

impl Default for LogThrottle {
    /// Makes a throttle that lets one line pass in each [`THROTTLE_PERIOD`].
    fn default() -> Self {
        Self::with_lines_max(1)
    }
}

impl LogThrottle {
    /// Makes a throttle that lets `lines` lines pass in each [`THROTTLE_PERIOD`].
    pub fn with_lines_max(lines: u64) -> Self {
        Self { lines, window: Mutex::default() }
    }

    /// Returns the number of lines suppressed before if a line may be logged at `now`. Otherwise
    /// counts the line as suppressed and returns `None`.
    pub fn permit(&self, now: TimeNs) -> Option<ThrottledLogLines> {
        let mut window = lock_ignoring_poison(&self.window);
        if window.began.is_none_or(|began| now.since(began) >= THROTTLE_PERIOD) {
            (window.began, window.logged) = (Some(now), 0);
        }
        if window.logged == self.lines {
            window.suppressed += 1;
            return None;
        }
        window.logged += 1;
        Some(ThrottledLogLines(std::mem::take(&mut window.suppressed)))
    }
}

impl fmt::Display for ThrottledLogLines {
    /// Prints the number for the end of a log line: ` (2 more such since the last line)`. Prints
    /// nothing for zero.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            more => write!(f, " ({more} more such since the last line)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reports_how_many_were_suppressed() {
        let (throttle, start) = (LogThrottle::default(), TimeNs::from_ns(5));
        assert_eq!(throttle.permit(start), Some(ThrottledLogLines(0)));
        assert_eq!(throttle.permit(start + Span::from_secs(1)), None);
        assert_eq!(throttle.permit(start + Span::from_secs(9)), None);
        let permitted = throttle.permit(start + THROTTLE_PERIOD);
        assert_eq!(permitted, Some(ThrottledLogLines(2)));
        assert!(permitted.is_some_and(|suppressed| suppressed.to_string().contains("2 more")));
        let throttle = LogThrottle::with_lines_max(2);
        let seen = [0, 1, 2, 9, 10, 11, 12].map(|s| throttle.permit(start + Span::from_secs(s)));
        assert_eq!(seen[..4], [Some(ThrottledLogLines(0)), Some(ThrottledLogLines(0)), None, None]);
        assert_eq!(seen[4..], [Some(ThrottledLogLines(2)), Some(ThrottledLogLines(0)), None]);
    }
}
