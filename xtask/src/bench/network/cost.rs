//! `cargo xtask bench cost`: what moving a byte costs, beside controls.

use super::network_bench_command;
use crate::bench::bench_page::{BenchPage, measure_and_write_bench_page, show_bench_page_figures};
use crate::child_command::{CommandFailure, CommandLine};
use crate::workspace;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Runs `cargo xtask bench cost`, to `docs/results/cost`: all rows with flame graphs, or few rows
/// with `quick`. An older binary `before` is measured beside the current one.
pub(in crate::bench) fn measure_cost(
    root: &Path,
    quick: bool,
    before: Option<&str>,
) -> Result<BenchPage, CommandFailure> {
    let name = if quick { "quick" } else { "whole" };
    let results = root.join("docs/results/cost");
    let scratch = workspace::workspace_target_folder().join("cost.json");
    let mut flags = vec![
        "--svg".to_owned(),
        results.join(format!("{name}.svg")).display().to_string(),
        "--json-to".to_owned(),
        scratch.display().to_string(),
    ];
    if quick {
        flags.push("--quick".to_owned());
    } else {
        flags.extend(["--flames".to_owned(), results.display().to_string()]);
        let programs = build_for_cost_with_symbols(root)?;
        let programs = programs.map(|folder| folder.display().to_string());
        flags.extend(programs.into_iter().flat_map(|folder| ["--with-symbols".to_owned(), folder]));
    }
    if let Some(before) = before {
        // The command runs in the root of the workspace.
        let before = std::path::absolute(before).unwrap_or_else(|_| PathBuf::from(before));
        flags.extend(["--before".to_owned(), before.display().to_string()]);
    }
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let line = network_bench_command(root, "cost", &flags)?;
    std::fs::create_dir_all(&results).map_err(|error| line.failure(&error))?;
    let (status, tables) = line.capture(root)?;
    if !status.success() {
        return Err(line.failure(&status));
    }
    let json = std::fs::read(&scratch).map_err(|error| line.failure(&error))?;
    let json: Value = serde_json::from_slice(&json).map_err(|error| line.failure(&error))?;
    let verdicts = json["verdicts"].as_array().map(Vec::as_slice).unwrap_or_default();
    // A verdict without a figure is told as skipped, by the page and on stderr.
    let missed = verdicts.iter().filter(|verdict| verdict["outcome"] == "not met");
    let missed = missed.map(|verdict| format!("{}: {}", verdict["wanted"], verdict["figure"]));
    let missed = missed.collect();
    let text = format!(
        "{CONDITIONS}The same as JSON: [{name}.json]({name}.json).\n\n\
         ![CPU-s/GB]({name}.svg)\n\n{tables}"
    );
    Ok(BenchPage { json: Some(json), missed, ..BenchPage::new("What a byte costs", text) })
}

/// Runs the program `cost` with `flags` and its output shown; no page is written.
pub(in crate::bench) fn show_cost(root: &Path, flags: &[&str]) -> Result<ExitCode, CommandFailure> {
    let code = network_bench_command(root, "cost", flags)?.run_to_exit_code(root)?;
    let code = code.and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Builds the measured programs with symbols, for flame graphs. Returns their folder; `None`
/// without `perf`, which the bench then tells as skipped.
fn build_for_cost_with_symbols(root: &Path) -> Result<Option<PathBuf>, CommandFailure> {
    let perf = CommandLine::in_path(&["perf", "--version"]);
    if !perf.capture(root).is_ok_and(|(status, _)| status.success()) {
        return Ok(None);
    }
    let words = ["build", "--profile", "profiling", "--package", "landbridge", "--package"];
    let words = [&words[..], &["scenarios", "--bins"]].concat();
    CommandLine::cargo(&words).run_to_success(root)?;
    Ok(Some(workspace::workspace_target_folder().join("profiling")))
}

/// Text on how the bench `cost` measures, in Markdown, which stands above the tables of its page.
const CONDITIONS: &str = "\
Gateways with one rank each all-reduce 64 MiB of f32 on one machine, over a loopback device of \
the bench's own with the MTU of the row. The pacer holds the rate that the fabric says; at full \
speed the links are faster than the machine. A GB is 1e9 bytes of the trainers' buffer. The cost \
is that of all gateways of the row: user and system time of their processes, without those of the \
trainers. A row with four peer regions has five gateways, which together send four times the \
bytes of two. The cost of a rank that attaches is subtracted. A wake-up is a voluntary context \
switch. System calls are counted in a run of their own, beside no busy process, for processes \
that a counter can be attached to in time. Packets per call are those that one send call of a \
gateway hands to the kernel. n is the number of runs; figures are medians, beside them the least \
and the most. Rows and controls take turns: each once in a round, so that a busy spell of the \
machine meets all. A ratio is the median over rounds. The kernel segments no packet on loopback: \
whoever hands it several packets at once, as gateways, quinn and TCP do, is spared that, as with \
a network card that segments.

Bare quinn is one connection with quinn's defaults (packets of 8,900 bytes at MTU 9000, which it \
would not find), which also adds f32 to a buffer of its own. TCP is one flow of iperf3 each way, \
and TLS 1.3 one connection of `openssl s_client` to `s_server` each way with the gateways' \
cipher; both only stream, and add nothing. Gloo all-reduces through PyTorch. They run at full \
speed, and tell their own cost or are measured from outside.

";

/// Runs the bench `cost`. With no flags but `--quick` and `--before BINARY` it writes its page;
/// with others it prints the figures.
pub fn bench_cost(flags: &[&str]) -> ExitCode {
    let (quick, before) = match flags {
        [] => (false, None),
        ["--quick"] => (true, None),
        ["--before", binary] => (false, Some(*binary)),
        ["--quick", "--before", binary] | ["--before", binary, "--quick"] => (true, Some(*binary)),
        _ => return show_bench_page_figures(|root| show_cost(root, flags)),
    };
    let page = if quick { "cost/quick" } else { "cost/whole" };
    let mut name = String::from(if quick { "cost --quick" } else { "cost" });
    if before.is_some() {
        name += " --before BINARY";
    }
    measure_and_write_bench_page(page, &name, |root| measure_cost(root, quick, before))
}
