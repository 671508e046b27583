//! `cargo xtask bench efficiency`.

use super::page::Page;
use crate::command::{CommandLine, Failure};
use serde_json::Value;
use std::path::Path;

/// The least T(0)/T(d) at [`AT`].
const WANTED: f64 = 0.97;
/// Kilometres, and N of N:1.
const AT: (u64, u64) = (500, 32);

/// Simulates a step of a large model at all distances; fails where two regions 500 km apart at
/// 32:1 keep less than is wanted.
pub(super) fn measure(root: &Path) -> Result<Page, Failure> {
    let build = CommandLine::cargo(&[
        "build",
        "-q",
        "--release",
        "--package",
        "landbridge",
        "--bin",
        "landbridge",
    ]);
    build.pass(root)?;
    let program = crate::stages::target_folder().join("release/landbridge");
    let words = ["plan", "efficiency", "--model", "llama3-70b"];
    let line = CommandLine::built(&program, &words);
    let (status, table) = line.capture(root)?;
    if !status.success() {
        return Err(line.failed(&status));
    }
    let (km, convergence) = (AT.0.to_string(), AT.1.to_string());
    let cell = ["--distances", &km, "--convergence", &convergence, "--json"];
    let line = CommandLine::built(&program, &[&words[..], &cell].concat());
    let (_, json) = line.capture(root)?;
    let found: Value = serde_json::from_str(&json).map_err(|error| line.failed(&error))?;
    let efficiency = found["cells"][0]["efficiency"].as_f64().unwrap_or_default();
    if efficiency < WANTED {
        return Err(line.failed(&format!("T(0)/T(d) is {efficiency:.4}, below {WANTED}")));
    }
    let text = format!(
        "T(d) and T(0) are simulated in virtual time; what is assumed stands above the table. \
         At {km} km and {convergence}:1, T(0)/T(d) is {efficiency:.4}; at least {WANTED} is wanted, \
         or the bench fails.\n\n```text\n$ landbridge {}\n{}\n```\n",
        words.join(" "),
        table.trim()
    );
    Ok(Page::new("What distance costs a training step", text))
}
