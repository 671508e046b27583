//! `cargo xtask bench wan`: the long-haul leg against its bound, its controls and its peers.

use super::network_bench_command;
use crate::bench::bench_page::{BenchPage, show_bench_page_figures};
use crate::child_command::CommandFailure;
use serde_json::Value;
use std::path::Path;
use std::process::ExitCode;

/// Runs `cargo xtask bench wan`: all rows, to `whole.md`, `whole.json` and `whole.svg` in
/// `docs/results/wan`.
pub(in crate::bench) fn measure_wan(root: &Path) -> Result<BenchPage, CommandFailure> {
    measure_wan_page(root, "whole", &[])
}

/// Runs `cargo xtask bench wan --quick`: a few rows, to `quick.md`, `quick.json` and `quick.svg` in
/// `docs/results/wan`.
pub(in crate::bench) fn measure_wan_quick(root: &Path) -> Result<BenchPage, CommandFailure> {
    measure_wan_page(root, "quick", &["--quick"])
}

/// Runs the program `wan` with `flags` and returns its page; the picture goes to `NAME.svg`.
fn measure_wan_page(root: &Path, name: &str, flags: &[&str]) -> Result<BenchPage, CommandFailure> {
    let results = root.join("docs/results/wan");
    let svg = results.join(format!("{name}.svg")).display().to_string();
    let scratch = crate::workspace::workspace_target_folder().join("wan.json");
    let to = ["--svg", &svg, "--json-to", &scratch.display().to_string()];
    let line = network_bench_command(root, "wan", &[&to, flags].concat())?;
    let (status, tables) = line.capture(root)?;
    if !status.success() {
        return Err(line.failure(&status));
    }
    let json = std::fs::read(&scratch).map_err(|error| line.failure(&error))?;
    let json: Value = serde_json::from_slice(&json).map_err(|error| line.failure(&error))?;
    let verdicts = json["verdicts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let missed = verdicts.iter().filter(|verdict| verdict["met"] != true);
    let missed = missed.map(|verdict| format!("{}: {}", verdict["wanted"], verdict["worst"]));
    let missed = missed.collect();
    let text = format!(
        "An all-reduce of f32 with one rank in each region, or the operation named, from the last post to \
         the last result; medians of `runs`. eta is T* over that, goodput the buffer's bytes over it. `virtual`: whole \
         gateways over simulated links in virtual time, a seed each run. `lab`: real processes in network \
         namespaces with TUN devices between them, on one machine, each contender by itself, one \
         after the other; runs that the emulator calls void are repeated in other labs, up to \
         seven times while there is time, and marked if they still are. \
         Processor time is that of both gateways over whole runs; the others measure their own, of \
         both sides, while they are timed; what is too little for the kernel's clock is left out. \
         The emulator's share is its processor time over that of all cores meanwhile: it is no \
         contender's cost, but takes the processor from all of them. \
         Retransmitted is, of one run and both ways, what QUIC took for lost, at 1,433 bytes a packet, or \
         the segments that TCP retransmitted; the queue's peak is over all runs, and in the lab \
         over all that the lab has seen until then: sizes are measured in ascending order. \
         iperf3 sends one way for three seconds, and its time is that of as many bytes at its rate. \
         An all-gather of 64 MiB has a result of that size, and in an all-to-all each rank has a buffer of it. \
         A trainer that attaches over TCP gives its block by a gather, from its post until the gateway has all bytes, \
         or gets one by a scatter, from the post of a rank at its gateway until it has all. TCP alone and TLS alone are one connection between \
         two processes that moves as many bytes the same way, between memory of that size; all three in turns. \
         What takes longer than 20 s is cut: of peers and bare quinn a cell's runs together, of \
         gateways each. Who did not do one run in time is not run with more loss on the same link, \
         and shown as cut. \
         The same as JSON: [{name}.json]({name}.json).\n\n![eta against RTT]({name}.svg)\n\n{tables}"
    );
    Ok(BenchPage { json: Some(json), missed, ..BenchPage::new("The long haul", text) })
}

/// Runs the bench program `wan` with `flags` and its output shown; no page is written.
pub(in crate::bench) fn show_wan_bench(
    root: &Path,
    flags: &[&str],
) -> Result<ExitCode, CommandFailure> {
    let code = network_bench_command(root, "wan", flags)?.run_to_exit_code(root)?;
    let code = code.and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Runs parts of the bench `wan`, as `flags` say, and prints the figures; no page is written.
pub fn show_wan_bench_parts(flags: &[&str]) -> ExitCode {
    show_bench_page_figures(|root| show_wan_bench(root, flags))
}
