//! `cargo xtask bench NAME`: figures for the documents, with where they come from.

mod bench_page;
mod congestion;
mod core;
mod efficiency_bench;
mod faults_bench;
mod fuzz;
mod hostile_bench;
mod network;
mod quickstart_bench;
mod simulate_bench;
mod train_bench;

use crate::command_line::CommandFailure;
use bench_page::{BenchPage, bench_page_git_commit, bench_page_machine};
use network::{cost, wan, wan_sim_bench};
use std::path::Path;
use std::process::ExitCode;

/// One bench, which fills one page with figures.
struct Bench {
    /// Words after `cargo xtask bench` that run this bench.
    name: &'static str,
    /// Path of its page below `docs/results`, without the extension.
    page: &'static str,
    /// Function that measures, given the root of the workspace.
    measure: fn(&Path) -> Result<BenchPage, CommandFailure>,
}

/// All benches of `cargo xtask bench`, each with its result page and the function that measures.
const BENCHES: [Bench; 15] = [
    Bench { name: "congestion", page: "congestion/whole", measure: congestion::measure_congestion },
    Bench {
        name: "congestion --quick",
        page: "congestion/quick",
        measure: congestion::measure_congestion_quick,
    },
    Bench {
        name: "efficiency",
        page: "efficiency",
        measure: efficiency_bench::measure_efficiency_bench,
    },
    Bench { name: "faults", page: "faults", measure: faults_bench::measure_faults_bench },
    Bench { name: "fuzz", page: "fuzz", measure: fuzz::measure_fuzz },
    Bench { name: "hostile", page: "hostile", measure: hostile_bench::measure_hostile_bench },
    Bench { name: "plan", page: "plan", measure: core::measure_core_plan },
    Bench {
        name: "quickstart",
        page: "quickstart",
        measure: quickstart_bench::measure_quickstart_bench,
    },
    Bench { name: "reduce", page: "reduce", measure: core::measure_core_reduce },
    Bench { name: "shape", page: "shape", measure: core::measure_core_shape },
    Bench { name: "simulate", page: "simulate", measure: simulate_bench::measure_simulate_bench },
    Bench { name: "train", page: "train", measure: train_bench::measure_train_bench },
    Bench { name: "wan", page: "wan/whole", measure: wan::measure_wan },
    Bench { name: "wan --quick", page: "wan/quick", measure: wan::measure_wan_quick },
    Bench { name: "wan-sim", page: "wan-sim", measure: wan_sim_bench::measure_wan_sim_bench },
];

/// Runs a bench and writes its page; `None` if no bench has that name.
pub fn run_bench(name: &str) -> Option<ExitCode> {
    let bench = BENCHES.iter().find(|bench| bench.name == name)?;
    Some(run_bench_and_write_page(bench.page, name, bench.measure))
}

/// Runs some fuzz targets and replaces their rows of the page on fuzzing.
pub fn bench_fuzz_targets(targets: &[&str]) -> ExitCode {
    run_bench_and_write_page("fuzz", "fuzz", |root| fuzz::measure_fuzz_targets(root, targets))
}

/// Measures, and writes the page with command, commit and machine below its heading. A target that
/// is not met makes the exit code 1, but the page is written.
fn run_bench_and_write_page(
    page_name: &str,
    name: &str,
    measure: impl Fn(&Path) -> Result<BenchPage, CommandFailure>,
) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder");
    // Read before the measurement, since files may change meanwhile.
    let (command, commit) = (format!("cargo xtask bench {name}"), bench_page_git_commit());
    let page = match measure(root) {
        Ok(page) => page,
        Err(failure) => {
            eprintln!("{}\nRepeat with:\n  {}", failure.why, failure.repeat);
            return ExitCode::FAILURE;
        }
    };
    let machine = bench_page_machine();
    let text = format!(
        "# {}\n\nWritten by `{command}` at commit {commit}, on {machine}.\n\n{}",
        page.title, page.text,
    );
    let mut files = vec![(format!("{page_name}.md"), text.clone())];
    if let Some(mut json) = page.json {
        for (key, value) in [("command", command), ("commit", commit), ("machine", machine)] {
            json[key] = value.into();
        }
        files.push((format!("{page_name}.json"), format!("{json}\n")));
    }
    let folder = root.join("docs/results");
    for (file, text) in files {
        let file = folder.join(file);
        let parent = file.parent().expect("a file's folder");
        let written = std::fs::create_dir_all(parent).and_then(|()| std::fs::write(&file, &text));
        if let Err(error) = written {
            eprintln!("{}: {error}", file.display());
            return ExitCode::FAILURE;
        }
    }
    println!("{text}");
    page.missed.iter().for_each(|missed| eprintln!("NOT MET: {missed}"));
    if page.missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a short version of the bench `train` and prints the figures; no page is written.
pub fn show_train_bench_quick() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder");
    match train_bench::measure_train_bench_quick(root) {
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

/// Runs the bench `cost`. With no flags but `--quick` and `--before BINARY` it writes its page;
/// with others it prints the figures.
pub fn bench_cost(flags: &[&str]) -> ExitCode {
    let (quick, before) = match flags {
        [] => (false, None),
        ["--quick"] => (true, None),
        ["--before", binary] => (false, Some(*binary)),
        ["--quick", "--before", binary] | ["--before", binary, "--quick"] => (true, Some(*binary)),
        _ => return show_bench(|root| cost::show_cost(root, flags)),
    };
    let page = if quick { "cost/quick" } else { "cost/whole" };
    let mut name = String::from(if quick { "cost --quick" } else { "cost" });
    if before.is_some() {
        name += " --before BINARY";
    }
    run_bench_and_write_page(page, &name, |root| cost::measure_cost(root, quick, before))
}

/// Runs a part of a bench that writes no page.
fn show_bench(run: impl Fn(&Path) -> Result<ExitCode, CommandFailure>) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder");
    run(root).unwrap_or_else(|failure| {
        eprintln!("{}\nRepeat with:\n  {}", failure.why, failure.repeat);
        ExitCode::FAILURE
    })
}

/// Runs parts of the bench `wan`, as `flags` say, and prints the figures; no page is written.
pub fn show_wan_bench_parts(flags: &[&str]) -> ExitCode {
    show_bench(|root| wan::show_wan_bench(root, flags))
}
