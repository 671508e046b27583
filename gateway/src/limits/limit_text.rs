//! Texts of files of the system that tell its limits.

use std::path::Path;

/// Returns the text of a file of the system; empty if it cannot be read.
pub(crate) fn read_limit_text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
