//! `cargo xtask bench congestion`: links whose rate gateways do not know, in virtual time.

use super::bench_page::BenchPage;
use crate::child_command::{CommandFailure, CommandLine};
use serde_json::Value;
use std::path::Path;

/// Runs `cargo xtask bench congestion`: measures all links of the matrix.
pub(super) fn measure_congestion(root: &Path) -> Result<BenchPage, CommandFailure> {
    measure_congestion_matrix(root, &[])
}

/// Runs `cargo xtask bench congestion --quick`: measures the links whose transfers are small.
pub(super) fn measure_congestion_quick(root: &Path) -> Result<BenchPage, CommandFailure> {
    measure_congestion_matrix(root, &["--quick"])
}

/// Measures a matrix of links, and returns its page. Targets that are not met are named.
fn measure_congestion_matrix(root: &Path, flags: &[&str]) -> Result<BenchPage, CommandFailure> {
    let words = ["run", "--quiet", "--package", "scenarios", "--bin", "congestion", "--", "--json"];
    let line = CommandLine::cargo(&[&words[..], flags].concat());
    let (status, text) = line.capture(root)?;
    if !status.success() {
        return Err(line.failure(&status));
    }
    let mut json: Value = serde_json::from_str(&text).map_err(|error| line.failure(&error))?;
    let text = json["markdown"].take().as_str().unwrap_or_default().to_owned();
    if let Some(object) = json.as_object_mut() {
        object.remove("markdown");
    }
    let missed = json["missed"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let missed = missed.map(str::to_owned).collect();
    Ok(BenchPage { title: "Links of unknown rate", text, json: Some(json), missed })
}
