//! `cargo xtask bench plan`.

use super::Page;
use crate::command::{CommandLine, Failure};
use std::path::Path;

/// Plans large fabrics by the clock, then proves the schedules of thousands; fails where either
/// does not hold.
pub(super) fn measure(root: &Path) -> Result<Page, Failure> {
    let line = CommandLine::cargo(&["bench", "-q", "-p", "hier-collectives", "--bench", "plan"]);
    let (status, table) = line.capture(root)?;
    if !status.success() {
        return Err(line.failed(&format!("{status}\n{table}")));
    }
    let words = ["test", "-q", "--release", "-p", "hier-collectives", "--test", "plan", "--"];
    let line = CommandLine::cargo(&[&words[..], &["--ignored", "--nocapture", "proved"]].concat());
    let (status, proved) = line.capture(root)?;
    if !status.success() {
        return Err(line.failed(&format!("{status}\n{proved}")));
    }
    let proved: Vec<&str> = proved.lines().filter(|line| line.starts_with(PROVED)).collect();
    if proved.is_empty() {
        return Err(line.failed(&"it said nothing of what it proved"));
    }
    let text = format!(
        "| fabric | plan | seconds | planned time over the bound | of 1 s and 1.01 |\n\
         |---|---|---|---|---|\n{}\n\n\
         Schedules as production builds them, each played to its end: every contribution reaches \
         every result exactly once, and nothing waits in a circle.\n\n```text\n{}\n```\n",
        table.trim(),
        proved.join("\n")
    );
    Ok(Page::new("Plans of large fabrics", text))
}

/// How the proof's line begins.
const PROVED: &str = "proved ";
