//! The disciplines of a queue, by which it drops or marks packets.

use units::{ByteCount, Fraction, Span};

/// How a queue decides which packets it drops or marks. Every queue also drops what it has no room
/// for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discipline {
    /// Nothing but what has no room.
    DropTail,
    /// By the time that packets have waited, decided when they leave the queue.
    Codel(Codel),
    /// By the average length of the queue, decided when packets come.
    Red(Red),
}

/// Controlled delay, as RFC 8289 has it. Packets that can be ECN-marked are marked instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codel {
    /// The wait that is acceptable for ever.
    pub target: Span,
    /// The time for which packets may wait longer before one is dropped: about one round trip.
    pub interval: Span,
}

impl Codel {
    /// Target 5 ms and interval 100 ms: the values of CoDel that RFC 8289 recommends for the open
    /// internet.
    pub const RECOMMENDED: Self = Self { target: Span::from_ms(5), interval: Span::from_ms(100) };
}

/// Random early detection, with the gentle slope above the upper threshold. Packets that can be
/// ECN-marked are marked instead, as RFC 3168 has it, below twice that threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Red {
    /// The average length below which no packet is dropped.
    pub min: ByteCount,
    /// The average length at which packets are dropped with `probability`.
    pub max: ByteCount,
    /// The probability at `max`; from there it rises to 1 at twice `max`.
    pub probability: Fraction,
    /// The weight of each new length in the average.
    pub weight: Fraction,
}

/// 0.2 %: the weight of each new length in RED's average of the queue's length, where the user
/// states none. Its authors recommend this weight.
pub(crate) const RED_WEIGHT_DEFAULT: Fraction = Fraction::from_ppb(2_000_000).expect("below one");
