//! The results of one contender with one size over one link.

use hier_collectives::plan::Operation;
use serde::Serialize;
use std::time::Duration;
use units::Fraction;

/// The results of one contender with one size over one link.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    pub who: String,
    /// Name of the collective.
    pub operation: &'static str,
    /// `virtual`, `lab` or `netem`.
    pub arm: &'static str,
    pub bytes: u64,
    /// The median, in which one that was cut after [`CUT_AFTER_S`] is the slowest; `None` where it
    /// is of such a one.
    pub seconds: Option<f64>,
    /// How many were done in time.
    pub runs: usize,
    pub eta: Option<f64>,
    /// Payload one way, in Mbit/s; where `seconds` is missing, it is less than this.
    pub goodput_mbit: f64,
    /// Processor seconds for each gigabyte, of the processes that move the bytes on both sides.
    pub cpu_seconds_per_gb: Option<f64>,
    /// Processor time of the emulator over that of all cores while the cell was measured, 0 to 1.
    pub emulator_share: Option<f64>,
    pub retransmitted_bytes: Option<u64>,
    /// At the bottleneck, either way.
    pub queue_bytes_peak: Option<u64>,
    /// Why the emulator calls it void.
    pub void: Option<String>,
    /// Those before it were void.
    pub attempt: u32,
    /// Not run: not one of its runs was done in time with this loss already.
    pub cut_from: Option<String>,
}

/// 20 s, after which the runs of a cell are cut.
pub const CUT_AFTER_S: u64 = 20;

/// [`CUT_AFTER_S`] as a duration.
pub const CUT_AFTER: Duration = Duration::from_secs(CUT_AFTER_S);

impl Cell {
    /// Of an all-reduce, from the seconds that each run took, `INFINITY` where it was cut.
    pub fn new(
        who: &str,
        arm: &'static str,
        bytes: u64,
        mut seconds: Vec<f64>,
        bound: f64,
    ) -> Self {
        let in_time = |seconds: &f64| *seconds <= CUT_AFTER_S as f64;
        seconds.sort_by(f64::total_cmp);
        let median = seconds.get(seconds.len() / 2).copied().filter(in_time);
        let goodput = bytes as f64 * 8.0 / 1e6 / median.unwrap_or(CUT_AFTER_S as f64);
        Self {
            who: who.to_owned(),
            operation: Operation::AllReduce.name(),
            arm,
            bytes,
            seconds: median,
            runs: seconds.iter().filter(|seconds| in_time(seconds)).count(),
            eta: median.map(|seconds| bound / seconds),
            goodput_mbit: goodput,
            cpu_seconds_per_gb: None,
            emulator_share: None,
            retransmitted_bytes: None,
            queue_bytes_peak: None,
            void: None,
            attempt: 1,
            cut_from: None,
        }
    }

    /// The cell for a row with more loss, where no run finished in time.
    pub fn with_more_loss(&self, less: Fraction) -> Option<Self> {
        let from = self.cut_from.clone().unwrap_or_else(|| less.to_string());
        let (cpu_seconds_per_gb, emulator_share) = (None, None);
        let (retransmitted_bytes, queue_bytes_peak) = (None, None);
        let cut_from = Some(from);
        (self.runs == 0 && self.void.is_none()).then(|| Self {
            cpu_seconds_per_gb,
            emulator_share,
            retransmitted_bytes,
            queue_bytes_peak,
            cut_from,
            ..self.clone()
        })
    }
}
