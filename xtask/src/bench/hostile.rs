//! `cargo xtask bench hostile`.

use super::Page;
use crate::command::{CommandLine, Failure};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;

/// Asks the tests to measure.
const MEASURE: &str = "LANDBRIDGE_MEASURE_HOSTILE";
/// What must be left of the honest job's rate.
const WANTED: f64 = 0.95;

/// Measures an honest job beside each attack.
pub(super) fn measure(root: &Path) -> Result<Page, Failure> {
    let words = ["test", "--release", "-p", "gateway", "--test", "hostile"];
    let line =
        CommandLine::cargo(&[&words[..], &["--", "--nocapture", "--test-threads=1"]].concat());
    let line = line.with(MEASURE, "1");
    let mut seen = Vec::new();
    let status = line.stream(root, |line| {
        // Behind the test's name, where the harness has printed that.
        let row = line.find('{').and_then(|at| serde_json::from_str::<Value>(&line[at..]).ok());
        seen.extend(row);
    })?;
    if !status.success() {
        return Err(line.failed(&"a test failed"));
    }
    let mut text = format!(
        "Two gateways, each a process, and a link of 200 Mbit/s each way between them on the \
         loopback. The three ranks of an honest job all-reduce 4 MiB without end, checked each \
         time; trainers of another job and strangers break the rules. Rates are the honest job's, \
         medians of three: alone, while the attack is on two other gateways of the same machine, \
         which takes as much of its processor, and while it is on its own. At least {WANTED} of \
         the second is wanted.\n\n\
         | attack | alone Mbit/s | attack elsewhere | attack here | here / elsewhere | |\n\
         |---|---|---|---|---|---|\n"
    );
    let mut missed = Vec::new();
    for row in seen.iter().filter(|row| row["attack"].is_string()) {
        let rate = |key: &str| row[key].as_f64().unwrap_or_default();
        let (alone, elsewhere, here) =
            (rate("alone_mbit_s"), rate("attack_elsewhere_mbit_s"), rate("attack_here_mbit_s"));
        let attack = row["attack"].as_str().unwrap_or_default();
        let met = here >= WANTED * elsewhere;
        missed.extend((!met).then_some(attack));
        writeln!(
            text,
            "| {attack} | {alone:.0} | {elsewhere:.0} | {here:.0} | {:.2} | {} |",
            here / elsewhere,
            if met { "met" } else { "NOT MET" }
        )
        .expect("a string takes all");
    }
    if !missed.is_empty() {
        return Err(line.failed(&format!("{text}\nnot met: {}", missed.join(", "))));
    }
    Ok(Page { title: "An honest job beside a hostile one", text })
}
