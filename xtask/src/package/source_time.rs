//! The time that packages carry.

use crate::child_command::{CommandFailure, CommandLine};
use std::path::Path;

/// The time that packages carry in place of the time of their build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceTime {
    /// Seconds since 1970.
    pub seconds: u64,
    /// The same as text, such as `2026-01-31T12:00:00Z`.
    pub text: String,
}

impl SourceTime {
    /// Returns the time in `SOURCE_DATE_EPOCH`, or else that of the last commit.
    pub fn find(root: &Path) -> Result<Self, CommandFailure> {
        let line = CommandLine::in_path(&["git", "log", "-1", "--format=%ct"]);
        let seconds = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(seconds) => seconds,
            Err(_) => line.capture(root)?.1,
        };
        let seconds = seconds.trim().parse().map_err(|_| {
            line.failure(&format!("{seconds:?} is no time: set SOURCE_DATE_EPOCH to seconds"))
        })?;
        Self::of(seconds, root)
    }

    /// Returns the time `seconds` after 1970.
    pub fn of(seconds: u64, root: &Path) -> Result<Self, CommandFailure> {
        let at = format!("@{seconds}");
        let line = CommandLine::in_path(&["date", "-u", "-d", &at, "+%Y-%m-%dT%H:%M:%SZ"]);
        let (status, text) = line.capture(root)?;
        if !status.success() {
            return Err(line.failure(&status));
        }
        Ok(Self { seconds, text: text.trim().to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_its_text_in_utc() {
        let time = SourceTime::of(1_769_860_800, Path::new("/")).ok();
        assert_eq!(time.map(|time| time.text).as_deref(), Some("2026-01-31T12:00:00Z"));
    }
}
