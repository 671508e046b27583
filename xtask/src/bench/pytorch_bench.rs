//! Training steps over two sites: `python/benches/pytorch.py` in the environment of the newest
//! PyTorch.

use super::bench_page::BenchPage;
use crate::child_command::CommandFailure;
use crate::python;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// Runs `cargo xtask bench pytorch`, to `steps.md` and `steps.json` in `docs/results/pytorch`.
pub(super) fn measure_pytorch_bench(root: &Path) -> Result<BenchPage, CommandFailure> {
    run_pytorch_bench(root, &[])
}

/// Runs `cargo xtask bench pytorch --quick`: less data and fewer steps, to `steps-quick.md` and
/// `steps-quick.json`.
pub(super) fn measure_pytorch_bench_quick(root: &Path) -> Result<BenchPage, CommandFailure> {
    run_pytorch_bench(root, &["--quick"])
}

/// Runs `python/benches/pytorch.py` with `options`. Returns its page.
fn run_pytorch_bench(root: &Path, options: &[&str]) -> Result<BenchPage, CommandFailure> {
    let words = [&["python/benches/pytorch.py"], options].concat();
    let line = python::python_torch_command(root, "release", &words)?;
    let (status, stdout) = line.capture(root)?;
    if !status.success() {
        return Err(line.failure(&status));
    }
    let report: Value = serde_json::from_str(&stdout).map_err(|error| line.failure(&error))?;
    Ok(pytorch_bench_page(report))
}

/// Returns the page of a report: conditions, the table of steps, and the targets that are missed.
fn pytorch_bench_page(mut report: Value) -> BenchPage {
    let rows: Vec<_> = PYTORCH_ROWS.iter().map(|row| row.compare(&report)).collect();
    let mut text = pytorch_bench_conditions(&report);
    text += "| link | model | ours | Gloo, CUBIC | Gloo, BBR | best of Gloo over ours | wanted | |\n\
             |---|---|---|---|---|---|---|---|\n";
    rows.iter().for_each(|row| text += &row.to_markdown());
    let missed = rows.iter().filter(|row| !row.is_met).map(PytorchComparison::name).collect();
    report["verdicts"] = rows.iter().map(PytorchComparison::to_json).collect();
    BenchPage {
        json: Some(report),
        missed,
        ..BenchPage::new("Training steps over two sites", text)
    }
}

/// Returns the text above the table.
fn pytorch_bench_conditions(report: &Value) -> String {
    let number = |name: &str| report[name].as_f64().unwrap_or(f64::NAN);
    format!(
        "Seconds of a step, of the slowest process: the median, and in brackets the least and the \
         most. Two sites of {} processes each are network namespaces of one machine, and between \
         them is an emulated link of {} each way. PyTorch {}. The model has {:.0} MiB of f32 \
         gradients in 16 layers; computing is a sleep of {} s in the backward pass, as on an \
         accelerator. DDP has buckets of its usual size. HSDP shards each layer in a site and \
         copies the shards to the other. In both, Gloo has one world of all processes, with TCP's \
         congestion control of the column and buffers that hold what the link has in flight. \
         Ours has Gloo among the processes of a site. Runs: {} of each kind and way, in turns and \
         in namespaces of their own. One that takes longer than {} s is cut, and is not repeated: \
         `>` stands before what its step had taken so far. Runs that the emulator calls void count \
         where there are no others, with `void` beside them.\n\n",
        report["site_ranks"],
        report["rate"].as_str().unwrap_or("?"),
        report["torch"].as_str().unwrap_or("?"),
        number("gradient_bytes") / f64::from(1 << 20),
        report["compute_seconds"],
        report["rounds"],
        report["cut_after_seconds"],
    )
}

/// One row of the table: a kind of model over a link, and how much longer Gloo takes.
struct PytorchRow {
    /// Round-trip time and loss of the link, as the report has them.
    link: (&'static str, &'static str),
    /// Kind of model, as the report has it.
    kind: &'static str,
    /// Least ratio of Gloo's better step to ours that meets the target.
    ratio_min: f64,
}

/// The rows of the table, with the targets of this project.
static PYTORCH_ROWS: [PytorchRow; 4] = [
    PytorchRow { link: ("2 ms", "0 %"), kind: "ddp", ratio_min: 1.0 },
    PytorchRow { link: ("2 ms", "0 %"), kind: "hsdp", ratio_min: 1.0 },
    PytorchRow { link: ("80 ms", "0.1 %"), kind: "ddp", ratio_min: 2.0 },
    PytorchRow { link: ("80 ms", "0.1 %"), kind: "hsdp", ratio_min: 2.0 },
];

/// The figures of a row.
struct PytorchComparison<'a> {
    row: &'a PytorchRow,
    /// Cell of the report for each way: ours, Gloo with CUBIC, Gloo with BBR.
    cells: [Value; 3],
    /// Gloo's better step over ours; `None` where a figure is missing.
    ratio: Option<f64>,
    /// Whether the ratio meets its target, and no figure is of a void run.
    is_met: bool,
}

impl PytorchRow {
    /// Finds the cells of this row in a report, and compares them.
    fn compare(&self, report: &Value) -> PytorchComparison<'_> {
        let cells = report["cells"].as_array().map(Vec::as_slice).unwrap_or_default();
        let cells = [("landbridge", Value::Null), ("gloo", json!("cubic")), ("gloo", json!("bbr"))]
            .map(|(backend, control)| {
                let is_it = |cell: &&Value| {
                    let place = (&cell["rtt"], &cell["loss"], &cell["kind"], &cell["backend"]);
                    let place = place
                        == (
                            &json!(self.link.0),
                            &json!(self.link.1),
                            &json!(self.kind),
                            &json!(backend),
                        );
                    place && cell["congestion_control"] == control
                };
                cells.iter().find(is_it).cloned().unwrap_or_default()
            });
        // Gloo has taken at least that long where it was cut.
        let taken = |cell: &Value| cell["seconds"].as_f64().or(cell["at_least_seconds"].as_f64());
        let [ours, cubic, bbr] = &cells;
        let ratio = match (ours["seconds"].as_f64(), taken(cubic), taken(bbr)) {
            (Some(ours), Some(cubic), Some(bbr)) => Some(cubic.min(bbr) / ours),
            _ => None,
        };
        let has_void = cells.iter().any(|cell| !cell["void"].is_null());
        let is_met = !has_void && ratio.is_some_and(|ratio| ratio >= self.ratio_min);
        PytorchComparison { row: self, cells, ratio, is_met }
    }
}

impl PytorchComparison<'_> {
    /// Returns the target and the figure, for people.
    fn name(&self) -> String {
        let PytorchRow { link: (rtt, loss), kind, ratio_min } = self.row;
        let ratio = self.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        format!("{kind} at {rtt}, {loss}: best of Gloo over ours, at least {ratio_min}: {ratio}")
    }

    /// Returns the line of the table.
    fn to_markdown(&self) -> String {
        let PytorchRow { link: (rtt, loss), kind, ratio_min } = self.row;
        let [ours, cubic, bbr] = self.cells.each_ref().map(pytorch_bench_cell_text);
        let is_bound = self.cells[1..].iter().all(|cell| cell["seconds"].is_null());
        let ratio = self.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        let ratio = if is_bound { format!("> {ratio}") } else { ratio };
        let verdict = if self.is_met { "met" } else { "**not met**" };
        let kind = kind.to_uppercase();
        let mut line = format!("| {rtt}, {loss} | {kind} | {ours} | {cubic} | {bbr} | ");
        let _ = writeln!(line, "{ratio} | at least {ratio_min} | {verdict} |");
        line
    }

    /// Returns the verdict for the report.
    fn to_json(&self) -> Value {
        json!({ "wanted": self.name(), "ratio": self.ratio, "met": self.is_met })
    }
}

/// Returns the text of a cell of the table.
fn pytorch_bench_cell_text(cell: &Value) -> String {
    let number = |name: &str| cell[name].as_f64();
    let mut text = match (number("seconds"), number("at_least_seconds")) {
        (Some(seconds), _) => {
            let [least, most] =
                ["least_seconds", "most_seconds"].map(|name| number(name).unwrap_or(f64::NAN));
            format!("{seconds:.2} ({least:.2} to {most:.2})")
        }
        (None, Some(at_least)) => format!("> {at_least:.0}"),
        (None, None) => "-".to_owned(),
    };
    if !cell["void"].is_null() {
        text += ", void";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cell of HSDP at 80 ms.
    fn cell(backend: &str, control: Option<&str>, seconds: Option<f64>) -> Value {
        json!({
            "rtt": "80 ms", "loss": "0.1 %", "kind": "hsdp", "backend": backend,
            "congestion_control": control, "seconds": seconds, "least_seconds": seconds,
            "most_seconds": seconds, "at_least_seconds": seconds.is_none().then_some(60.0),
            "void": null,
        })
    }

    /// The row of HSDP at 80 ms of a report with these cells.
    fn compared(cells: [Value; 3]) -> (Option<f64>, bool, String) {
        let report = json!({ "cells": cells });
        let row = PYTORCH_ROWS[3].compare(&report);
        (row.ratio, row.is_met, row.to_markdown())
    }

    fn cells(ours: f64, cubic: Option<f64>, bbr: Option<f64>) -> [Value; 3] {
        let [cubic, bbr] = [("cubic", cubic), ("bbr", bbr)]
            .map(|(control, seconds)| cell("gloo", Some(control), seconds));
        [cell("landbridge", None, Some(ours)), cubic, bbr]
    }

    #[test]
    fn ours_is_compared_with_the_better_gloo() {
        let (ratio, is_met, line) = compared(cells(2.0, None, Some(4.5)));
        assert_eq!((ratio, is_met), (Some(2.25), true));
        let figures = "| 2.00 (2.00 to 2.00) | > 60 | 4.50 (4.50 to 4.50) | 2.25 | at least 2 |";
        assert!(line.contains(figures), "{line}");
        assert!(!compared(cells(2.0, Some(3.9), Some(4.5))).1);
    }

    #[test]
    fn a_step_that_was_cut_has_a_bound() {
        let (ratio, is_met, line) = compared(cells(2.0, None, None));
        assert_eq!((ratio, is_met), (Some(30.0), true));
        assert!(line.contains("| > 30.00 |"), "{line}");
    }

    #[test]
    fn a_void_or_missing_figure_meets_no_target() {
        let mut void = cells(1.0, Some(9.0), Some(9.0));
        void[1]["void"] = json!("late");
        let (ratio, is_met, line) = compared(void);
        assert_eq!((ratio, is_met), (Some(9.0), false));
        assert!(line.contains("9.00 (9.00 to 9.00), void"), "{line}");
        let page = pytorch_bench_page(json!({ "cells": [] }));
        assert_eq!(page.missed.len(), PYTORCH_ROWS.len());
    }
}
