//! Benches of the collectives core: `cargo xtask bench plan`, `reduce` and `shape`.

use super::bench_page::BenchPage;
use crate::child_command::{CommandFailure, CommandLine};
use std::path::Path;

/// Runs `cargo xtask bench reduce`: times the reduction kernels beside a plain loop. Fails when the
/// local reduction of eight ranks is slower than the bench asks for.
pub(super) fn measure_core_reduce(root: &Path) -> Result<BenchPage, CommandFailure> {
    let line = CommandLine::cargo(&["bench", "-q", "-p", "hier-collectives", "--bench", "reduce"]);
    let (status, table) = line.capture(root)?;
    if !status.success() {
        return Err(line.failure(&format!("{status}\n{table}")));
    }
    let text = format!(
        "GB/s of all bytes read and written, one thread, medians; beside each kernel a plain f32 sum \
         over as many buffers of the same size, run in turn with it. Local ranks are reduced in one \
         pass over all of them: of eight, f32 sums must reach 0.7 of the plain loop from 1 MiB on, or \
         the bench fails.\n\n```text\n{}\n```\n",
        table.trim()
    );
    Ok(BenchPage::new("The reduction kernels", text))
}

/// Runs `cargo xtask bench shape`: counts the WAN bytes of the hierarchy and of its controls.
pub(super) fn measure_core_shape(root: &Path) -> Result<BenchPage, CommandFailure> {
    let run = ["run", "--quiet", "--package", "scenarios", "--bin", "shape"];
    let line = CommandLine::cargo(&run);
    let (status, text) = line.capture(root)?;
    if !status.success() {
        return Err(line.failure(&status));
    }
    Ok(BenchPage::new("What the hierarchy saves", text))
}

/// Runs `cargo xtask bench plan`: plans large fabrics by the clock, then proves thousands of
/// schedules. Fails when either misses its target.
pub(super) fn measure_core_plan(root: &Path) -> Result<BenchPage, CommandFailure> {
    let line = CommandLine::cargo(&["bench", "-q", "-p", "hier-collectives", "--bench", "plan"]);
    let (status, table) = line.capture(root)?;
    if !status.success() {
        return Err(line.failure(&format!("{status}\n{table}")));
    }
    let words = ["test", "-q", "--release", "-p", "hier-collectives", "--test", "plan", "--"];
    let line = CommandLine::cargo(&[&words[..], &["--ignored", "--nocapture", "proved"]].concat());
    let (status, proved) = line.capture(root)?;
    if !status.success() {
        return Err(line.failure(&format!("{status}\n{proved}")));
    }
    let proved: Vec<&str> =
        proved.lines().filter(|line| line.starts_with(PROOF_LINE_PREFIX)).collect();
    if proved.is_empty() {
        return Err(line.failure(&"it said nothing of what it proved"));
    }
    let text = format!(
        "| fabric | plan | seconds | planned time over the bound | of 1 s and 1.01 |\n\
         |---|---|---|---|---|\n{}\n\n\
         Schedules as production builds them, each played to its end: every contribution reaches \
         every result exactly once, and nothing waits in a circle.\n\n```text\n{}\n```\n",
        table.trim(),
        proved.join("\n")
    );
    Ok(BenchPage::new("Plans of large fabrics", text))
}

/// The beginning of the lines in which the plan's tests print what they proved. The bench ignores
/// other lines.
const PROOF_LINE_PREFIX: &str = "proved ";
