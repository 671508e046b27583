//! The errors of making a testbed and of running programs in it.

use std::io;
use std::process::Output;

/// Why a testbed is not up, or a program in it did not run.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// This machine cannot run it.
    #[error("{0}")]
    Unavailable(String),
    /// The testbed or a program failed.
    #[error("{0}")]
    Failed(String),
    /// The system returned an error.
    #[error(transparent)]
    System(#[from] io::Error),
    /// Somebody pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// Checks the status of a command that has ended.
///
/// # Errors
/// The output of a command that failed.
pub fn check(output: &Output) -> Result<(), LabError> {
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.code() {
        Some(0) => Ok(()),
        Some(code) if code == i32::from(UNAVAILABLE) => Err(LabError::Unavailable(said)),
        _ => Err(LabError::Failed(said)),
    }
}

/// 77: the exit code for a request that this machine cannot fulfil.
pub const UNAVAILABLE: u8 = 77;
