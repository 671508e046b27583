//! The properties of one direction of a link.

use super::jitter::{Jitter, Reorder};
use super::loss::Loss;
use super::queue::{Discipline, Policer, QueueSize};
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
    discipline: Discipline,
    policer: Option<Policer>,
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
        "a queue of {queue}, from rate times delay, holds no packet of {FULL_PACKET_BYTES}: give \
         `queue` as a size or a time, such as 1 MB or 20 ms"
    )]
    QueueBelowPacket {
        /// The size that the queue would have.
        queue: ByteCount,
    },
    /// A target of CoDel that is zero or not below its interval.
    #[error(
        "codel: a target of {target} is not above zero and below the interval of {interval}; RFC \
         8289 recommends 5 ms and 100 ms"
    )]
    CodelTarget {
        /// The acceptable wait.
        target: Span,
        /// The interval.
        interval: Span,
    },
    /// Thresholds of RED that are not in order.
    #[error("red: the lower threshold of {min} is not below the upper one of {max}")]
    RedThresholds {
        /// The lower threshold.
        min: ByteCount,
        /// The upper threshold.
        max: ByteCount,
    },
    /// A probability or a weight of RED of zero, with which nothing is ever dropped.
    #[error("red: a probability or weight of 0 % drops nothing: give both above zero")]
    RedNever,
    /// A policer whose bucket is smaller than a packet.
    #[error("policer: a burst of {burst} passes no packet of {FULL_PACKET_BYTES}")]
    BurstBelowPacket {
        /// The size of the bucket.
        burst: ByteCount,
    },
    /// A policer with a rate of zero.
    #[error("policer: a rate of 0 bit/s passes nothing: give a rate above zero, or cut the link")]
    PolicerRate,
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
    /// Makes a link that carries `rate` in bytes of IP packets and delays each by `delay`, one way.
    ///
    /// # Errors
    /// [`SpecError::ZeroRate`], [`SpecError::DelayTooLong`].
    pub fn new(rate: BitRate, delay: Span) -> Result<Self, SpecError> {
        let rate = NonZeroU64::new(rate.bits_per_second()).ok_or(SpecError::ZeroRate)?;
        let spec = Self { rate_bits_per_second: Some(rate), ..Self::unlimited(delay)? };
        Ok(spec.with_queue(QueueSize::ThousandthsOfBdp(1000)))
    }

    /// Makes a link without a limit of its rate, hence without a queue.
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
            discipline: Discipline::DropTail,
            policer: None,
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
            let bits = bits / (NS_PER_SECOND * 1000);
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

    /// Returns this link with a queue of this discipline. With another than
    /// [`Discipline::DropTail`], no packet is marked for the threshold of
    /// [`LinkSpec::with_marking_above`].
    ///
    /// # Errors
    /// [`SpecError::CodelTarget`], [`SpecError::RedThresholds`], [`SpecError::RedNever`].
    pub fn with_discipline(self, discipline: Discipline) -> Result<Self, SpecError> {
        match discipline {
            Discipline::Codel(codel)
                if codel.target == Span::ZERO || codel.target >= codel.interval =>
            {
                let (target, interval) = (codel.target, codel.interval);
                Err(SpecError::CodelTarget { target, interval })
            }
            Discipline::Red(red) if red.min >= red.max => {
                Err(SpecError::RedThresholds { min: red.min, max: red.max })
            }
            Discipline::Red(red) if red.probability.ppb() == 0 || red.weight.ppb() == 0 => {
                Err(SpecError::RedNever)
            }
            _ => Ok(Self { discipline, ..self }),
        }
    }

    /// Returns this link with a policer before its queue.
    ///
    /// # Errors
    /// [`SpecError::PolicerRate`], [`SpecError::BurstBelowPacket`].
    pub fn with_policer(self, policer: Policer) -> Result<Self, SpecError> {
        if policer.rate.bits_per_second() == 0 {
            return Err(SpecError::PolicerRate);
        }
        if policer.burst < FULL_PACKET_BYTES {
            return Err(SpecError::BurstBelowPacket { burst: policer.burst });
        }
        Ok(Self { policer: Some(policer), ..self })
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

    /// Returns this link with some packets that overtake all others, as `reorder` says.
    pub fn with_reorder(self, reorder: Reorder) -> Self {
        // Without a probability there is no reordering: equal links compare as equal.
        Self { reorder: (reorder.probability.ppb() > 0).then_some(reorder), ..self }
    }

    /// Returns this link with independent loss of probability `loss` for each packet.
    pub fn with_loss(self, loss: Fraction) -> Self {
        self.with_loss_model(Loss::Random(loss))
    }

    /// Returns this link with packets lost as the model `loss` says.
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

    /// Returns the rate in bits of IP packets a second; `None` without a limit.
    pub fn rate(&self) -> Option<BitRate> {
        self.rate_bits_per_second.map(|rate| BitRate::from_bits_per_second(rate.get()))
    }

    /// Returns the bytes that each packet takes of the rate beyond its length.
    pub fn overhead_bytes(&self) -> u16 {
        self.overhead_bytes
    }

    /// Returns the room for waiting IP packets, in bytes.
    pub fn queue(&self) -> ByteCount {
        self.queue
    }

    /// Returns the waiting bytes above which capable packets are ECN-marked; `None` for never.
    pub fn mark_above(&self) -> Option<ByteCount> {
        self.mark_above
    }

    /// Returns whether the queue can ever hold enough bytes to mark packets.
    pub fn marks_by_queue(&self) -> bool {
        self.mark_above.is_some_and(|bytes| bytes < self.queue)
    }

    /// Returns how the queue decides which packets it drops or marks.
    pub fn discipline(&self) -> Discipline {
        self.discipline
    }

    /// Returns the policer before the queue; `None` without one.
    pub fn policer(&self) -> Option<Policer> {
        self.policer
    }

    /// Returns the most packets in the link, waiting or in flight; `None` without a limit.
    pub fn limit_packets(&self) -> Option<NonZeroU32> {
        self.limit_packets
    }

    /// Returns the one-way delay, without queueing and sending time.
    pub fn delay(&self) -> Span {
        self.delay
    }

    /// Returns how the one-way delay varies.
    pub fn jitter(&self) -> Jitter {
        self.jitter
    }

    /// Returns which packets overtake all others; `None` without reordering.
    pub fn reorder(&self) -> Option<Reorder> {
        self.reorder
    }

    /// Returns how packets are lost at random.
    pub fn loss(&self) -> Loss {
        self.loss
    }

    /// Returns whether packets that can be ECN-marked are marked instead of lost at random.
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
            QueueSize::ThousandthsOfBdp(1..) if !self.has_room_for_a_packet() => {
                Err(SpecError::QueueBelowPacket { queue: self.queue })
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the queue holds a packet of 1,500 bytes, or the link has no rate, so that no
    /// packet waits.
    pub fn has_room_for_a_packet(&self) -> bool {
        self.rate().is_none() || self.queue >= FULL_PACKET_BYTES
    }

    /// Returns the probability that a packet is copied.
    pub fn duplicate(&self) -> Fraction {
        self.duplicate
    }

    /// Returns the probability that one bit of a packet is flipped.
    pub fn corrupt(&self) -> Fraction {
        self.corrupt
    }
}

/// 1 h: the longest one-way delay of a link; a longer one is refused. The limit is chosen, so that
/// no sum of times can overflow.
pub const DELAY_MAX: Span = Span::from_secs(3600);

/// 1,500 bytes: the longest IP packet on Ethernet. A queue in multiples of the BDP, or a policer's
/// burst, that holds less than one such packet is refused.
const FULL_PACKET_BYTES: ByteCount = ByteCount::new(1500);

/// 1,000,000,000 nanoseconds in a second.
const NS_PER_SECOND: u128 = 1_000_000_000;
