//! The matrix as a Markdown table, as JSON, and the traces of its cells.

use crate::cell::CellOutcome;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::Path;

/// 0.80: the least efficiency of a very first transfer that the targets allow.
const FIRST_WANTED: f64 = 0.80;
/// The least efficiency of later transfers by loss: without, and with 1 %.
const LATER_WANTED: [f64; 2] = [0.93, 0.90];

/// Returns one line of text on a cell, for the progress.
pub fn line(outcome: &CellOutcome) -> String {
    let CellOutcome { cell, first, later, after_idle, .. } = outcome;
    format!(
        "{} Mbit/s, {} ms, loss {} ppm, queue {}: first {first:.3}, later {later:.3?}, after idle time {after_idle:.3}",
        cell.rate_mbit, cell.rtt_ms, cell.loss_ppm, cell.queue_thousandths
    )
}

/// Returns how many first and how many later transfers reach the targets, and of how many.
fn reached(outcomes: &[CellOutcome]) -> [(usize, usize); 2] {
    let first = outcomes.iter().filter(|outcome| outcome.first >= FIRST_WANTED).count();
    let later = outcomes.iter().flat_map(|outcome| {
        let wanted = LATER_WANTED[usize::from(outcome.cell.loss_ppm > 0)];
        let [one, two] = outcome.later;
        [one, two, outcome.after_idle].map(|eta| eta >= wanted)
    });
    [(first, outcomes.len()), (later.filter(|good| *good).count(), 3 * outcomes.len())]
}

/// Returns the least and the mean of some efficiencies.
fn least_and_mean(etas: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let least = etas.clone().fold(f64::INFINITY, f64::min);
    let count = etas.clone().count().max(1) as f64;
    (least, etas.sum::<f64>() / count)
}

/// Returns the matrix as Markdown.
pub fn markdown(outcomes: &[CellOutcome]) -> String {
    let [(first, firsts), (later, laters)] = reached(outcomes);
    let (first_least, first_mean) = least_and_mean(outcomes.iter().map(|outcome| outcome.first));
    let all_later = outcomes
        .iter()
        .flat_map(|outcome| [outcome.later[0], outcome.later[1], outcome.after_idle]);
    let (later_least, later_mean) = least_and_mean(all_later);
    let mut text = format!(
        "All-reduces of 50 BDP between two gateways that know only their ports, ten times as fast as \
         the link, in virtual time. Figures are parts of the bound of the true link.\n\n\
         | transfers | least | mean | wanted | reach it |\n|---|---|---|---|---|\n\
         | first | {first_least:.3} | {first_mean:.3} | {FIRST_WANTED:.2} | {first} of {firsts} |\n\
         | later | {later_least:.3} | {later_mean:.3} | {:.2}, with loss {:.2} | {later} of {laters} |\n\n\
         | rate | RTT | loss | queue | first | second | third | after 10 min |\n\
         |---|---|---|---|---|---|---|---|\n",
        LATER_WANTED[0], LATER_WANTED[1]
    );
    for CellOutcome { cell, first, later: [second, third], after_idle, .. } in outcomes {
        let (loss, queue) =
            (f64::from(cell.loss_ppm) / 1e4, f64::from(cell.queue_thousandths) / 1e3);
        text += &format!(
            "| {} Mbit/s | {} ms | {loss} % | {queue} BDP | {first:.3} | {second:.3} | {third:.3} | {after_idle:.3} |\n",
            cell.rate_mbit, cell.rtt_ms
        );
    }
    text
}

/// Returns the matrix as one JSON object, with the targets that are not met and the Markdown beside the
/// figures.
pub fn json(outcomes: &[CellOutcome]) -> Value {
    let [(first, firsts), (later, laters)] = reached(outcomes);
    let mut missed = Vec::new();
    if first < firsts {
        missed.push(format!(
            "{} of {firsts} first transfers are below {FIRST_WANTED}",
            firsts - first
        ));
    }
    if later < laters {
        let [without, with] = LATER_WANTED;
        let below = laters - later;
        missed.push(format!(
            "{below} of {laters} later transfers are below {without}, or {with} with loss"
        ));
    }
    json!({ "cells": outcomes, "missed": missed, "markdown": markdown(outcomes) })
}

/// Writes the trace of each cell as JSON lines.
pub fn write_traces(folder: &Path, outcomes: &[CellOutcome]) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for CellOutcome { cell, trace, .. } in outcomes {
        let name = format!(
            "{}mbit-{}ms-{}ppm-{}.jsonl",
            cell.rate_mbit, cell.rtt_ms, cell.loss_ppm, cell.queue_thousandths
        );
        let mut file = io::BufWriter::new(std::fs::File::create(folder.join(name))?);
        for record in trace {
            serde_json::to_writer(&mut file, record)?;
            file.write_all(b"\n")?;
        }
        file.flush()?;
    }
    Ok(())
}
