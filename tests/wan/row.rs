//! The links that are measured, and how much is sent over each.

use hier_collectives::bound;
use hier_collectives::topology::Fabric;
use scenarios::Shape;
use serde::Serialize;
use units::{BitRate, ByteCount, Fraction, Span};

/// One link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub rate: BitRate,
    pub rtt: Span,
    pub loss: Fraction,
    /// Sizes of all-reduces of ours, smallest first.
    pub sizes: &'static [u64],
}

/// The size that everybody is measured with.
pub const COMMON: u64 = 64 << 20;

const SIZES: &[u64] = &[4096, 1_000_000, COMMON, 256 << 20];
const SIZES_FAR: &[u64] = &[4096, 1_000_000, COMMON, 256 << 20, 1 << 30];
const SIZES_QUICK: &[u64] = &[4096, COMMON];

impl Row {
    /// All rows, or a few.
    pub fn matrix(quick: bool) -> Vec<Self> {
        if quick {
            // The short one is not clean: only the whole is held to peers there, whose runs are
            // void more often than six minutes have room for.
            return [(2, 100), (20, 0), (80, 1000)]
                .map(|(rtt, ppm)| Self::new(1000, rtt, ppm, SIZES_QUICK))
                .to_vec();
        }
        let mut rows = Vec::new();
        for rtt in [2, 20, 80, 200] {
            let sizes = if rtt == 200 { SIZES_FAR } else { SIZES };
            rows.extend([0, 100, 1000, 10_000].map(|ppm| Self::new(1000, rtt, ppm, sizes)));
        }
        rows.extend([0, 100].map(|ppm| Self::new(2000, 20, ppm, SIZES)));
        rows
    }

    fn new(mbit: u64, rtt_ms: u64, loss_ppm: u32, sizes: &'static [u64]) -> Self {
        Self {
            rate: BitRate::from_bits_per_second(mbit * 1_000_000),
            rtt: Span::from_ms(rtt_ms),
            loss: scenarios::ppm(loss_ppm),
            sizes,
        }
    }

    /// What gateways without a link between them are told: faster than they are.
    pub fn loopback() -> Self {
        Self {
            rate: BitRate::from_bits_per_second(10_000_000_000),
            rtt: Span::from_ms(1),
            loss: scenarios::ppm(0),
            sizes: &[],
        }
    }

    /// Two regions of one rank each with this link between them.
    pub fn shape(&self) -> Shape {
        Shape { rate: self.rate, rtt: self.rtt, loss: self.loss, ..Shape::new(1, 1) }
    }

    /// What the link holds twenty times, in whole elements.
    pub fn twenty_bdp(&self) -> u64 {
        let bytes = 20.0 * self.rate.bytes_per_second() * self.rtt.as_secs_f64();
        (bytes / 4.0).ceil() as u64 * 4
    }

    /// Whether it is so long that eta in virtual time is held to a bound.
    pub fn is_long(&self) -> bool {
        self.rtt >= Span::from_ms(10)
    }

    /// T* of an all-reduce, in seconds.
    pub fn bound(&self, fabric: &Fabric, bytes: u64) -> f64 {
        bound::all_reduce(fabric, ByteCount::new(bytes)).as_secs_f64()
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}, {}", self.rate, self.rtt, self.loss)
    }
}

/// What one contender did with one size over one link.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    pub who: String,
    /// `virtual`, `lab` or `netem`.
    pub arm: &'static str,
    pub bytes: u64,
    /// The median, in which one that was cut after [`CUT_AFTER_S`] is the slowest; `None` where it is
    /// of such a one.
    pub seconds: Option<f64>,
    /// How many were done in time.
    pub runs: usize,
    pub eta: Option<f64>,
    /// Payload one way, in Mbit/s; where `seconds` is missing, it is less than this.
    pub goodput_mbit: f64,
    /// Of the processes that move the bytes, both sides.
    pub cpu_seconds_per_gb: Option<f64>,
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

/// A cell takes no longer than this.
pub const CUT_AFTER_S: u64 = 20;

impl Cell {
    /// From the seconds that each run took, `INFINITY` where it was cut.
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
            arm,
            bytes,
            seconds: median,
            runs: seconds.iter().filter(|seconds| in_time(seconds)).count(),
            eta: median.map(|seconds| bound / seconds),
            goodput_mbit: goodput,
            cpu_seconds_per_gb: None,
            retransmitted_bytes: None,
            queue_bytes_peak: None,
            void: None,
            attempt: 1,
            cut_from: None,
        }
    }

    /// The same with more loss, where nothing of it was done in time.
    pub fn with_more_loss(&self, less: Fraction) -> Option<Self> {
        let from = self.cut_from.clone().unwrap_or_else(|| less.to_string());
        let (cpu_seconds_per_gb, retransmitted_bytes, queue_bytes_peak) = (None, None, None);
        let cut_from = Some(from);
        (self.runs == 0 && self.void.is_none()).then(|| Self {
            cpu_seconds_per_gb,
            retransmitted_bytes,
            queue_bytes_peak,
            cut_from,
            ..self.clone()
        })
    }
}
