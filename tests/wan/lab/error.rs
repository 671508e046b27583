//! The errors of making a lab and of running programs in it.

use std::io;
use std::process::Output;

/// Why a lab is not up.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// This machine cannot run the lab.
    #[error("{0}")]
    Unavailable(String),
    /// The lab or a program failed.
    #[error("{0}")]
    Failed(String),
    /// The system returned an error.
    #[error(transparent)]
    System(#[from] io::Error),
    /// Somebody pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// Returns an error with the output of a command that failed.
pub(super) fn check(output: &Output) -> Result<(), LabError> {
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.code() {
        Some(0) => Ok(()),
        Some(code) if code == i32::from(UNAVAILABLE) => Err(LabError::Unavailable(said)),
        _ => Err(LabError::Failed(said)),
    }
}

/// 77: the exit code for what this machine cannot do.
pub const UNAVAILABLE: u8 = 77;
