//! `cargo xtask bench simulate`.

use super::bench_page::BenchPage;
use crate::child_command::{CommandFailure, CommandLine};
use crate::simulate::{self, MUTANTS};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;

/// 10,000 seeds with which `cargo xtask bench simulate` runs the session without a mutant; each
/// must pass. The number is chosen.
const SESSION_SEEDS: &str = "10000";

/// The heading of `docs/results/simulate.md` from which on the page is written by hand. The bench
/// keeps that part.
const HANDWRITTEN_HEADING: &str = "## What it has found";

/// Runs `cargo xtask bench simulate`: the correct session over all seeds, then each mutant until a
/// seed finds it.
pub(super) fn measure_simulate_bench(root: &Path) -> Result<BenchPage, CommandFailure> {
    let line = simulate::simulate_command(&["--seeds", SESSION_SEEDS, "--json"]);
    let (status, report) = run_simulate_bench(root, &line)?;
    if !status {
        return Err(line.failure(&report));
    }
    let mut text = simulate_bench_session_text(&report);
    text += "\n## Broken variants\n\nVariants of the session that are broken on purpose, and the \
             first seed, from 0 on, that finds each.\n\n| variant | found by seed | which heard |\n\
             |---|---|---|\n";
    for mutant in MUTANTS {
        let arguments = [&mutant.mutant_search_arguments()[..], &["--json"]].concat();
        let line = mutant.simulate_command(&arguments);
        let (status, report) = run_simulate_bench(root, &line)?;
        let found = report["wrong"].as_array().and_then(|found| found.first());
        let Some(found) = found.filter(|_| !status) else {
            return Err(line.failure(&format!("{} seeds did not find it", simulate::MUTANT_SEEDS)));
        };
        let what = found["wrong"][0].as_str().unwrap_or_default().replace('|', "/");
        let what: String = what.chars().take(FINDING_CHARS_MAX).collect();
        append_simulate_bench_text(
            &mut text,
            format_args!("| {} | {} | {what} |\n", mutant.name, found["seed"]),
        );
    }
    let kept = std::fs::read_to_string(root.join("docs/results/simulate.md")).unwrap_or_default();
    if let Some(at) = kept.find(HANDWRITTEN_HEADING) {
        append_simulate_bench_text(&mut text, format_args!("\n{}", &kept[at..]));
    }
    Ok(BenchPage::new("Faults in virtual time", text))
}

/// 120 characters: the longest text of a finding in a row of the table of mutants. A longer one is
/// cut, so that rows stay short.
const FINDING_CHARS_MAX: usize = 120;

/// Runs a simulation. Returns whether every seed passed, and the JSON report.
fn run_simulate_bench(root: &Path, line: &CommandLine) -> Result<(bool, Value), CommandFailure> {
    let (status, stdout) = line.capture(root)?;
    let report = serde_json::from_str(&stdout).map_err(|error| line.failure(&error))?;
    Ok((status.success(), report))
}

/// Returns the section of the page on the correct session.
fn simulate_bench_session_text(report: &Value) -> String {
    let number = |key: &str| report[key].as_f64().unwrap_or_default();
    let mut text = format!(
        "{SESSION_SEEDS} seeds from 0 on, in {:.0} s of this machine: two gateways with 1 to 4 \
         ranks each, in one of three seeds two to four regions with one or two gateways each and 1 to \
         3 ranks at a gateway, in a line, a ring, with all links or one missing, \
         so that gateways relay sends and blocks; two jobs, rounds of 1 to 4 collectives at a time (all-reduce, reduce, broadcast, barrier, \
         all-gather, gather, scatter, reduce-scatter, all-to-all; every reduction and dtype, averages with weights), each \
         round committed as a step; beside them groups made by tag, count and split, sends by tag, and requests \
         to the store of each job, whose histories are checked for linearizability; over \
         links of 2 to 100 Mbit/s and 2 to 300 ms, in virtual time; gateways, QUIC and TLS are \
         real. Up to three faults strike a run, counted from the first post on, while rounds go \
         on, and end; then each job must work again within the time of \
         [docs/failures.md](../failures.md#how-long-at-most), and everything that begins after it \
         must succeed. Each wait is judged by what was heard and by the faults in force, each \
         failure by whether a fault can have brought it to that job. Nothing that must not be was \
         seen: no wrong result, no two results, no changed contribution, no commit of a step that \
         some rank had not posted or had failed, nothing after its deadline, nothing that another \
         job's ranks, a lane or a delay brought about, no memory beyond the budget or mapped after \
         the end.\n\n\
         {:.1} % of the faults struck while collectives were under way that they could touch. The \
         longest time until a job worked again was {:.1} s. At most {:.0} bytes of a gateway's \
         memory were mapped for a job where {:.0} were its budget; of all runs this was the \
         largest part.\n",
        number("seconds"),
        100.0 * number("struck_in_flight"),
        number("recovery_seconds"),
        number("memory_bytes"),
        number("memory_budget_bytes"),
    );
    let heads = [
        ("| fault | times | of these with something under way |\n|---|---|---|\n", "faults"),
        (
            "| a rank heard | after at most, s | and had left at least, s |\n|---|---|---|\n",
            "waits_seconds",
        ),
        ("| what a rank heard | times |\n|---|---|\n", "outcomes"),
        ("| what was done, of whose results | times |\n|---|---|\n", "completed"),
    ];
    for (head, key) in heads {
        append_simulate_bench_text(&mut text, format_args!("\n{head}"));
        for (name, value) in report[key].as_object().into_iter().flatten() {
            let cells = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            let cells: String = cells
                .iter()
                .map(|cell| format!(" {} |", format_simulate_bench_cell(cell)))
                .collect();
            append_simulate_bench_text(&mut text, format_args!("| {name} |{cells}\n"));
        }
    }
    text
}

/// Formats a table cell: a count as it is, a time with one decimal.
fn format_simulate_bench_cell(cell: &Value) -> String {
    match (cell.as_u64(), cell.as_f64()) {
        (Some(count), _) => count.to_string(),
        (None, Some(seconds)) => format!("{seconds:.1}"),
        (None, None) => "?".to_owned(),
    }
}

/// Appends formatted text to the page.
fn append_simulate_bench_text(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("a string takes all");
}
