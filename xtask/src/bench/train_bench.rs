//! The cost for trainers: `python/benches/train.py` in the environment of the newest PyTorch.

use super::bench_page::BenchPage;
use crate::child_command::CommandFailure;
use crate::python;
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

/// Runs `cargo xtask bench train`; the JSON goes to `docs/results/train.json`.
pub fn measure_train_bench(root: &Path) -> Result<BenchPage, CommandFailure> {
    run_train_bench(root, &[])
}

/// Runs a short version of the bench, to see that it works.
pub fn measure_train_bench_quick(root: &Path) -> Result<BenchPage, CommandFailure> {
    run_train_bench(root, &["--quick"])
}

/// Runs `python/benches/train.py` with `options` and compares its figures with the targets.
fn run_train_bench(root: &Path, options: &[&str]) -> Result<BenchPage, CommandFailure> {
    let line = python::python_torch_command(
        root,
        "release",
        &[&["python/benches/train.py"], options].concat(),
    )?;
    let (status, stdout) = line.capture(root)?;
    if !status.success() {
        return Err(line.failure(&status));
    }
    let report: Value = serde_json::from_str(&stdout).map_err(|error| line.failure(&error))?;
    let text = train_bench_text(&report);
    let mut missed: Vec<_> =
        TRAIN_TARGETS.iter().filter_map(|target| target.missed_text(&report)).collect();
    missed.extend(report["gloo"]["skipped"].as_str().map(|why| format!("Gloo DDP: {why}")));
    Ok(BenchPage { json: Some(report), missed, ..BenchPage::new("Trainers", text) })
}

/// Target of a figure of the bench `train`.
struct TrainBenchTarget {
    /// Text that names the figure.
    what: &'static str,
    /// JSON pointer to the figure in the report.
    figure: &'static str,
    /// Least value that meets the target.
    least: f64,
    /// Largest value that meets the target.
    most: f64,
}

impl TrainBenchTarget {
    /// Returns a target with an upper limit.
    const fn at_most(what: &'static str, figure: &'static str, most: f64) -> Self {
        Self { what, figure, least: f64::NEG_INFINITY, most }
    }

    /// Returns a target with a lower limit.
    const fn at_least(what: &'static str, figure: &'static str, least: f64) -> Self {
        Self { what, figure, least, most: f64::INFINITY }
    }

    /// Returns a text if the report misses the target, else `None`; a missing figure misses its
    /// target.
    fn missed_text(&self, report: &Value) -> Option<String> {
        let figure = report.pointer(self.figure).and_then(Value::as_f64).unwrap_or(f64::NAN);
        let met = (self.least..=self.most).contains(&figure);
        (!met).then(|| format!("{}: {figure:.2}", self.what))
    }
}

/// The targets of `cargo xtask bench train`: ratios with their limits, each with the JSON pointer
/// of its figure in the report.
const TRAIN_TARGETS: [TrainBenchTarget; 4] = [
    TrainBenchTarget::at_most(
        "4 KiB through the gateway, over a bare ping-pong",
        "/round_trip/ratio",
        2.5,
    ),
    TrainBenchTarget::at_least("copy into the arena or out of it, over memcpy", "/copy/ratio", 0.7),
    TrainBenchTarget::at_most(
        "longest median step of first use, over later steps",
        "/first_use/ratio",
        2.0,
    ),
    TrainBenchTarget::at_least("part of the exchange that is hidden", "/overlap/hidden", 0.8),
];

/// Returns the page: conditions, and the table of figures with their targets.
fn train_bench_text(report: &Value) -> String {
    let number = |path: &str| report.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let mut text = format!(
        "The machine is shared, and busy with other work where the figures say so: see the bare \
         ping-pong and memcpy beside them. PyTorch {}, the wheel in the release profile; the \
         link is emulated ({}, {}, {} loss). Computing is a sleep, as on an accelerator. \
         The ping-pong is of two processes that the kernel places as it likes: on one core it took \
         {:.0} us at the least, and on two they wake each other, as trainer and gateway do; both \
         take turns, and medians are of all turns. A connection's first collective takes some ms \
         longer, whatever its size, and is none of the steps of first use. Those are judged by \
         medians over arenas, for a moment in which the machine did something else comes in one of \
         them: the longest single step took {:.1} ms. `train.json` has all of them, and the \
         figures unrounded.\n\n\
         | what | measured | beside it | ratio | wanted |\n|---|---|---|---|---|\n",
        report["torch"].as_str().unwrap_or("?"),
        report["overlap"]["link"]["rate"].as_str().unwrap_or("?"),
        report["overlap"]["link"]["rtt"].as_str().unwrap_or("?"),
        report["overlap"]["link"]["loss"].as_str().unwrap_or("?"),
        number("/round_trip/least_bare_seconds") * 1e6,
        number("/first_use/longest_single_seconds") * 1e3,
    );
    let _ = writeln!(
        text,
        "| 4 KiB through the gateway, median | {:.0} us | bare ping-pong {:.0} us | {:.1} | at most \
         2.5 |",
        number("/round_trip/seconds") * 1e6,
        number("/round_trip/bare_seconds") * 1e6,
        number("/round_trip/ratio"),
    );
    let _ = writeln!(
        text,
        "| copy into the arena, and out of it | {:.1} GB/s, {:.1} GB/s | memcpy {:.1} GB/s | the \
         lower {:.2} | at least 0.7 |",
        number("/copy/in_bytes_per_second") / 1e9,
        number("/copy/out_bytes_per_second") / 1e9,
        number("/copy/memcpy_bytes_per_second") / 1e9,
        number("/copy/ratio"),
    );
    let _ = writeln!(
        text,
        "| longest step while 256 MiB are first used, of medians over {} arenas | {:.1} ms | \
         median step in them later {:.1} ms | {:.2} | at most 2 |",
        number("/first_use/arenas"),
        number("/first_use/longest_median_seconds") * 1e3,
        number("/first_use/median_seconds") * 1e3,
        number("/first_use/ratio"),
    );
    let _ = writeln!(
        text,
        "| step with DDP's exchange of {:.0} MiB | {:.2} s | without {:.2} s, exchange alone {:.2} \
         s | hidden {:.2} | at least 0.8 |",
        number("/overlap/gradient_bytes") / f64::from(1 << 20),
        number("/overlap/step_with_seconds"),
        number("/overlap/step_without_seconds"),
        number("/overlap/exchange_alone_seconds"),
        number("/overlap/hidden"),
    );
    let gloo = match report["gloo"]["skipped"].as_str() {
        Some(why) => format!("not measured: {why} | | |"),
        None => format!(
            "{:.2} s | ours {:.2} s | {:.2} times ours |",
            number("/gloo/step_seconds"),
            number("/overlap/step_with_seconds"),
            number("/gloo/step_seconds") / number("/overlap/step_with_seconds"),
        ),
    };
    let control = report["gloo"]["congestion_control"].as_str().unwrap_or("?");
    let _ = writeln!(text, "| the same step with Gloo DDP, TCP with {control} | {gloo} |");
    text
}

/// Runs a short version of the bench `train` and prints the figures; no page is written.
pub fn show_train_bench_quick() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder");
    match measure_train_bench_quick(root) {
        Ok(page) => {
            println!("{}", page.text);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{}\nRepeat with:\n  {}", failure.why, failure.repeat);
            ExitCode::FAILURE
        }
    }
}
