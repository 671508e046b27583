//! `cargo xtask bench efficiency`.

use super::bench_page::BenchPage;
use crate::child_command::{CommandFailure, CommandLine};
use serde_json::Value;
use std::path::Path;

/// 0.97: the least efficiency T(0)/T(d) at 500 km and a convergence of 32:1 with which the bench
/// passes, a chosen target. T(0) and T(d) are times of a training step without and with distance.
const EFFICIENCY_WANTED: f64 = 0.97;
/// 500 km and 32:1: distance between two regions, and ratio of the rates of a region's cards to the
/// rate of the link, at which the bench has a target.
const EFFICIENCY_POINT: (u64, u64) = (500, 32);

/// Runs `cargo xtask bench efficiency`: simulates a step of a large model at all distances. Fails
/// when two regions at [`EFFICIENCY_POINT`] keep less than [`EFFICIENCY_WANTED`].
pub(super) fn measure_efficiency_bench(root: &Path) -> Result<BenchPage, CommandFailure> {
    let build = CommandLine::cargo(&[
        "build",
        "-q",
        "--release",
        "--package",
        "landbridge",
        "--bin",
        "landbridge",
    ]);
    build.run_to_success(root)?;
    let program = crate::workspace::workspace_target_folder().join("release/landbridge");
    let words = ["plan", "efficiency", "--model", "llama3-70b"];
    let line = CommandLine::program(&program, &words);
    let (status, table) = line.capture(root)?;
    if !status.success() {
        return Err(line.failure(&status));
    }
    let (km, convergence) = (EFFICIENCY_POINT.0.to_string(), EFFICIENCY_POINT.1.to_string());
    let cell = ["--distances", &km, "--convergence", &convergence, "--json"];
    let line = CommandLine::program(&program, &[&words[..], &cell].concat());
    let (_, json) = line.capture(root)?;
    let found: Value = serde_json::from_str(&json).map_err(|error| line.failure(&error))?;
    let efficiency = found["cells"][0]["efficiency"].as_f64().unwrap_or_default();
    if efficiency < EFFICIENCY_WANTED {
        return Err(
            line.failure(&format!("T(0)/T(d) is {efficiency:.4}, below {EFFICIENCY_WANTED}"))
        );
    }
    let text = format!(
        "T(d) and T(0) are simulated in virtual time; what is assumed stands above the table. \
         At {km} km and {convergence}:1, T(0)/T(d) is {efficiency:.4}; at least \
         {EFFICIENCY_WANTED} is wanted, or the bench fails.\n\n```text\n$ landbridge {}\n{}\n```\n",
        words.join(" "),
        table.trim()
    );
    Ok(BenchPage::new("What distance costs a training step", text))
}
