//! `cargo xtask bench faults`.

use super::bench_page::BenchPage;
use crate::child_command::CommandFailure;
use crate::faults;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;

/// 5 points: each fault strikes an all-reduce that often, each time when another part of its bytes,
/// from 5 to 95 %, has passed. The number is chosen.
const POINTS_PER_FAULT: &str = "5";

/// Runs `cargo xtask bench faults`: every fault at every point, on real processes.
pub(super) fn measure_faults_bench(root: &Path) -> Result<BenchPage, CommandFailure> {
    let line = faults::faults_command(root, &["--json", "--points", POINTS_PER_FAULT])?;
    let (status, stdout) = line.capture(root)?;
    let report: Value = serde_json::from_str(&stdout).map_err(|error| line.failure(&error))?;
    if !status.success() {
        return Err(line.failure(&stdout));
    }
    let cases = report["cases"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut names: Vec<&str> = cases.iter().filter_map(|case| case["scenario"].as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let mut text = format!(
        "Two gateways, a relay (100 Mbit/s, RTT 40 ms) and three ranks (2 and 1), each a process, \
         all-reduce 16 MiB without end. A scenario of `tests/scenarios.toml` strikes when the bytes \
         of an all-reduce stand at a drawn point between 5 and 95 % (seed {}); what was killed is \
         back once all others have heard. Every result is \
         checked by the rank that gets it; outcomes are errors or right results. The longest wait \
         is that of any rank for one collective; `again` is the time from the end of the fault \
         until every rank has all-reduced twice, without touching the survivors.\n\n\
         | scenario | struck at % | longest wait s | again after s |\n|---|---|---|---|\n",
        report["seed"],
    );
    for name in names {
        let of_it = || cases.iter().filter(|case| case["scenario"] == name);
        let column = |key: &str| {
            let mut values: Vec<f64> = of_it().filter_map(|case| case[key].as_f64()).collect();
            values.sort_by(f64::total_cmp);
            let shown: Vec<String> = values.iter().map(|value| format!("{value:.1}")).collect();
            shown.join(", ")
        };
        let (struck, wait, again) =
            (column("struck_percent"), column("longest_wait"), column("recovery_seconds"));
        writeln!(text, "| {name} | {struck} | {wait} | {again} |").expect("a string takes all");
    }
    Ok(BenchPage::new("Faults on processes", text))
}
