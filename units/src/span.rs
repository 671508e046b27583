//! Lengths of time in integer nanoseconds.

use crate::QuantityError;
use crate::decimal;
use crate::quantity;
use std::fmt;
use std::ops::Add;
use std::str::FromStr;
use std::time::Duration;

/// A length of time in nanoseconds, spelled with a unit ("80 ms").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

/// Units in which a time is parsed and printed exactly, largest first: the scale of each in
/// nanoseconds, and its name. Other units are refused.
const TIME_UNITS: &[(u64, &str)] = &[
    (3_600_000_000_000, "h"),
    (60_000_000_000, "min"),
    (1_000_000_000, "s"),
    (1_000_000, "ms"),
    (1_000, "us"),
    (1, "ns"),
];

/// Units in which a rounded time is printed, largest first: the scale of each in nanoseconds, and
/// its name. Days are among them, since a gateway may be up for months.
const ROUNDED_TIME_UNITS: &[(u64, &str)] = &[
    (86_400_000_000_000, "d"),
    (3_600_000_000_000, "h"),
    (60_000_000_000, "min"),
    (1_000_000_000, "s"),
    (1_000_000, "ms"),
    (1_000, "us"),
    (1, "ns"),
];

impl Span {
    /// The span of 0 ns.
    pub const ZERO: Self = Self(0);
    /// Makes a span of `ns` nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }
    /// Makes a span of `ms` milliseconds.
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }
    /// Makes a span of `s` seconds.
    pub const fn from_secs(s: u64) -> Self {
        Self(s * 1_000_000_000)
    }
    /// Returns the span in nanoseconds.
    pub const fn ns(self) -> u64 {
        self.0
    }
    /// Returns the span in seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
    /// Returns the span of `seconds`, rounded to nanoseconds; zero below zero and for no number.
    pub fn from_secs_f64(seconds: f64) -> Self {
        Self((seconds * 1e9).round() as u64)
    }
    /// Returns the time in three significant digits, such as `76.4 us`.
    pub fn rounded(self) -> String {
        decimal::format_rounded_decimal(self.0, ROUNDED_TIME_UNITS)
    }
    /// Returns the span as the standard library's [`Duration`].
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl Add for Span {
    type Output = Self;
    /// Returns the sum, at most `u64::MAX` nanoseconds.
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl FromStr for Span {
    type Err = QuantityError;
    /// Parses a time such as `80 ms`: a decimal number and a unit from `ns` to `h`. Fails unless
    /// that is a whole number of nanoseconds.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let wanted = "a time such as \"80 ms\" (ns, us, ms, s, min, h)";
        quantity::parse_quantity(text, TIME_UNITS, wanted).map(Self)
    }
}

impl fmt::Display for Span {
    /// Prints the exact time, such as `1.5 s`, in the largest unit not above it that needs at most
    /// three decimals. It parses back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&decimal::format_decimal(self.0, TIME_UNITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spans_are_exact() {
        assert_eq!("80ms".parse(), Ok(Span::from_ms(80)));
        assert_eq!("1.5 s".parse(), Ok(Span::from_ms(1500)));
        assert!("0.5 ns".parse::<Span>().is_err());
        assert!("80".parse::<Span>().is_err());
    }

    #[test]
    fn rounded_spans_have_three_digits() {
        let cases = [
            (0, "0 ns"),
            (76_373, "76.4 us"),
            (40_000_000, "40 ms"),
            (999_600, "1 ms"),
            (1_180_400_000, "1.18 s"),
            (12_345_678_901, "12.3 s"),
            (90_000_000_000, "1.5 min"),
            (7_200_000_000_000, "2 h"),
            (86_399_000_000_000, "1 d"),
        ];
        for (ns, text) in cases {
            assert_eq!(Span(ns).rounded(), text);
        }
        assert_eq!(Span::from_secs_f64(0.08), Span::from_ms(80));
        assert_eq!(Span::from_secs_f64(-1.0), Span::ZERO);
    }

    proptest! {
        #[test]
        fn printed_spans_parse_back(ns: u64) {
            prop_assert_eq!(Span(ns).to_string().parse(), Ok(Span(ns)));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = text.parse::<Span>();
        }
    }
}
