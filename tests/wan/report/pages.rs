//! The results as Markdown for people and as JSON for programs.

use super::figures::label;
use super::verdict::{Verdict, verdicts};
use crate::arms::long::Long;
use crate::cell::{CUT_AFTER_S, Cell};
use crate::measured::Measured;
use crate::row::Row;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// One object: `cells`, each with its link, `long`, `costs`, `attached`, `verdicts`, what was
/// skipped, and how long all took.
pub fn json(measured: &Measured) -> String {
    let cells: Vec<Value> = measured
        .cells
        .iter()
        .map(|(row, cell)| {
            let mut value = json!(cell);
            value["rate_bits_per_second"] = row.rate.bits_per_second().into();
            value["rtt_ms"] = (row.rtt.as_secs_f64() * 1e3).into();
            value["loss"] = row.loss.to_string().into();
            value
        })
        .collect();
    let attached = measured.attached.iter().map(|one| {
        let mut value = json!(one);
        value["ground"] = one.transfer.ground.name().into();
        value["way"] = json!(one.transfer.way);
        value["bytes"] = one.transfer.bytes.into();
        value["ratio"] = json!(one.ratio());
        value
    });
    let attached: Vec<Value> = attached.collect();
    let report = json!({
        "cells": cells,
        "long": measured.long,
        "costs": measured.costs,
        "attached": attached,
        "verdicts": verdicts(measured),
        "skipped": measured.skipped,
        "peers": measured.versions,
        "took_seconds": measured.took.map(|took| took.whole.as_secs_f64()),
    });
    format!("{report}\n")
}

/// Why some bounds are not over all rows, and what controls do.
const WHY: &str = "\
* The window of 1.25 MB is held to W/RTT one way. Both ways, which stands beside it, a round trip of \
  quinn's takes longer than the path's: it acknowledges nothing while it has data and no room in its \
  window for them.
* One segment for all is bounded from 80 ms on. On shorter links the window of one lane holds all that \
  the link does, and a segment is added as it comes, so that it is about as fast as many.
* quinn adds what comes to the operand that it sends, into a buffer of its own, as who all-reduces has \
  to while the operand is under way.
* Without tail repair, the fabric says of a link that it loses nothing: there is no parity, and what is \
  lost is charged to the rate limit.

";

/// Returns the page: the verdicts, then a table for each link.
pub fn markdown(measured: &Measured) -> String {
    let mut text = String::from(
        "| wanted | the worst of what was measured | figures | void | |\n|---|---|---|---|---|\n",
    );
    for Verdict { wanted, worst, met, figures, void } in verdicts(measured) {
        let met = if met { "met" } else { "NOT MET" };
        writeln!(text, "| {wanted} | {worst} | {figures} | {void} | {met} |")
            .expect("a string takes all");
    }
    text.push('\n');
    text.push_str(WHY);
    if !measured.versions.is_empty() {
        writeln!(text, "Peers: {}.\n", measured.versions.join(", ")).expect("a string takes all");
    }
    if let Some(took) = measured.took {
        let minutes = took.whole.as_secs_f64() / 60.0;
        writeln!(text, "All of it took {minutes:.1} min.\n").expect("a string takes all");
    }
    let mut rows: Vec<Row> = Vec::new();
    for (row, _) in &measured.cells {
        if !rows.contains(row) {
            rows.push(*row);
        }
    }
    for row in rows {
        writeln!(
            text,
            "### {row}\n\n| who | arm | size | runs | s | eta | Mbit/s | CPU s/GB | \
             emulator | retransmitted MB | queue peak MB | |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
        )
        .expect("a string takes all");
        for (_, cell) in measured.cells.iter().filter(|(of, _)| *of == row) {
            text.push_str(&line(cell));
        }
        text.push('\n');
    }
    text.push_str(&long(measured));
    text.push_str(&costs(measured));
    text.push_str(&attached(measured));
    if !measured.skipped.is_empty() {
        text.push_str("Skipped:\n\n");
        for what in &measured.skipped {
            writeln!(text, "* {what}").expect("a string takes all");
        }
    }
    text
}

/// A table of long series; nothing where none was measured.
fn long(measured: &Measured) -> String {
    let mut text = String::new();
    for (index, Long { what, figure, real_seconds }) in measured.long.iter().enumerate() {
        if index == 0 {
            text.push_str("### Many all-reduces over one link, in virtual time\n\n");
            text.push_str("| what | figure | seconds that simulating took |\n|---|---|---|\n");
        }
        let took = real_seconds.map_or("the same run".to_owned(), |took| format!("{took:.0}"));
        writeln!(text, "| {what} | {figure:.3} | {took} |").expect("a string takes all");
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

/// A table of processor time; nothing where none was measured.
fn costs(measured: &Measured) -> String {
    let spread = |values: &[f64]| {
        let shown: Vec<String> = values.iter().map(|value| format!("{value:.2}")).collect();
        shown.join(", ")
    };
    let mut text = String::new();
    for (index, cost) in measured.costs.iter().enumerate() {
        if index == 0 {
            text.push_str(
                "### Processor time, over loopback\n\n| packet payload B | both gateways CPU s/GB | \
                 quinn that also adds, both sides | ratio (wanted: at most 1.25) | Gbit/s each way: \
                 gateways, quinn |\n|---|---|---|---|---|\n",
            );
        }
        let [ours, theirs] = cost.gbit;
        writeln!(
            text,
            "| {} | {} | {} | {:.2} | {ours:.2}, {theirs:.2} |",
            cost.packet_payload_bytes,
            spread(&cost.gateways),
            spread(&cost.quinn),
            cost.ratio,
        )
        .expect("a string takes all");
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

/// A table of trainers that attach over TCP; nothing where none was measured.
fn attached(measured: &Measured) -> String {
    let mut text = String::new();
    for (index, one) in measured.attached.iter().enumerate() {
        if index == 0 {
            text.push_str(
                "### A trainer that attaches over TCP\n\n| path, way, size | Gbit/s | TCP alone, Gbit/s | \
                 ratio (wanted: at least 0.7) | TLS alone, Gbit/s | its ratio | |\n|---|---|---|---|---|---|---|\n",
            );
        }
        let ratio = one.ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"));
        let void = one.void.as_ref().map_or_else(String::new, |why| format!("VOID: {why}"));
        let (name, ours, tcp, tls) = (one.transfer.label(), one.gbit, one.tcp_gbit, one.tls_gbit);
        let of_tls = tls / tcp;
        writeln!(
            text,
            "| {name} | {ours:.3} | {tcp:.3} | {ratio} | {tls:.3} | {of_tls:.3} | {void} |"
        )
        .expect("a string takes all");
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

/// Returns remarks on the runs of a cell: void, cut, or the number of attempts.
fn remarks(cell: &Cell) -> String {
    if let Some(loss) = &cell.cut_from {
        return format!("not run: cut at {loss} already");
    }
    match (&cell.void, cell.attempt) {
        (Some(why), attempt) => format!("VOID, attempt {attempt}: {why}"),
        (None, 1) => String::new(),
        (None, attempt) => format!("attempt {attempt}, those before it were void"),
    }
}

/// Returns a cell as a row of the table of its link.
pub fn line(cell: &Cell) -> String {
    let or_not = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let megabytes = |bytes: u64| format!("{:.2}", bytes as f64 / 1e6);
    let goodput = match cell.seconds {
        Some(_) => format!("{:.0}", cell.goodput_mbit),
        None => format!("< {:.0}", cell.goodput_mbit),
    };
    format!(
        "| {} | {} | {} | {} | {} | {} | {goodput} | {} | {} | {} | {} | {} |\n",
        label(&cell.who, cell.operation),
        cell.arm,
        units::ByteCount::new(cell.bytes),
        cell.runs,
        cell.seconds.map_or(format!("> {CUT_AFTER_S}"), |seconds| format!("{seconds:.4}")),
        or_not(cell.eta.map(|eta| format!("{eta:.3}"))),
        or_not(cell.cpu_seconds_per_gb.map(|seconds| format!("{seconds:.2}"))),
        or_not(cell.emulator_share.map(|share| format!("{:.0} %", 100.0 * share))),
        or_not(cell.retransmitted_bytes.map(megabytes)),
        or_not(cell.queue_bytes_peak.map(megabytes)),
        remarks(cell),
    )
}
