//! Long-haul links between regions.

use crate::codec::{DecodeError, Reader, put_u32, put_u64};
use crate::ids::RegionId;
use units::{BitRate, ByteCount, Fraction, Span};

/// The long-haul path between two regions.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// The region that comes first by name.
    pub a: RegionId,
    /// The other.
    pub b: RegionId,
    /// Capacity each way, in IP bytes.
    pub rate: BitRate,
    /// Round-trip time without queueing.
    pub rtt: Span,
    /// Random loss expected of it.
    pub loss: Fraction,
}

impl Link {
    /// Bandwidth-delay product.
    pub fn bdp(&self) -> ByteCount {
        let bits =
            u128::from(self.rate.bits_per_second()) * u128::from(self.rtt.ns()) / 1_000_000_000;
        ByteCount::new(u64::try_from(bits / 8).unwrap_or(u64::MAX))
    }
}

/// What a link is found to be while it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkState {
    /// What it carries each way, or is held to, in IP bytes.
    pub rate: BitRate,
    /// Round-trip time without queueing.
    pub rtt: Span,
    /// Random loss.
    pub loss: Fraction,
}

impl LinkState {
    /// What is written of a link.
    pub fn of(link: &Link) -> Self {
        Self { rate: link.rate, rtt: link.rtt, loss: link.loss }
    }

    /// Whether a link may be like that.
    pub fn is_valid(&self) -> bool {
        self.rate.bits_per_second() >= RATE_MIN_BITS
            && self.loss.ppb() < LOSS_BELOW_PPB
            && self.rtt <= RTT_MAX
    }
}

/// The least rate of a link.
pub(super) const RATE_MIN_BITS: u64 = 8_000;
/// Its loss is below half.
pub(super) const LOSS_BELOW_PPB: u32 = 500_000_000;
/// Its longest round trip.
pub(super) const RTT_MAX: Span = Span::from_secs(60);

/// Appends the state of a link.
pub(crate) fn put_link_state(out: &mut Vec<u8>, state: LinkState) {
    put_u64(out, state.rate.bits_per_second());
    put_u64(out, state.rtt.ns());
    put_u32(out, state.loss.ppb());
}

impl Reader<'_> {
    /// The state of a link.
    pub(crate) fn link_state(&mut self) -> Result<LinkState, DecodeError> {
        let (rate, rtt) = (BitRate::from_bits_per_second(self.u64()?), Span::from_ns(self.u64()?));
        let loss = Fraction::from_ppb(self.u32()?).ok_or(DecodeError::Invalid("loss"))?;
        let state = LinkState { rate, rtt, loss };
        if state.is_valid() { Ok(state) } else { Err(DecodeError::Invalid("link")) }
    }
}
