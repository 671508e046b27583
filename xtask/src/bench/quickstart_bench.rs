//! `cargo xtask bench quickstart`.

use super::bench_page::BenchPage;
use crate::child_command::{CommandFailure, CommandLine};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;

/// Options of `landbridge quickstart` for each row of the result page; the first row has the
/// defaults.
const QUICKSTART_OPTIONS: [&[&str]; 5] = [
    &[],
    &["--loss", "0%"],
    &["--loss", "1%"],
    &["--rtt", "20ms", "--loss", "0%"],
    &["--rtt", "200ms", "--rate", "200Mbit/s"],
];

/// Runs `cargo xtask bench quickstart`: one quickstart for each row of the page.
pub(super) fn measure_quickstart_bench(root: &Path) -> Result<BenchPage, CommandFailure> {
    let mut text = String::from(
        "Two gateways, a relay that emulates the link, and four ranks (3 and 1) on one machine, in \
         real time. The link is emulated; the gateways, QUIC and TLS are real. eta is T* over the \
         median time of 5 all-reduces of 64 MiB of f32. The machine is shared, so times vary from \
         run to run.\n\n\
         | `landbridge quickstart` with | median s | T* s | eta | goodput Mbit/s | relay bytes over \
         payload, east and west | lost packets | accuracy | off the reference by |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    CommandLine::cargo(&["build", "--release", "--package", "landbridge"]).run_to_success(root)?;
    for row in QUICKSTART_OPTIONS {
        let shown = if row.is_empty() { "its defaults".to_owned() } else { row.join(" ") };
        eprintln!("quickstart {shown}");
        let arguments = ["run", "--release", "--quiet", "--", "quickstart", "--json"];
        let line = CommandLine::cargo(&[&arguments[..], row].concat());
        let (status, stdout) = line.capture(root)?;
        if !status.success() {
            return Err(line.failure(&status));
        }
        let report: Value = serde_json::from_str(&stdout).map_err(|error| line.failure(&error))?;
        writeln!(text, "| {shown} | {} |", quickstart_bench_cells(&report).join(" | "))
            .expect("a string takes all");
    }
    Ok(BenchPage::new("Quickstart", text))
}

/// Returns the eight cells of one report, in the order of the page's header: median time, bound
/// T*, eta, goodput, relay bytes over payload, lost packets, accuracy, difference from the
/// reference.
fn quickstart_bench_cells(report: &Value) -> Vec<String> {
    let number = |path: &str| report.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let payload =
        number("/allreduce/wan_payload_bytes_per_direction") * number("/allreduce/iterations");
    let ratio = |direction: &str| number(&format!("/relay/{direction}/ip_bytes")) / payload;
    let lost = number("/relay/east_west/drops_loss") + number("/relay/west_east/drops_loss");
    vec![
        format!("{:.3}", number("/allreduce/seconds_median")),
        format!("{:.3}", number("/allreduce/bound_seconds")),
        format!("{:.3}", number("/allreduce/eta")),
        format!("{:.0}", number("/allreduce/goodput_bits_per_second") / 1e6),
        format!("{:.3}, {:.3}", ratio("east_west"), ratio("west_east")),
        format!("{lost:.0}"),
        format!("{:.3}", number("/accuracy")),
        format!("{:.1e}", number("/reference_max_abs_diff")),
    ]
}
