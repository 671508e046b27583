//! The command line: `wan-sim`, and the same below `landbridge wan-sim`.

mod relay;

pub use relay::RelayArgs;

/// What `wan-sim` can do.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Relay UDP over a link, without privileges.
    Relay(RelayArgs),
}

/// Runs `command` until it ends or is interrupted. Returns the exit code.
pub fn run(command: &Command) -> u8 {
    match command {
        Command::Relay(args) => relay::run(args),
    }
}

/// All is well.
pub const EXIT_GOOD: u8 = 0;
/// Something failed that the caller could not know.
pub const EXIT_FAILED: u8 = 1;
/// The command line or a file is wrong.
pub const EXIT_USAGE: u8 = 64;
/// Interrupted by SIGINT or SIGTERM.
pub const EXIT_INTERRUPTED: u8 = 130;
