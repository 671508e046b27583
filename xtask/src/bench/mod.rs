//! `cargo xtask bench NAME`: figures for the documents, with where they come from.

mod bench_page;
mod congestion;
mod core;
mod efficiency_bench;
mod faults_bench;
mod fuzz;
mod hostile_bench;
mod network;
mod pytorch_bench;
mod quickstart_bench;
mod simulate_bench;
mod train_bench;

pub use fuzz::bench_fuzz_targets;
pub use network::cost::bench_cost;
pub use network::wan::show_wan_bench_parts;
pub use train_bench::show_train_bench_quick;

use crate::child_command::CommandFailure;
use bench_page::{BenchPage, measure_and_write_bench_page};
use network::{wan, wan_sim_bench};
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
const BENCHES: [Bench; 17] = [
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
    Bench { name: "pytorch", page: "pytorch/steps", measure: pytorch_bench::measure_pytorch_bench },
    Bench {
        name: "pytorch --quick",
        page: "pytorch/steps-quick",
        measure: pytorch_bench::measure_pytorch_bench_quick,
    },
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
    Some(measure_and_write_bench_page(bench.page, name, bench.measure))
}
