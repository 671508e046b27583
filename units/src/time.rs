//! Instants in integer nanoseconds.

use crate::span::Span;
use std::ops::{Add, Sub};

/// An instant: nanoseconds since an origin that the clock's owner chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TimeNs(u64);

impl TimeNs {
    /// Makes the instant `ns` nanoseconds after the origin.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }
    /// Returns the nanoseconds since the origin.
    pub const fn ns(self) -> u64 {
        self.0
    }
    /// Returns the span since `earlier`; zero when `earlier` is the later instant.
    pub const fn since(self, earlier: Self) -> Span {
        Span::from_ns(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Span> for TimeNs {
    type Output = Self;
    /// Returns the instant `span` later, at most `u64::MAX` nanoseconds after the origin.
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.ns()))
    }
}

impl Sub<Span> for TimeNs {
    type Output = Self;
    /// Returns the instant `span` earlier, but not before the origin.
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.ns()))
    }
}
