//! The exit codes of all commands.

/// All is well.
pub const EXIT_GOOD: u8 = 0;

/// Something failed that the caller could not know.
pub const EXIT_FAILED: u8 = 1;

/// The command line or a file is wrong.
pub const EXIT_USAGE: u8 = 64;

/// This machine or user cannot do it; nothing is wrong with what was asked.
pub const EXIT_UNAVAILABLE: u8 = 77;

/// Interrupted by SIGINT or SIGTERM.
pub const EXIT_INTERRUPTED: u8 = 130;
