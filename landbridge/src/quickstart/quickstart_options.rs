//! Options of a quickstart.

use std::num::NonZeroU32;
use units::{BitRate, ByteCount, Fraction, Span};

/// The link, the ranks and the work of a quickstart.
///
/// By default the link is an ocean, 80 ms with 0.1 % loss, at a rate that two cores can carry.
#[derive(Debug, Clone)]
pub(crate) struct QuickstartOptions {
    /// Round-trip time between the regions.
    pub rtt: Span,
    /// Rate of the link, each way, in IP bytes.
    pub rate: BitRate,
    /// Random loss, each way.
    pub loss: Fraction,
    /// Number of ranks of east and of west.
    pub ranks: (u32, u32),
    /// Size of the buffer that is all-reduced.
    pub size: ByteCount,
    /// Number of training steps.
    pub steps: NonZeroU32,
    /// Number of all-reduces that are timed.
    pub iterations: NonZeroU32,
}
