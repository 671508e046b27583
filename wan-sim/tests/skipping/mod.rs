//! The report of tests that this machine or user cannot run.

use std::fmt::Display;
use std::io::Write;

/// Prints, past the test runner's capture, that the calling test is skipped and `why`. These lines
/// are counted by `cargo xtask test`.
pub fn skip(why: impl Display) {
    let thread = std::thread::current();
    let why = why.to_string().trim().replace('\n', "; ");
    let line = format!("\nSKIPPED: {}: {why}\n", thread.name().unwrap_or("a test"));
    // Where standard output is closed, no other way is left.
    let _ = std::io::stdout().write_all(line.as_bytes());
}
