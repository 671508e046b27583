//! Everything that was asked for and measured: the input of all reports.

use crate::arms::{attach, cpu, long};
use crate::cell::Cell;
use crate::row::Row;
use std::time::Duration;

/// The arm: the environment of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Arm {
    /// Simulated links in virtual time.
    Virtual,
    /// Namespaces with TUN devices between them: needs root.
    Lab,
    /// Namespaces with devices between them that the kernel's netem shapes, by the commands of
    /// `wan-sim tc`: needs root and netem, and is left out unless asked for.
    Netem,
    /// All-gathers and all-to-alls in the lab: needs root.
    Operations,
    /// Trainers that attach over TCP, beside TCP alone: over loopback, and in the lab as root.
    Attach,
    /// Loopback, for processor time.
    Cpu,
}

/// The requested measurements.
#[derive(Debug, Default)]
pub struct Asked {
    /// The links.
    pub rows: Vec<Row>,
    /// The arms.
    pub arms: Vec<Arm>,
    /// True if series of many all-reduces over one link are requested.
    pub long: bool,
}

/// All cells, and what could not be measured.
#[derive(Debug, Default)]
pub struct Measured {
    /// The requested measurements.
    pub asked: Asked,
    /// Cells, each with its link, in the order of measuring.
    pub cells: Vec<(Row, Cell)>,
    /// Figures of many all-reduces over one link.
    pub long: Vec<long::Long>,
    /// Costs in processor time.
    pub costs: Vec<cpu::Cost>,
    /// Rates of trainers that attach over TCP.
    pub attached: Vec<attach::Attached>,
    /// Measurements that were skipped, each with its reason.
    pub skipped: Vec<String>,
    /// The versions of the peers.
    pub versions: Vec<String>,
    /// The duration of the bench, where all arms were requested.
    pub took: Option<Took>,
}

/// Duration of the bench, and its limit.
#[derive(Debug, Clone, Copy)]
pub struct Took {
    /// From start to end.
    pub whole: Duration,
    /// For the rows that were wanted.
    pub at_most: Duration,
}

impl Measured {
    /// Records a measurement that was skipped, with the reason.
    pub fn skip(&mut self, what: String) {
        eprintln!("SKIPPED: {what}");
        self.skipped.push(what);
    }
}
