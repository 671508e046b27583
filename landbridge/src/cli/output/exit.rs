//! Exit codes.
//! docs/exit-codes.md lists what gives which; `every_row_of_the_exit_codes_holds` runs the list.

use std::process::{ExitCode, Termination};

/// Exit code of the process, on which scripts rely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// The command succeeded.
    Good = 0,
    /// A check failed, or something else that command line and files do not decide.
    CheckFailed = 1,
    /// The command line or a file is wrong: the same command fails again.
    Usage = 64,
    /// No gateway answers at the address.
    NothingAnswers = 69,
    /// This machine or user cannot run the command; the reason is printed.
    Skipped = 77,
    /// The user interrupted the command.
    Interrupted = 130,
}

impl Exit {
    /// Returns the exit code for one of the emulator's commands.
    pub(crate) fn from_wan_sim(code: u8) -> Self {
        match code {
            wan_sim::cli::EXIT_GOOD => Self::Good,
            wan_sim::cli::EXIT_USAGE => Self::Usage,
            wan_sim::cli::EXIT_UNAVAILABLE => Self::Skipped,
            wan_sim::cli::EXIT_INTERRUPTED => Self::Interrupted,
            _ => Self::CheckFailed,
        }
    }
}

impl Termination for Exit {
    /// Returns the number of the exit code, such as 64 for [`Exit::Usage`].
    fn report(self) -> ExitCode {
        ExitCode::from(self as u8)
    }
}
