//! Long-haul links between regions.

use super::region::RATE_MIN_BITS_PER_SECOND;
use crate::codec::{DecodeError, FieldReader, write_u32, write_u64};
use crate::ids::RegionId;
use units::{BitRate, ByteCount, Fraction, Span};

/// 500,000,000 parts per billion (50 %): the configured loss of a link must be smaller. The limit
/// is chosen; a greater loss is taken for a mistake.
pub(super) const LOSS_BELOW_PPB: u32 = 500_000_000;

/// 60 s: the longest configured round-trip time of a link, a chosen limit. Paths over satellites
/// have less than 1 s; more is most likely a wrong unit.
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
    /// Returns the state that the fabric configures for `link`.
    pub fn from_fabric(link: &Link) -> Self {
        Self { rate: link.rate, rtt: link.rtt, loss: link.loss }
    }

    /// Whether rate, RTT and loss are in the range that a fabric allows.
    pub fn is_valid(&self) -> bool {
        self.rate.bits_per_second() >= RATE_MIN_BITS_PER_SECOND
            && self.loss.ppb() < LOSS_BELOW_PPB
            && self.rtt <= RTT_MAX
    }

    /// Appends the state of a link to the message `out`: rate, RTT, loss.
    pub(crate) fn write_to(self, out: &mut Vec<u8>) {
        write_u64(out, self.rate.bits_per_second());
        write_u64(out, self.rtt.ns());
        write_u32(out, self.loss.ppb());
    }

    /// Reads the state of a link: rate, RTT, loss. A value out of range is an error.
    pub(crate) fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let (rate, rtt) =
            (BitRate::from_bits_per_second(reader.read_u64()?), Span::from_ns(reader.read_u64()?));
        let loss = Fraction::from_ppb(reader.read_u32()?).ok_or(DecodeError::Invalid("loss"))?;
        let state = Self { rate, rtt, loss };
        if state.is_valid() { Ok(state) } else { Err(DecodeError::Invalid("link")) }
    }
}
