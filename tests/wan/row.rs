//! The links that are measured, and the sizes that are sent over each.

use hier_collectives::bound;
use hier_collectives::plan::Operation;
use hier_collectives::topology::Fabric;
use scenarios::Shape;
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

/// 64 MiB: the size that all contenders are measured with.
pub const COMMON: u64 = 64 << 20;

/// The sizes of most rows, in bytes.
const SIZES: &[u64] = &[4096, 1_000_000, COMMON, 256 << 20];

/// The sizes of rows at 200 ms, in bytes.
const SIZES_FAR: &[u64] = &[4096, 1_000_000, COMMON, 256 << 20, 1 << 30];

/// The sizes of `--quick`, in bytes.
const SIZES_QUICK: &[u64] = &[4096, COMMON];

/// 2, 20 and 80 ms: the round trips at which operations other than all-reduce are compared.
const OPERATION_RTTS_MS: [u64; 3] = [2, 20, 80];

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

    /// The link that gateways on loopback are configured with: faster than they are.
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

    /// 20 bandwidth-delay products in bytes, rounded up to whole elements.
    pub fn twenty_bdp(&self) -> u64 {
        let bytes = 20.0 * self.rate.bytes_per_second() * self.rtt.as_secs_f64();
        (bytes / 4.0).ceil() as u64 * 4
    }

    /// Whether it is so long that eta in virtual time is held to a bound.
    pub fn is_long(&self) -> bool {
        self.rtt >= Span::from_ms(10)
    }

    /// Returns the links over which operations other than all-reduce are measured.
    pub fn of_operations() -> Vec<Self> {
        OPERATION_RTTS_MS.map(|rtt| Self::new(1000, rtt, 0, SIZES)).to_vec()
    }

    /// Returns whether operations other than all-reduce are measured over this link.
    pub fn has_operations(&self) -> bool {
        let is_it = |row: &Self| (row.rate, row.rtt, row.loss) == (self.rate, self.rtt, self.loss);
        Self::of_operations().iter().any(is_it)
    }

    /// T* of an operation, in seconds.
    pub fn bound(&self, operation: Operation, fabric: &Fabric, bytes: u64) -> f64 {
        bound::operation_lower_bound(fabric, operation, ByteCount::new(bytes)).as_secs_f64()
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}, {}", self.rate, self.rtt, self.loss)
    }
}
