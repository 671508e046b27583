//! Long-haul links between regions.

use super::region::RATE_MIN_BITS;
use crate::codec::{DecodeError, Reader, put_u32, put_u64};
use crate::ids::RegionId;
use units::{BitRate, ByteCount, Fraction, Span};

/// The loss of a link is below 50 %, in parts per billion.
pub(super) const LOSS_BELOW_PPB: u32 = 500_000_000;

/// 60 s, the longest round trip of a link.
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
    /// Bandwidth-delay product (BDP).
    pub fn bdp(&self) -> ByteCount {
        let bits =
            u128::from(self.rate.bits_per_second()) * u128::from(self.rtt.ns()) / 1_000_000_000;
        ByteCount::new(u64::try_from(bits / 8).unwrap_or(u64::MAX))
    }
}

/// Measured state of a link while it is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkState {
    /// Measured or limited capacity of each direction, in IP bytes.
    pub rate: BitRate,
    /// Round-trip time without queueing.
    pub rtt: Span,
    /// Random loss.
    pub loss: Fraction,
}

impl LinkState {
    /// The state that the fabric configures for `link`.
    pub fn of(link: &Link) -> Self {
        Self { rate: link.rate, rtt: link.rtt, loss: link.loss }
    }

    /// Whether every value is in the range that a fabric allows.
    pub fn is_valid(&self) -> bool {
        self.rate.bits_per_second() >= RATE_MIN_BITS
            && self.loss.ppb() < LOSS_BELOW_PPB
            && self.rtt <= RTT_MAX
    }
}

/// Appends the state of a link: rate, RTT, loss.
pub(crate) fn put_link_state(out: &mut Vec<u8>, state: LinkState) {
    put_u64(out, state.rate.bits_per_second());
    put_u64(out, state.rtt.ns());
    put_u32(out, state.loss.ppb());
}

impl Reader<'_> {
    /// Reads the state of a link.
    pub(crate) fn link_state(&mut self) -> Result<LinkState, DecodeError> {
        let (rate, rtt) = (BitRate::from_bits_per_second(self.u64()?), Span::from_ns(self.u64()?));
        let loss = Fraction::from_ppb(self.u32()?).ok_or(DecodeError::Invalid("loss"))?;
        let state = LinkState { rate, rtt, loss };
        if state.is_valid() { Ok(state) } else { Err(DecodeError::Invalid("link")) }
    }
}
