//! How a command ends.

use crate::certs::CertsError;
use crate::config::{Faults, GatewayChoiceError};
use crate::observe::server::FetchError;
use std::process::{ExitCode, Termination};

/// The exit codes that scripts rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All is well.
    Good = 0,
    /// A check failed.
    CheckFailed = 1,
    /// A wrong command line or config.
    Usage = 64,
    /// Nothing answers where a gateway should.
    NothingAnswers = 69,
    /// Cannot run here, and said so.
    Skipped = 77,
    /// Stopped by the user.
    Interrupted = 130,
}

impl Termination for Exit {
    fn report(self) -> ExitCode {
        ExitCode::from(self as u8)
    }
}

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Config files at fault.
    #[error(transparent)]
    Config(#[from] Faults),
    /// No gateway chosen, or one that is not there.
    #[error(transparent)]
    Gateway(#[from] GatewayChoiceError),
    /// Certificates that could not be made.
    #[error(transparent)]
    Certs(#[from] CertsError),
    /// No status to be had.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The system refuses what every run needs.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

impl CommandError {
    /// The exit code that says whose fault it is.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Config(_) | Self::Gateway(_) | Self::Certs(_) => Exit::Usage,
            Self::Fetch(_) => Exit::NothingAnswers,
            Self::System(_) => Exit::CheckFailed,
        }
    }
}
