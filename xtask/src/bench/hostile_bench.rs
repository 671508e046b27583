//! `cargo xtask bench hostile`.

use super::bench_page::BenchPage;
use crate::child_command::{CommandFailure, CommandLine};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;

/// The environment variable that makes the tests of `landbridge/tests/hostile` measure the rate of
/// an honest job beside attacks.
const MEASURE_VARIABLE: &str = "LANDBRIDGE_MEASURE_HOSTILE";
/// 0.95 of the reference: the least rate of an honest job beside an attack; with less the bench
/// fails. The reference is its rate beside the same load elsewhere on the machine. The target is
/// chosen.
const RATE_FRACTION_WANTED: f64 = 0.95;
/// The name of the attack for which the bench has no target. Touching a memory page that a trainer
/// released blocks a gateway's thread until the exchange ends. Jobs that fear this attack need
/// gateways of their own.
const UNBOUNDED_ATTACK: &str = "memory released during the exchange";

/// Runs `cargo xtask bench hostile`: measures the rate of an honest job beside each attack.
pub(super) fn measure_hostile_bench(root: &Path) -> Result<BenchPage, CommandFailure> {
    let words = ["test", "--release", "-p", "landbridge", "--test", "hostile"];
    let line =
        CommandLine::cargo(&[&words[..], &["--", "--nocapture", "--test-threads=1"]].concat());
    let line = line.with_variable(MEASURE_VARIABLE, "1");
    let mut seen = Vec::new();
    let status = line.stream(root, |line| {
        // Behind the test's name, where the harness has printed that.
        let row = line.find('{').and_then(|at| serde_json::from_str::<Value>(&line[at..]).ok());
        seen.extend(row);
    })?;
    if !status.success() {
        return Err(line.failure(&"a test failed"));
    }
    seen.retain(|row: &Value| row["attack"].is_string());
    let turns = seen.first().and_then(|row| row["turns"].as_u64()).unwrap_or_default();
    let mut text = format!(
        "Two gateways, each a process, and a link of 200 Mbit/s each way between them on the \
         loopback. The three ranks of an honest job all-reduce 4 MiB without end, checked each \
         time; trainers of another job and unauthenticated connections break the rules. Rates are \
         the honest job's, medians of {turns}: alone, beside a reference, which takes as much of \
         the machine's processor, and beside the attack. The reference is the same attack on two other gateways \
         of the machine; where the attackers all-reduce as well, it is those all-reduces here, \
         with the same changes to memory that nobody has attached. At least \
         {RATE_FRACTION_WANTED} of the rate beside the reference is wanted, but of who gives memory back that it has attached: a page \
         on its way out stops whichever thread touches it, until the exchange that uses it ends, \
         and with that the attachment. Jobs that have to fear such malice need gateways of their \
         own.\n\n\
         | attack | alone Mbit/s | beside the reference | beside the attack | attack / reference | |\n\
         |---|---|---|---|---|---|\n"
    );
    let mut missed = Vec::new();
    for row in &seen {
        let rate = |key: &str| row[key].as_f64().unwrap_or_default();
        let (alone, reference, attacked) =
            (rate("alone_mbit_s"), rate("beside_reference_mbit_s"), rate("beside_attack_mbit_s"));
        let attack = row["attack"].as_str().unwrap_or_default();
        let met = attacked >= RATE_FRACTION_WANTED * reference;
        let held = attack != UNBOUNDED_ATTACK;
        missed.extend((held && !met).then_some(attack));
        writeln!(
            text,
            "| {attack} | {alone:.0} | {reference:.0} | {attacked:.0} | {:.2} | {} |",
            attacked / reference,
            match (held, met) {
                (false, _) => "no bound",
                (true, true) => "met",
                (true, false) => "NOT MET",
            }
        )
        .expect("a string takes all");
    }
    if !missed.is_empty() {
        return Err(line.failure(&format!("{text}\nnot met: {}", missed.join(", "))));
    }
    Ok(BenchPage::new("An honest job beside a hostile one", text))
}
