//! Rate limiting of warnings, and of log lines that a peer, a trainer or an unauthenticated
//! connection can cause as often as it likes.
//!
//! Each source of such lines owns one [`LogThrottle`]: a lane, a job, the local plane. Callers may
//! be on any thread.

use crate::sync::lock;
use std::collections::BTreeMap;
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

/// 10 s: period in which a log throttle lets a fixed number of lines pass. So a flood of lines
/// cannot fill a disk within hours.
const THROTTLE_PERIOD: Span = Span::from_secs(10);

/// Number of lines suppressed since the last one; shown at the end of a line, or empty for zero.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Suppressed(u64);

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
    pub fn permit(&self, now: TimeNs) -> Option<Suppressed> {
        let mut window = lock(&self.window);
        if window.began.is_none_or(|began| now.since(began) >= THROTTLE_PERIOD) {
            (window.began, window.logged) = (Some(now), 0);
        }
        if window.logged == self.lines {
            window.suppressed += 1;
            return None;
        }
        window.logged += 1;
        Some(Suppressed(std::mem::take(&mut window.suppressed)))
    }
}

impl fmt::Display for Suppressed {
    /// Prints the number for the end of a log line: ` (2 more such since the last line)`. Prints
    /// nothing for zero.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            more => write!(f, " ({more} more such since the last line)"),
        }
    }
}

/// Decides which lines are warnings: the first of each cause in ten minutes. Others of that cause
/// are logged at level info, and counted by a metric.
#[derive(Debug, Default)]
pub(crate) struct WarningTimes {
    last: BTreeMap<String, TimeNs>,
}

/// 10 min. An operator is warned of one cause at most so often.
const WARNING_PERIOD: Span = Span::from_secs(600);

/// 64 causes are remembered; beyond that all are forgotten, and each warns once more.
const WARNING_CAUSES_MAX: usize = 64;

impl WarningTimes {
    /// Whether a line about `cause` is a warning at `now`; if so, none is for ten minutes.
    pub fn is_due(&mut self, cause: &str, now: TimeNs) -> bool {
        if self.last.get(cause).is_some_and(|last| now.since(*last) < WARNING_PERIOD) {
            return false;
        }
        if self.last.len() >= WARNING_CAUSES_MAX {
            self.last.clear();
        }
        self.last.insert(cause.to_owned(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_warns_once_in_ten_minutes() {
        let mut warnings = WarningTimes::default();
        let due = [0, 1, 599, 600, 601, 1200]
            .map(|s| warnings.is_due("region west lost", TimeNs::from_ns(5) + Span::from_secs(s)));
        assert_eq!(due, [true, false, false, true, false, true]);
        assert!(warnings.is_due("rank 3 lost", TimeNs::from_ns(6)), "another cause");
        (0..1000).for_each(|cause| {
            warnings.is_due(&cause.to_string(), TimeNs::from_ns(7));
        });
        assert!(warnings.last.len() <= WARNING_CAUSES_MAX);
    }

    #[test]
    fn a_line_reports_how_many_were_suppressed() {
        let (throttle, start) = (LogThrottle::default(), TimeNs::from_ns(5));
        assert_eq!(throttle.permit(start), Some(Suppressed(0)));
        assert_eq!(throttle.permit(start + Span::from_secs(1)), None);
        assert_eq!(throttle.permit(start + Span::from_secs(9)), None);
        let permitted = throttle.permit(start + THROTTLE_PERIOD);
        assert_eq!(permitted, Some(Suppressed(2)));
        assert!(permitted.is_some_and(|suppressed| suppressed.to_string().contains("2 more")));
        let throttle = LogThrottle::with_lines_max(2);
        let seen = [0, 1, 2, 9, 10, 11, 12].map(|s| throttle.permit(start + Span::from_secs(s)));
        assert_eq!(seen[..4], [Some(Suppressed(0)), Some(Suppressed(0)), None, None]);
        assert_eq!(seen[4..], [Some(Suppressed(2)), Some(Suppressed(0)), None]);
    }
}
