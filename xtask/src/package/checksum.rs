//! Digests and dates, by programs of coreutils.

use crate::command::{CommandFailure, CommandLine};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

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

/// Returns the SHA-256 digest of bytes in hexadecimal.
pub fn sha256_checksum(bytes: &[u8]) -> Result<String, CommandFailure> {
    checksum_by("sha256sum", bytes)
}

/// Returns the MD5 digest of bytes in hexadecimal, with which dpkg finds changed files.
pub fn md5_checksum(bytes: &[u8]) -> Result<String, CommandFailure> {
    checksum_by("md5sum", bytes)
}

/// Returns the digest of bytes that a program prints for its input.
fn checksum_by(program: &str, bytes: &[u8]) -> Result<String, CommandFailure> {
    let failure = |why: &dyn std::fmt::Display| CommandFailure {
        why: format!("{program}: {why}"),
        repeat: "cargo xtask package".to_owned(),
    };
    let mut command = Command::new(program);
    let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = started.map_err(|error| failure(&error))?;
    // It prints nothing before it has read all; its input ends with the handle.
    let written = child.stdin.take().expect("piped").write_all(bytes);
    let output = child.wait_with_output().map_err(|error| failure(&error))?;
    written.map_err(|error| failure(&error))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let digest = text.split_whitespace().next().filter(|_| output.status.success());
    digest.map(str::to_owned).ok_or_else(|| failure(&output.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_standards() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256_checksum(b"").ok().as_deref(), Some(empty));
        assert_eq!(md5_checksum(b"abc").ok().as_deref(), Some("900150983cd24fb0d6963f7d28e17f72"));
    }

    #[test]
    fn a_time_has_its_text_in_utc() {
        let time = SourceTime::of(1_769_860_800, Path::new("/")).ok();
        assert_eq!(time.map(|time| time.text).as_deref(), Some("2026-01-31T12:00:00Z"));
    }
}
