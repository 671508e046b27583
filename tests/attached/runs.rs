//! The transfers of one process, and their times.

use clap::ValueEnum;
use scenarios::testbed::counters;
use units::ByteCount;

/// The transfers of one process.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Runs {
    /// The way of the bytes: to the gateway, or from it
    #[arg(long)]
    pub way: Way,
    /// Bytes of each run
    #[arg(long)]
    pub size: ByteCount,
    /// Number of runs
    #[arg(long, default_value_t = 4)]
    pub iterations: u32,
}

/// The way of the bytes, as the trainer sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// To the gateway.
    Up,
    /// From the gateway.
    Down,
}

/// When the runs began and ended, as far as this process knows: 0 where the other one does.
#[derive(Debug, Default)]
pub struct Instants {
    pub posted_ns: Vec<u64>,
    pub ready_ns: Vec<u64>,
    /// Processor time of this process before the runs, in seconds.
    pub cpu_before: f64,
}

impl Instants {
    /// Notes that the runs begin.
    pub fn of_beginning_runs() -> Self {
        Self { cpu_before: cpu_seconds(), ..Self::default() }
    }
}

/// Returns the processor time of this process so far, in seconds.
pub fn cpu_seconds() -> f64 {
    counters::cpu_seconds(std::process::id())
}

impl Runs {
    /// Returns memory of the length of a run, each page of it present, with bytes that differ.
    pub fn touched_memory(&self) -> Vec<u8> {
        (0..self.size.get()).map(|at| (at % 251) as u8).collect()
    }
}
