//! Everything that was measured: the input of all reports.

use crate::figure::Figure;
use crate::row::{Contender, Row};
use std::collections::BTreeMap;
use std::time::Duration;

/// One run of a row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// Gigabytes (1e9 bytes) of the trainers' buffer.
    pub gigabytes: f64,
    /// Gbit/s of the buffer: the median of the run.
    pub gbit: f64,
    /// Processor seconds of all processes that move the bytes.
    pub cpu_seconds: f64,
    /// Voluntary context switches of the same; `None` where they are not known.
    pub wakeups: Option<f64>,
    /// Packets that one send call hands over; `None` where they are not known.
    pub packets_per_call: Option<f64>,
    /// Processor seconds by the names of threads; empty where they are not known.
    pub cpu_by_thread: BTreeMap<String, f64>,
}

/// All runs of a row.
#[derive(Debug, Clone)]
pub struct Cell {
    /// The row.
    pub row: Row,
    /// Its runs, in order.
    pub samples: Vec<Sample>,
    /// System calls for each gigabyte of the buffer, of a run of their own.
    pub calls_per_gb: Option<f64>,
}

/// The cost of gateways that do nothing: a figure of each.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Idle {
    /// Percent of one core.
    pub core_percent: Vec<f64>,
    /// Wake-ups in a second.
    pub wakeups_per_second: Vec<f64>,
}

/// Duration of the bench, and its limit.
#[derive(Debug, Clone, Copy)]
pub struct Took {
    /// From start to end.
    pub whole: Duration,
    /// The limit.
    pub at_most: Duration,
}

/// All cells, and whatever could not be measured.
#[derive(Debug, Default)]
pub struct Measured {
    /// The requested rows, each with its runs.
    pub cells: Vec<Cell>,
    /// Gateways that do nothing; `None` where they could not be measured.
    pub idle: Option<Idle>,
    /// Measurements that were skipped, each with its reason.
    pub skipped: Vec<String>,
    /// Versions of programs, and how system calls are counted.
    pub notes: Vec<String>,
    /// File names of flame graphs, each with its title.
    pub flames: Vec<(String, String)>,
    /// The duration of the bench.
    pub took: Option<Took>,
}

impl Sample {
    /// Returns the processor time for each gigabyte of the buffer, in seconds.
    pub fn cpu_per_gb(&self) -> f64 {
        self.cpu_seconds / self.gigabytes
    }

    /// Returns the wake-ups for each gigabyte of the buffer.
    pub fn wakeups_per_gb(&self) -> Option<f64> {
        self.wakeups.map(|wakeups| wakeups / self.gigabytes)
    }

    /// Returns the processor time of threads with this name for each gigabyte, in seconds.
    pub fn thread_cpu_per_gb(&self, name: &str) -> Option<f64> {
        self.cpu_by_thread.get(name).map(|seconds| seconds / self.gigabytes)
    }
}

impl Cell {
    /// Returns a row without runs.
    pub fn new(row: Row) -> Self {
        Self { row, samples: Vec::new(), calls_per_gb: None }
    }

    /// Returns the median of a figure over all runs that have it.
    pub fn figure(&self, of: impl Fn(&Sample) -> Option<f64>) -> Option<Figure> {
        Figure::of(self.samples.iter().filter_map(of))
    }

    /// Returns the processor time for each gigabyte.
    pub fn cpu_per_gb(&self) -> Option<Figure> {
        self.figure(|sample| Some(sample.cpu_per_gb()))
    }
}

impl Measured {
    /// Returns the cell of a row, if the row was asked for.
    pub fn cell(&self, row: &Row) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.row.is_same(row))
    }

    /// Records as skipped the packets of each call, where no gateway counts them.
    pub fn skip_missing_counters(&mut self) {
        let ours = self.cells.iter().filter(|cell| cell.row.who == Contender::Landbridge);
        let samples: Vec<&Sample> = ours.flat_map(|cell| &cell.samples).collect();
        if !samples.is_empty() && samples.iter().all(|sample| sample.packets_per_call.is_none()) {
            self.skip("packets per call: the gateways do not count their send calls".to_owned());
        }
    }

    /// Records a measurement that was skipped, with the reason.
    pub fn skip(&mut self, what: String) {
        eprintln!("SKIPPED: {what}");
        self.skipped.push(what);
    }
}
