//! `cargo xtask bench congestion`: links of unknown rate in virtual time, as a page. With `--traces` the
//! lanes of each link are traced, so that one sees where time is lost.

mod cell;
mod report;

use cell::{Cell, CellOutcome};
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rates in Mbit/s with RTTs in milliseconds of the quick matrix: those whose transfers are small.
const QUICK_PATHS: [(u64, u64); 8] =
    [(50, 2), (50, 80), (200, 20), (200, 200), (1000, 2), (1000, 20), (1000, 80), (10_000, 2)];
/// The paths that the whole matrix has in addition.
const LONG_PATHS: [(u64, u64); 4] = [(50, 20), (1000, 200), (10_000, 20), (10_000, 80)];
/// Losses in parts per million, up to the 1 % of the promise.
const LOSSES: [u32; 2] = [0, 10_000];
/// Queues in thousandths of a BDP.
const QUEUES: [u32; 3] = [250, 1000, 4000];

/// All-reduces over links whose rate the gateways do not know, in virtual time.
#[derive(Debug, Parser)]
struct Arguments {
    /// Only paths whose transfers are small
    #[arg(long)]
    quick: bool,
    /// One cell: Mbit/s, RTT in ms, loss in parts per million, queue in thousandths of a BDP
    #[arg(long, num_args = 4, value_names = ["MBIT", "MS", "PPM", "QUEUE"])]
    cell: Option<Vec<u64>>,
    /// Seed of the randomness of links
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Folder for the trace of each cell, for `landbridge trace`
    #[arg(long, value_name = "FOLDER")]
    traces: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let cells = cells(&arguments);
    let outcomes = measure_all(&cells);
    if let Some(folder) = &arguments.traces
        && let Err(error) = report::write_traces(folder, &outcomes)
    {
        eprintln!("{}: {error}", folder.display());
        return ExitCode::FAILURE;
    }
    if arguments.json {
        println!("{}", report::json(&outcomes));
    } else {
        println!("{}", report::markdown(&outcomes));
    }
    ExitCode::SUCCESS
}

fn cells(arguments: &Arguments) -> Vec<Cell> {
    let seed = arguments.seed;
    if let Some([rate_mbit, rtt_ms, loss, queue]) = arguments.cell.as_deref() {
        let (loss_ppm, queue_thousandths) = (*loss as u32, *queue as u32);
        let (rate_mbit, rtt_ms) = (*rate_mbit, *rtt_ms);
        return vec![Cell { rate_mbit, rtt_ms, loss_ppm, queue_thousandths, seed }];
    }
    let long = if arguments.quick { &[][..] } else { &LONG_PATHS[..] };
    let mut cells = Vec::new();
    for (rate_mbit, rtt_ms) in QUICK_PATHS.iter().chain(long).copied() {
        for loss_ppm in LOSSES {
            for queue_thousandths in QUEUES {
                cells.push(Cell { rate_mbit, rtt_ms, loss_ppm, queue_thousandths, seed });
            }
        }
    }
    cells
}

/// Measures all cells, as many at a time as there are cores.
fn measure_all(cells: &[Cell]) -> Vec<CellOutcome> {
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = cell.measure();
                    eprintln!("{}", report::line(&outcome));
                    outcomes.lock().expect("no panic").push(outcome);
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().expect("no panic");
    outcomes.sort_by_key(|outcome| cells.iter().position(|cell| *cell == outcome.cell));
    outcomes
}
