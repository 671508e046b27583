//! The errors of making a lab and of running programs in it.

use std::io;
use std::process::Output;

/// Why a lab is not up.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// It cannot be on this machine.
    #[error("{0}")]
    Unavailable(String),
    /// It should have been.
    #[error("{0}")]
    Failed(String),
    /// The system said no.
    #[error(transparent)]
    System(#[from] io::Error),
    /// Somebody pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// Whether a command of ours did what it should.
pub(super) fn check(output: &Output) -> Result<(), LabError> {
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.code() {
        Some(0) => Ok(()),
        Some(code) if code == i32::from(UNAVAILABLE) => Err(LabError::Unavailable(said)),
        _ => Err(LabError::Failed(said)),
    }
}

/// What a command says that this machine cannot do.
pub const UNAVAILABLE: u8 = 77;
