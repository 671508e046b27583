//! The values that describe how the delay varies: jitter and reordering.

use std::num::NonZeroU32;
use units::{Fraction, Span};

/// How the one-way delay varies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jitter {
    /// Half the width of a uniform spread, or the standard deviation of a normal one.
    pub spread: Span,
    /// The distribution around the delay.
    pub shape: Shape,
    /// Whether packets may overtake each other.
    pub order: Order,
}

impl Jitter {
    /// No jitter: every packet takes the one-way delay itself, and packets keep their order.
    pub const NONE: Self = Self { spread: Span::ZERO, shape: Shape::Uniform, order: Order::Kept };

    /// Returns the most that a delay is below or above its mean.
    pub fn reach(&self) -> Span {
        match self.shape {
            Shape::Uniform => self.spread,
            Shape::Normal => {
                Span::from_ns(self.spread.ns().saturating_mul(NORMAL_REACH_DEVIATIONS))
            }
        }
    }
}

/// A distribution of delays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// All within the spread alike.
    Uniform,
    /// Normal, cut at four standard deviations.
    Normal,
}

/// The effect of jitter on the order of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// A packet arrives at the earliest together with the one before it.
    Kept,
    /// Packets overtake each other as their delays have it.
    Free,
}

/// Packets that overtake all others by skipping the delay.
///
/// Of the packets that come out of the queue, `gap - 1` are delayed; each after these
/// skips the delay with `probability`; once one has, the count begins anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reorder {
    /// Probability of skipping the delay.
    pub probability: Fraction,
    /// The distance in packets from one that skipped the delay to the next that may.
    pub gap: NonZeroU32,
}

/// 4 standard deviations: the farthest that normally distributed jitter is above or below the
/// delay. A value further away, 1 in 16,000, is drawn again. The number is chosen.
pub(super) const NORMAL_REACH_DEVIATIONS: u64 = 4;
