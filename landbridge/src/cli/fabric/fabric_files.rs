//! The files of `landbridge fabric`: the fabric and its signature.

use crate::cli::output::command_error::CommandError;
use gateway::config::FabricFile;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Returns the path of the signature beside a fabric file: its own with `.sig` behind it.
pub(super) fn signature_path(file: &Path) -> PathBuf {
    let mut path = OsString::from(file);
    path.push(".sig");
    PathBuf::from(path)
}

/// Reads a text file.
pub(super) fn read_text(path: &Path) -> Result<String, CommandError> {
    let at_fault = |source| CommandError::Path { path: path.to_owned(), source };
    std::fs::read_to_string(path).map_err(at_fault)
}

/// Refuses a fabric without `version`, by which gateways order fabrics.
pub(super) fn require_version(file: &FabricFile) -> Result<u64, CommandError> {
    match file.version().number {
        0 => Err(CommandError::Usage(format!(
            "{} has no `version`: give it one above that in force, which `landbridge status` shows",
            file.path().display()
        ))),
        number => Ok(number),
    }
}
