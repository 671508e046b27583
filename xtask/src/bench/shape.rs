//! `cargo xtask bench shape`.

use super::Page;
use crate::command::{CommandLine, Failure};
use std::path::Path;

/// Runs the hierarchy and its controls, and takes their table.
pub(super) fn measure(root: &Path) -> Result<Page, Failure> {
    let run = ["run", "--quiet", "--package", "scenarios", "--bin", "shape"];
    let line = CommandLine::cargo(&run);
    let (status, text) = line.capture(root)?;
    if !status.success() {
        return Err(line.failed(&status));
    }
    Ok(Page::new("What the hierarchy saves", text))
}
