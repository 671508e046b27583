//! The failures of lab commands, and their exit codes.

use crate::cli::exit_codes::{EXIT_FAILED, EXIT_UNAVAILABLE, EXIT_USAGE};
use crate::lab::LabError;
use crate::topology::FileError;
use std::io;
use std::path::PathBuf;

/// Why a command on a lab failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum LabFailure {
    #[error("{0}")]
    File(#[from] FileError),
    #[error("{0}")]
    Lab(#[from] LabError),
    #[error("cannot record into {path}: {source}", path = .path.display())]
    Record { path: PathBuf, source: io::Error },
    #[error("there is no site `{site}`; there are {known}")]
    Site { site: String, known: String },
    #[error("it is up already; see wan-sim lab status, and wan-sim lab down")]
    Up,
    #[error("it is not up; see wan-sim lab up")]
    Down,
    #[error("there is no file {path}, nor a lab that came from it", path = .0.display())]
    NoFile(PathBuf),
    #[error("{0}; run as root")]
    Denied(io::Error),
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for LabFailure {
    /// Makes a lack of permission `Denied`, and any other error `Io`.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::Denied(error),
            _ => Self::Io(error),
        }
    }
}

impl LabFailure {
    /// Returns the exit code of the command that failed.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::File(_) | Self::Record { .. } | Self::Site { .. } => EXIT_USAGE,
            Self::NoFile(_) => EXIT_USAGE,
            Self::Lab(LabError::TooManySites(_)) => EXIT_USAGE,
            Self::Lab(LabError::Unprivileged { .. } | LabError::Left(_)) => EXIT_UNAVAILABLE,
            Self::Denied(_) => EXIT_UNAVAILABLE,
            Self::Lab(LabError::System(_)) | Self::Up | Self::Down | Self::Io(_) => EXIT_FAILED,
        }
    }
}
