//! The exit codes of all commands.

/// Exit code 0: the command has succeeded.
pub const EXIT_GOOD: u8 = 0;

/// Exit code 1: the command was valid and failed, for a reason that its caller could not know.
pub const EXIT_FAILED: u8 = 1;

/// Exit code 64: the command line, or a file that it names, is wrong.
pub const EXIT_USAGE: u8 = 64;

/// Exit code 77: this machine or user cannot run the command, which is valid.
pub const EXIT_UNAVAILABLE: u8 = 77;

/// Exit code 130: the command was interrupted by SIGINT or SIGTERM, or its terminal was closed.
pub const EXIT_INTERRUPTED: u8 = 130;
