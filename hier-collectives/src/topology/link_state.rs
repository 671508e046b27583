//! The state of a link: as the fabric configures it, or as it is measured.

use super::link::{LOSS_BOUND_PPB, Link, RTT_MAX};
use super::region::RATE_MIN_BITS_PER_SECOND;
use crate::codec::{DecodeError, FieldReader, write_u32, write_u64};
use units::{BitRate, Fraction, Span};

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
            && self.loss.ppb() < LOSS_BOUND_PPB
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
