//! Long-haul links between regions.

use crate::ids::RegionId;
use units::{BitRate, ByteCount, Fraction, Span};

/// 500,000,000 parts per billion (50 %): a fabric with a link of this loss or more is refused. The
/// limit is chosen; a greater loss is taken for a mistake.
pub(super) const LOSS_BOUND_PPB: u32 = 500_000_000;

/// 60 s: a fabric with a link of a longer round-trip time is refused, a chosen limit. Paths over
/// satellites have less than 1 s; more than 60 s is most likely a wrong unit.
pub(super) const RTT_MAX: Span = Span::from_secs(60);

/// The long-haul path between two regions.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// The region whose name comes first.
    pub a: RegionId,
    /// The other region.
    pub b: RegionId,
    /// Capacity of each direction, in IP bytes.
    pub rate: BitRate,
    /// Round-trip time without queueing.
    pub rtt: Span,
    /// Expected random loss.
    pub loss: Fraction,
}

impl Link {
    /// Returns the bandwidth-delay product (BDP) of the link: its rate times its RTT, in bytes.
    pub fn bdp(&self) -> ByteCount {
        let bits =
            u128::from(self.rate.bits_per_second()) * u128::from(self.rtt.ns()) / 1_000_000_000;
        ByteCount::new(u64::try_from(bits / 8).unwrap_or(u64::MAX))
    }

    /// Returns the region at the other end of a link from `one`; `None` if that is at neither end.
    pub fn other_end(&self, one: RegionId) -> Option<RegionId> {
        if self.a == one {
            return Some(self.b);
        }
        (self.b == one).then_some(self.a)
    }
}
