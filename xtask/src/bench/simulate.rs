//! `cargo xtask bench simulate`.

use super::Page;
use crate::command::{CommandLine, Failure};
use crate::simulate::{self, MUTANT, MUTANTS};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;

/// Seeds of the session as it is.
const SEEDS: &str = "10000";

/// From here on the page is written by hand, and kept.
const BY_HAND: &str = "## What it has found";

/// Runs the session as it is, then its broken variants.
pub(super) fn measure(root: &Path) -> Result<Page, Failure> {
    let line = simulate::line(&["--seeds", SEEDS, "--json"]);
    let (status, report) = run(root, &line)?;
    if !status {
        return Err(line.failed(&report));
    }
    let mut text = whole(&report);
    text += "\n## Broken variants\n\nVariants of the session that are broken on purpose, and the \
             first seed, from 0 on, that finds each.\n\n| variant | found by seed | which heard |\n\
             |---|---|---|\n";
    for mutant in MUTANTS {
        let line = simulate::line(&["--seeds", simulate::SEEDS, "--first", "--json"]);
        let line = line.with(MUTANT, mutant);
        let (status, report) = run(root, &line)?;
        let found = report["wrong"].as_array().and_then(|found| found.first());
        let Some(found) = found.filter(|_| !status) else {
            return Err(line.failed(&format!("{} seeds did not find it", simulate::SEEDS)));
        };
        let what = found["wrong"][0].as_str().unwrap_or_default().replace('|', "/");
        let what: String = what.chars().take(WIDTH).collect();
        put(&mut text, format_args!("| {mutant} | {} | {what} |\n", found["seed"]));
    }
    let kept = std::fs::read_to_string(root.join("docs/results/simulate.md")).unwrap_or_default();
    if let Some(at) = kept.find(BY_HAND) {
        put(&mut text, format_args!("\n{}", &kept[at..]));
    }
    Ok(Page { title: "Faults in virtual time", text })
}

/// Characters of a finding.
const WIDTH: usize = 120;

/// Whether all was right, and what was told.
fn run(root: &Path, line: &CommandLine) -> Result<(bool, Value), Failure> {
    let (status, stdout) = line.capture(root)?;
    let report = serde_json::from_str(&stdout).map_err(|error| line.failed(&error))?;
    Ok((status.success(), report))
}

fn whole(report: &Value) -> String {
    let number = |key: &str| report[key].as_f64().unwrap_or_default();
    let mut text = format!(
        "{SEEDS} seeds from 0 on, in {:.0} s of this machine: two gateways with 1 to 4 ranks each, two \
         jobs, 2 to 4 rounds of 1 to 4 collectives at a time, each round committed as a step, over \
         links of 2 to 20 Mbit/s and 2 to 150 ms, in virtual time; gateways, QUIC and TLS are \
         real. Up to three faults strike a run and end; then all must meet again, and one more \
         round must succeed at the first attempt. Nothing that must not be was seen: no wrong \
         sum, no two results, no changed contribution, no commit of a step that some \
         rank had not posted or had failed, nothing after its deadline, no memory beyond the budget or never freed.\n\n\
         The longest wait of a rank was {:.1} s, where {:.1} s was the most allowed; the least \
         time left to a deadline, of waits beyond 2 s, was {:.1} s. A job had at most {:.0} bytes \
         of a gateway's memory where {:.0} were its budget; of all runs this was the largest part.\n",
        number("seconds"),
        number("longest_wait_seconds"),
        number("longest_wait_allowed_seconds"),
        number("least_margin_seconds"),
        number("memory_bytes"),
        number("memory_budget_bytes"),
    );
    for (head, key) in [("fault", "faults"), ("what a rank heard", "outcomes")] {
        put(&mut text, format_args!("\n| {head} | times |\n|---|---|\n"));
        for (name, count) in report[key].as_object().into_iter().flatten() {
            put(&mut text, format_args!("| {name} | {count} |\n"));
        }
    }
    text
}

fn put(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("a string takes all");
}
