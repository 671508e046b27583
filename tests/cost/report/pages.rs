//! The results as Markdown for people and as JSON for programs.

use super::paper;
use super::verdict::{RECORDED_BEFORE, Verdict, verdicts};
use crate::figure::Figure;
use crate::measured::{Cell, Measured};
use crate::row::{Contender, GIGABIT, Row};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Returns one object: `cells`, `idle`, `verdicts`, `paper`, skipped measurements and notes.
pub fn json(measured: &Measured) -> String {
    let report = json!({
        "cells": measured.cells.iter().map(cell_json).collect::<Vec<_>>(),
        "idle": {
            "core_percent": idle_core_percent(measured),
            "wakeups_per_second": idle_wakeups(measured),
        },
        "verdicts": verdicts(measured),
        "paper": paper::needs(measured),
        "skipped": measured.skipped,
        "notes": measured.notes,
        "took_seconds": measured.took.map(|took| took.whole.as_secs_f64()),
    });
    format!("{report}\n")
}

/// Returns the percent of a core that idle gateways take.
fn idle_core_percent(measured: &Measured) -> Option<Figure> {
    Figure::of(measured.idle.as_ref()?.core_percent.iter().copied())
}

/// Returns the wake-ups in a second of idle gateways.
fn idle_wakeups(measured: &Measured) -> Option<Figure> {
    Figure::of(measured.idle.as_ref()?.wakeups_per_second.iter().copied())
}

/// Returns a row with its figures.
fn cell_json(cell: &Cell) -> Value {
    let Row { who, mbit, mtu, peers, busy, .. } = cell.row;
    let sent = cell.row.sent_per_gigabyte();
    let mut threads = BTreeMap::new();
    for name in cell.samples.iter().flat_map(|sample| sample.cpu_by_thread.keys()) {
        threads.insert(name, cell.figure(|sample| sample.thread_cpu_per_gb(name)));
    }
    json!({
        "who": who.name(),
        "rate_bits_per_second": mbit.map(|_| cell.row.link_rate().bits_per_second()),
        "mtu": mtu,
        "peer_regions": peers,
        "busy": busy,
        "gbit": cell.figure(|sample| Some(sample.gbit)),
        "cpu_seconds_per_gb": cell.cpu_per_gb(),
        "cpu_seconds_per_sent_gb": cell.figure(|sample| Some(sample.cpu_per_gb() / sent)),
        "cpu_seconds_per_gb_by_thread": threads,
        "wakeups_per_gb": cell.figure(|sample| sample.wakeups_per_gb()),
        "calls_per_gb": cell.calls_per_gb,
        "packets_per_call": cell.figure(|sample| sample.packets_per_call),
    })
}

/// Returns the page: the verdicts, then a table for each packet size and number of peers.
pub fn markdown(measured: &Measured) -> String {
    let mut text = verdict_table(measured);
    text += &note_on_recorded(measured);
    for group in groups(measured) {
        writeln!(text, "### {}\n\n{HEADER}", group_name(&group)).expect("a string takes all");
        let of_group = |cell: &&Cell| is_in_group(&cell.row, &group) && !cell.samples.is_empty();
        measured.cells.iter().filter(of_group).for_each(|cell| text += &line(cell));
        text.push('\n');
    }
    text += &idle_section(measured);
    text += &paper::section(measured);
    text += &flame_section(measured);
    if !measured.notes.is_empty() {
        writeln!(text, "With {}.\n", measured.notes.join(", ")).expect("a string takes all");
    }
    if let Some(took) = measured.took {
        let minutes = took.whole.as_secs_f64() / 60.0;
        writeln!(text, "All of it took {minutes:.1} min.\n").expect("a string takes all");
    }
    writeln!(text, "{} skipped:\n", measured.skipped.len()).expect("a string takes all");
    for what in &measured.skipped {
        writeln!(text, "* {what}").expect("a string takes all");
    }
    text
}

/// Returns the table of bounds.
fn verdict_table(measured: &Measured) -> String {
    let mut text =
        String::from("| CPU-s/GB, and others | figure | least-most | |\n|---|---|---|---|\n");
    for Verdict { wanted, figure, outcome, .. } in verdicts(measured) {
        let (median, spread) = median_and_spread(figure, 3);
        writeln!(text, "| {wanted} | {median} | {spread} | {} |", outcome.name())
            .expect("a string takes all");
    }
    text.push('\n');
    text
}

/// Returns a note that compares 1 Gbit/s with an older figure, unless an older binary was measured.
fn note_on_recorded(measured: &Measured) -> String {
    let row = Row::plain(GIGABIT);
    let before = Row { who: Contender::Before, ..row };
    let now = measured.cell(&row).and_then(Cell::cpu_per_gb);
    match now {
        Some(now) if measured.cell(&before).is_none() => format!(
            "Recorded before, in another run: {RECORDED_BEFORE} CPU-s/GB at 1 Gbit/s and MTU 1500; \
             now {:.2}, {:.2} times as much. That is a note and no verdict, which \
             `--before BINARY` gives.\n\n",
            now.median,
            now.median / RECORDED_BEFORE
        ),
        _ => String::new(),
    }
}

/// Header of the table of a group, whose lines stay within 80 columns.
const HEADER: &str = "\
| who | Gbit/s | CPU-s/GB | least-most | wakes/GB | calls/GB | pkt/call | n |
|---|---|---|---|---|---|---|---|";

/// Returns a row as a line of its table.
fn line(cell: &Cell) -> String {
    let Row { who, .. } = cell.row;
    let who = match who {
        Contender::Landbridge => cell.row.rate_name(),
        Contender::Before => format!("before, {}", cell.row.rate_name()),
        control => control.name().to_owned(),
    };
    let median = |figure: Option<Figure>| figure.map(|figure| figure.median);
    let (cpu, spread) = median_and_spread(cell.cpu_per_gb(), 2);
    let gbit = median(cell.figure(|sample| Some(sample.gbit)));
    let packets = median(cell.figure(|sample| sample.packets_per_call));
    format!(
        "| {who} | {} | {cpu} | {spread} | {} | {} | {} | {} |\n",
        gbit.map_or("-".to_owned(), |gbit| format!("{gbit:.2}")),
        thousands(median(cell.figure(|sample| sample.wakeups_per_gb()))),
        thousands(cell.calls_per_gb),
        packets.map_or("-".to_owned(), |packets| format!("{packets:.1}")),
        cell.samples.len(),
    )
}

/// Returns the texts of median and spread with so many decimals.
fn median_and_spread(figure: Option<Figure>, decimals: usize) -> (String, String) {
    let Some(Figure { median, least, most, .. }) = figure else {
        return ("-".to_owned(), "-".to_owned());
    };
    (format!("{median:.decimals$}"), format!("{least:.decimals$}-{most:.decimals$}"))
}

/// Returns a count in thousands, such as `41.2k`.
fn thousands(count: Option<f64>) -> String {
    count.map_or("-".to_owned(), |count| format!("{:.1}k", count / 1e3))
}

/// Returns a row of each group: packet size, peers, and whether others are busy.
fn groups(measured: &Measured) -> Vec<Row> {
    let mut groups: Vec<Row> = Vec::new();
    for cell in measured.cells.iter().filter(|cell| !cell.samples.is_empty()) {
        if !groups.iter().any(|group| is_in_group(&cell.row, group)) {
            groups.push(cell.row);
        }
    }
    groups.sort_by_key(|row| (row.mtu, row.busy, row.peers));
    groups
}

/// Returns whether a row stands in the table of a group.
fn is_in_group(row: &Row, group: &Row) -> bool {
    (row.mtu, row.busy, row.peers) == (group.mtu, group.busy, group.peers)
}

/// Returns the heading of a group.
fn group_name(row: &Row) -> String {
    let peers = if row.peers == 1 { "1 peer region" } else { "4 peer regions" };
    let beside = if row.busy { ", beside two busy processes" } else { "" };
    format!("MTU {}, {peers}{beside}", row.mtu)
}

/// Returns the figures of idle gateways.
fn idle_section(measured: &Measured) -> String {
    let figures = idle_core_percent(measured).zip(idle_wakeups(measured));
    figures.map_or_else(String::new, |(core, wakeups)| {
        let (core, core_spread) = median_and_spread(Some(core), 3);
        let (wakeups, wakeups_spread) = median_and_spread(Some(wakeups), 1);
        format!(
            "### Idle\n\nFive gateways with four peers each, 30 s of nothing; median, least and \
             most of the five.\n\n| % of a core | least-most | wake-ups/s | least-most |\n\
             |---|---|---|---|\n| {core} | {core_spread} | {wakeups} | {wakeups_spread} |\n\n"
        )
    })
}

/// Returns links to the flame graphs.
fn flame_section(measured: &Measured) -> String {
    if measured.flames.is_empty() {
        return String::new();
    }
    let links = measured.flames.iter().map(|(file, title)| format!("[{title}]({file})"));
    let links: Vec<String> = links.collect();
    format!("Flame graphs at full speed, MTU 1500: {}.\n\n", links.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::{Idle, Sample};
    use crate::row::FULL;

    /// Rows with wide figures in every column.
    fn measured() -> Measured {
        let sample = |cpu_seconds| Sample {
            gigabytes: 1.0,
            gbit: 12.34,
            cpu_seconds,
            wakeups: Some(123_456.0),
            packets_per_call: Some(43.9),
            ..Sample::default()
        };
        let cell = |row| Cell {
            samples: vec![sample(10.25), sample(12.5), sample(11.75)],
            calls_per_gb: Some(234_567.0),
            ..Cell::new(row)
        };
        let of = |who, mbit| cell(Row { who, ..Row::plain(mbit) });
        let cells = vec![
            of(Contender::Landbridge, Some(2500)),
            of(Contender::Before, GIGABIT),
            of(Contender::Tls, FULL),
            Cell::new(Row { busy: true, ..Row::plain(FULL) }),
        ];
        let idle = Idle { core_percent: vec![0.25; 5], wakeups_per_second: vec![12.5; 5] };
        Measured { cells, idle: Some(idle), ..Measured::default() }
    }

    #[test]
    fn tables_stay_within_eighty_columns() {
        let text = markdown(&measured());
        for line in text.lines().filter(|line| line.starts_with('|')) {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(text.contains("| before, 1 Gbit/s | 12.34 | 11.75 | 10.25-12.50 | 123.5k |"));
        assert_eq!(text.matches("### MTU").count(), 1, "a row without runs has no table");
    }

    #[test]
    fn skips_are_counted_on_the_page() {
        let skipped = vec!["all rows of Gloo: no torch".to_owned()];
        let text = markdown(&Measured { skipped, ..measured() });
        assert!(text.contains("1 skipped:\n\n* all rows of Gloo: no torch"), "{text}");
    }

    #[test]
    fn an_older_figure_is_a_note_without_an_older_binary() {
        let mut measured = measured();
        measured.cells[0].row = Row::plain(GIGABIT);
        assert!(!markdown(&measured).contains("Recorded before"));
        measured.cells.remove(1);
        assert!(markdown(&measured).contains("now 11.75, 1.10 times as much"));
    }

    #[test]
    fn json_has_the_figures_of_every_row() {
        let json: Value = serde_json::from_str(&json(&measured())).expect("JSON");
        let first = &json["cells"][0];
        assert_eq!(first["cpu_seconds_per_gb"]["median"], 11.75);
        assert_eq!(first["rate_bits_per_second"], 2_500_000_000u64);
        assert_eq!(first["cpu_seconds_per_sent_gb"]["median"], 5.875);
        assert_eq!(json["cells"][2]["rate_bits_per_second"], Value::Null);
        assert_eq!(json["idle"]["core_percent"]["median"], 0.25);
    }
}
