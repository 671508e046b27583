//! `cargo xtask bench reduce`.

use super::Page;
use crate::command::{CommandLine, Failure};
use std::path::Path;

/// Runs the kernels beside a plain loop; fails when the local reduction of eight ranks is slower
/// than the bench asks for.
pub(super) fn measure(root: &Path) -> Result<Page, Failure> {
    let line = CommandLine::cargo(&["bench", "-q", "-p", "hier-collectives", "--bench", "reduce"]);
    let (status, table) = line.capture(root)?;
    if !status.success() {
        return Err(line.failed(&format!("{status}\n{table}")));
    }
    let text = format!(
        "GB/s of all bytes read and written, one thread, medians; beside each kernel a plain f32 sum \
         over as many buffers of the same size, run in turn with it. Local ranks are reduced in one \
         pass over all of them: of eight, f32 sums must reach 0.7 of the plain loop from 1 MiB on, or \
         the bench fails.\n\n```text\n{}\n```\n",
        table.trim()
    );
    Ok(Page::new("The reduction kernels", text))
}
