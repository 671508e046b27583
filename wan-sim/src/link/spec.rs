//! The properties of one direction of a link.

use super::jitter::{Jitter, Reorder};
use super::loss::Loss;
use super::queue_size::QueueSize;
use std::num::{NonZeroU32, NonZeroU64};
use units::{BitRate, ByteCount, Fraction, Span};

/// One direction of a link. Valid by construction.
///
/// Defaults: nothing impaired, and a queue of one bandwidth-delay product of the round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkSpec {
    rate_bits_per_second: Option<NonZeroU64>,
    overhead_bytes: u16,
    queue: ByteCount,
    mark_above: Option<ByteCount>,
    limit_packets: Option<NonZeroU32>,
    delay: Span,
    jitter: Jitter,
    reorder: Option<Reorder>,
    loss: Loss,
    mark_losses: bool,
    duplicate: Fraction,
    corrupt: Fraction,
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
    /// A queue in multiples of a BDP that is smaller than a packet.
    #[error(
        "a queue of {queue}, from rate times delay, holds no packet of {FULL_PACKET}: give `queue` \
         as a size or a time, such as 1 MB or 20 ms"
    )]
    QueueBelowPacket {
        /// The size that the queue would have.
        queue: ByteCount,
    },
    /// Jitter that reaches further than the delay it varies.
    #[error("a jitter that reaches {reach} below a delay of {delay} would arrive before it left")]
    JitterAboveDelay {
        /// The most that it shortens a delay.
        reach: Span,
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
        let rate = NonZeroU64::new(rate.bits_per_second()).ok_or(SpecError::ZeroRate)?;
        let spec = Self { rate_bits_per_second: Some(rate), ..Self::unlimited(delay)? };
        Ok(spec.with_queue(QueueSize::ThousandthsOfBdp(1000)))
    }

    /// A link without a limit of its rate, hence without a queue.
    ///
    /// # Errors
    /// [`SpecError::DelayTooLong`].
    pub fn unlimited(delay: Span) -> Result<Self, SpecError> {
        if delay > DELAY_MAX {
            return Err(SpecError::DelayTooLong { delay });
        }
        Ok(Self {
            rate_bits_per_second: None,
            overhead_bytes: 0,
            queue: ByteCount::default(),
            mark_above: None,
            limit_packets: None,
            delay,
            jitter: Jitter::NONE,
            reorder: None,
            loss: Loss::Random(Fraction::default()),
            mark_losses: false,
            duplicate: Fraction::default(),
            corrupt: Fraction::default(),
        })
    }

    /// Returns this link with `bytes` of overhead: each packet takes so much more of the rate than
    /// its length.
    pub fn with_overhead(self, bytes: u16) -> Self {
        Self { overhead_bytes: bytes, ..self }
    }

    /// Returns this link with a queue of this size for waiting IP packets. The packet being sent
    /// and those in flight do not count.
    pub fn with_queue(self, queue: impl Into<QueueSize>) -> Self {
        let in_time = |time: Span, thousandths: u32| {
            let rate = u128::from(self.rate_bits_per_second.map_or(0, NonZeroU64::get));
            // Saturated, it is far more than 64 bits hold: the most that a queue can be.
            let bits = (rate * u128::from(time.ns())).saturating_mul(u128::from(thousandths));
            let bits = bits / (NS * 1000);
            ByteCount::new(u64::try_from(bits / 8).unwrap_or(u64::MAX))
        };
        let queue = match queue.into() {
            QueueSize::Bytes(bytes) => bytes,
            QueueSize::Time(time) => in_time(time, 1000),
            QueueSize::ThousandthsOfBdp(thousandths) => {
                in_time(self.delay + self.delay, thousandths)
            }
        };
        Self { queue, ..self }
    }

    /// Returns this link with ECN CE marks on capable packets while more than `bytes` wait.
    pub fn with_marking_above(self, bytes: ByteCount) -> Self {
        Self { mark_above: Some(bytes), ..self }
    }

    /// Returns this link with room for at most `packets`, waiting or in flight, like netem's
    /// `limit`.
    pub fn with_limit(self, packets: NonZeroU32) -> Self {
        Self { limit_packets: Some(packets), ..self }
    }

    /// Returns this link with a delay that varies.
    ///
    /// # Errors
    /// [`SpecError::JitterAboveDelay`].
    pub fn with_jitter(self, jitter: Jitter) -> Result<Self, SpecError> {
        let reach = jitter.reach();
        if reach > self.delay {
            return Err(SpecError::JitterAboveDelay { reach, delay: self.delay });
        }
        // Without a spread there is neither shape nor order: equal links compare as equal.
        let jitter = if jitter.spread == Span::ZERO { Jitter::NONE } else { jitter };
        Ok(Self { jitter, ..self })
    }

    /// Returns this link with some packets overtaking all others.
    pub fn with_reorder(self, reorder: Reorder) -> Self {
        // Without a probability there is no reordering: equal links compare as equal.
        Self { reorder: (reorder.probability.ppb() > 0).then_some(reorder), ..self }
    }

    /// Returns this link with independent loss of probability `loss` for each packet.
    pub fn with_loss(self, loss: Fraction) -> Self {
        self.with_loss_model(Loss::Random(loss))
    }

    /// Returns this link with this loss model.
    pub fn with_loss_model(self, loss: Loss) -> Self {
        Self { loss, ..self }
    }

    /// Returns this link with ECN CE marks in place of random losses, on capable packets.
    pub fn with_losses_marked(self) -> Self {
        Self { mark_losses: true, ..self }
    }

    /// Returns this link with a copy of each packet with probability `duplicate`.
    pub fn with_duplicate(self, duplicate: Fraction) -> Self {
        Self { duplicate, ..self }
    }

    /// Returns this link with one flipped bit in each packet with probability `corrupt`.
    pub fn with_corrupt(self, corrupt: Fraction) -> Self {
        Self { corrupt, ..self }
    }

    /// Rate in bits of IP packets a second; `None` without a limit.
    pub fn rate(&self) -> Option<BitRate> {
        self.rate_bits_per_second.map(|rate| BitRate::from_bits_per_second(rate.get()))
    }

    /// Bytes that each packet takes of the rate beyond its length.
    pub fn overhead_bytes(&self) -> u16 {
        self.overhead_bytes
    }

    /// Room for waiting packets.
    pub fn queue(&self) -> ByteCount {
        self.queue
    }

    /// Waiting bytes above which packets are marked.
    pub fn mark_above(&self) -> Option<ByteCount> {
        self.mark_above
    }

    /// Whether the queue can ever hold enough bytes to mark packets.
    pub fn marks_by_queue(&self) -> bool {
        self.mark_above.is_some_and(|bytes| bytes < self.queue)
    }

    /// The most packets in the link, waiting or in flight.
    pub fn limit_packets(&self) -> Option<NonZeroU32> {
        self.limit_packets
    }

    /// One-way delay, without queueing and sending time.
    pub fn delay(&self) -> Span {
        self.delay
    }

    /// How the delay varies.
    pub fn jitter(&self) -> Jitter {
        self.jitter
    }

    /// Packets that overtake all others.
    pub fn reorder(&self) -> Option<Reorder> {
        self.reorder
    }

    /// How packets are lost at random.
    pub fn loss(&self) -> Loss {
        self.loss
    }

    /// Whether packets that can be marked are marked instead of lost.
    pub fn losses_marked(&self) -> bool {
        self.mark_losses
    }

    /// Checks that a queue given as a multiple of the BDP holds at least one packet. A smaller one
    /// would lose every packet that comes while another is sent. [`None`] stands for one BDP.
    ///
    /// # Errors
    /// [`SpecError::QueueBelowPacket`].
    pub fn check_queue(&self, queue: Option<QueueSize>) -> Result<(), SpecError> {
        match queue.unwrap_or(QueueSize::ThousandthsOfBdp(1000)) {
            QueueSize::ThousandthsOfBdp(1..)
                if self.rate().is_some() && self.queue < FULL_PACKET =>
            {
                Err(SpecError::QueueBelowPacket { queue: self.queue })
            }
            _ => Ok(()),
        }
    }

    /// Probability of a copy.
    pub fn duplicate(&self) -> Fraction {
        self.duplicate
    }

    /// Probability of a flipped bit.
    pub fn corrupt(&self) -> Fraction {
        self.corrupt
    }
}

/// Longest one-way delay: an hour, so that no sum of times can overflow.
pub const DELAY_MAX: Span = Span::from_secs(3600);

/// On Ethernet.
const FULL_PACKET: ByteCount = ByteCount::new(1500);

/// Nanoseconds in a second.
const NS: u128 = 1_000_000_000;
