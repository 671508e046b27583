//! Log lines that others can cause at any rate.

use crate::sync::lock;
use std::fmt;
use std::sync::Mutex;
use units::{Span, TimeNs};

/// Something that others can make happen at any rate, and that is said once in [`PERIOD`], or
/// so many times.
#[derive(Debug)]
pub(crate) struct LogThrottle {
    times: u64,
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    /// When the first was, of those that count.
    first: Option<TimeNs>,
    times: u64,
    unsaid: u64,
}

/// How often it is logged.
const PERIOD: Span = Span::from_secs(10);

/// How often it was not said since the last time; for the end of the line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Suppressed(u64);

impl Default for LogThrottle {
    fn default() -> Self {
        Self::said(1)
    }
}

impl LogThrottle {
    /// Something that is said so many times in [`PERIOD`].
    pub fn lines(times: u64) -> Self {
        Self { times, said: Mutex::default() }
    }

    /// Whether to say it now.
    pub fn now(&self, now: TimeNs) -> Option<Suppressed> {
        let mut said = lock(&self.said);
        if said.first.is_none_or(|first| now.since(first) >= PERIOD) {
            (said.first, said.times) = (Some(now), 0);
        }
        if said.times == self.times {
            said.unsaid += 1;
            return None;
        }
        said.times += 1;
        Some(Suppressed(std::mem::take(&mut said.unsaid)))
    }
}

impl fmt::Display for Suppressed {
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
    fn a_line_says_how_many_were_not_said() {
        let (seldom, start) = (LogThrottle::default(), TimeNs::from_ns(5));
        assert_eq!(seldom.now(start), Some(Suppressed(0)));
        assert_eq!(seldom.now(start + Span::from_secs(1)), None);
        assert_eq!(seldom.now(start + Span::from_secs(9)), None);
        let said = seldom.now(start + PERIOD);
        assert_eq!(said, Some(Suppressed(2)));
        assert!(said.is_some_and(|unsaid| unsaid.to_string().contains("2 more")));
        let seldom = LogThrottle::lines(2);
        let told = [0, 1, 2, 9, 10, 11, 12].map(|s| seldom.now(start + Span::from_secs(s)));
        let (yes, no) = (Some(Suppressed(0)), None);
        assert_eq!(told[..4], [yes, Some(Suppressed(0)), no, None]);
        assert_eq!(told[4..], [Some(Suppressed(2)), Some(Suppressed(0)), None]);
    }
}
