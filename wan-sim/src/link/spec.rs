//! What one direction of a link is like.

use std::num::NonZeroU64;
use units::{BitRate, ByteCount, Fraction, Span};

/// One direction of a link. Valid by construction.
///
/// Defaults: no jitter, no loss, a queue of one bandwidth-delay product of the round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkSpec {
    rate_bits_per_second: NonZeroU64,
    delay: Span,
    jitter: Span,
    loss: Fraction,
    queue: ByteCount,
}

/// A link that cannot be. The caller's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A rate of zero: nothing would ever leave.
    #[error("a rate of 0 bit/s passes nothing: give a rate above zero, or cut the link")]
    ZeroRate,
    /// A delay above [`DELAY_MAX`].
    #[error("a one-way delay of {delay} is above the {DELAY_MAX} that a link may have")]
    DelayTooLong {
        /// The one-way delay.
        delay: Span,
    },
    /// Jitter larger than the delay it varies.
    #[error("a jitter of {jitter} around a delay of {delay} would arrive before it left")]
    JitterAboveDelay {
        /// The jitter asked for.
        jitter: Span,
        /// The one-way delay.
        delay: Span,
    },
}

impl LinkSpec {
    /// A link that carries `rate` in bytes of IP packets and delays each by `delay`, one way.
    ///
    /// # Errors
    /// [`SpecError::ZeroRate`], [`SpecError::DelayTooLong`].
    pub fn new(rate: BitRate, delay: Span) -> Result<Self, SpecError> {
        if delay > DELAY_MAX {
            return Err(SpecError::DelayTooLong { delay });
        }
        let rate_bits_per_second =
            NonZeroU64::new(rate.bits_per_second()).ok_or(SpecError::ZeroRate)?;
        let spec = Self {
            rate_bits_per_second,
            delay,
            jitter: Span::ZERO,
            loss: Fraction::default(),
            queue: ByteCount::default(),
        };
        Ok(spec.with_queue(spec.bandwidth_delay_product()))
    }

    /// The same link with each packet's delay uniform within `jitter` either side; packets
    /// keep their order.
    ///
    /// # Errors
    /// [`SpecError::JitterAboveDelay`].
    pub fn with_jitter(self, jitter: Span) -> Result<Self, SpecError> {
        if jitter > self.delay {
            return Err(SpecError::JitterAboveDelay { jitter, delay: self.delay });
        }
        Ok(Self { jitter, ..self })
    }

    /// The same link losing each packet with probability `loss`, independently.
    pub fn with_loss(self, loss: Fraction) -> Self {
        Self { loss, ..self }
    }

    /// The same link with room for `queue` bytes of IP packets waiting to be sent, not
    /// counting the one being sent nor those under way.
    pub fn with_queue(self, queue: ByteCount) -> Self {
        Self { queue, ..self }
    }

    /// Rate in bits of IP packets a second.
    pub fn rate(&self) -> BitRate {
        BitRate::from_bits_per_second(self.rate_bits_per_second.get())
    }

    /// One-way delay, without queueing and sending time.
    pub fn delay(&self) -> Span {
        self.delay
    }

    /// Half the width of the delay's uniform spread.
    pub fn jitter(&self) -> Span {
        self.jitter
    }

    /// Probability of losing a packet.
    pub fn loss(&self) -> Fraction {
        self.loss
    }

    /// Room for waiting packets.
    pub fn queue(&self) -> ByteCount {
        self.queue
    }

    /// Rate times twice the one-way delay.
    pub fn bandwidth_delay_product(&self) -> ByteCount {
        let bits_ns = u128::from(self.rate_bits_per_second.get()) * 2 * u128::from(self.delay.ns());
        ByteCount::new(u64::try_from(bits_ns / BIT_NS_PER_BYTE_SECOND).unwrap_or(u64::MAX))
    }
}

/// Longest one-way delay: an hour, so that no sum of times can overflow.
pub const DELAY_MAX: Span = Span::from_secs(3600);

const BIT_NS_PER_BYTE_SECOND: u128 = 8 * 1_000_000_000;
