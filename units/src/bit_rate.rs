//! Rates in bits per second.

use crate::decimal;
use crate::quantity::{QuantityError, parse_quantity};
use std::fmt;
use std::str::FromStr;

/// A rate in bits per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitRate(u64);

/// Units in which a rate is parsed and printed, largest first: the scale of each in bits per
/// second, and its name. Other units are refused.
pub(crate) const RATE_UNITS: &[(u64, &str)] = &[
    (1_000_000_000_000, "Tbit/s"),
    (1_000_000_000, "Gbit/s"),
    (1_000_000, "Mbit/s"),
    (1_000, "kbit/s"),
    (1, "bit/s"),
];

impl BitRate {
    /// Makes a rate of `bits` bits per second.
    pub const fn from_bits_per_second(bits: u64) -> Self {
        Self(bits)
    }
    /// Returns the rate in bits per second.
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }
    /// Returns the rate in bytes per second, without rounding.
    pub fn bytes_per_second(self) -> f64 {
        self.0 as f64 / 8.0
    }
    /// Returns the rate in three significant digits, such as `447 Mbit/s`.
    pub fn rounded(self) -> String {
        decimal::format_rounded_decimal(self.0, RATE_UNITS)
    }
}

impl FromStr for BitRate {
    type Err = QuantityError;
    /// Parses a rate such as `500 Mbit/s`: a decimal number and a unit from `bit/s` to `Tbit/s`.
    /// Fails unless that is a whole number of bits per second.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let wanted = "a rate such as \"500 Mbit/s\" (bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s)";
        parse_quantity(text, RATE_UNITS, wanted).map(Self)
    }
}

impl fmt::Display for BitRate {
    /// Prints the exact rate, such as `1.5 Gbit/s`, in the largest unit not above it that needs at
    /// most three decimals. It parses back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&decimal::format_decimal(self.0, RATE_UNITS))
    }
}
