//! Numbers of bytes: sizes and amounts.

use crate::decimal;
use crate::quantity::{QuantityError, parse_quantity};
use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteCount(u64);

/// Units in which a size is parsed and printed exactly: the scale of each in bytes, and its name.
/// Binary units come first, since output prefers binary units. Other units are refused.
const SIZE_UNITS: &[(u64, &str)] = &[
    (1 << 40, "TiB"),
    (1 << 30, "GiB"),
    (1 << 20, "MiB"),
    (1 << 10, "KiB"),
    (1_000_000_000_000, "TB"),
    (1_000_000_000, "GB"),
    (1_000_000, "MB"),
    (1_000, "kB"),
    (1, "B"),
];

/// Units in which a rounded size is printed, largest first: the scale of each in bytes, and its
/// name. They reach beyond the parsed units, up to EiB, since sums over a training run do.
const ROUNDED_SIZE_UNITS: &[(u64, &str)] = &[
    (1 << 60, "EiB"),
    (1 << 50, "PiB"),
    (1 << 40, "TiB"),
    (1 << 30, "GiB"),
    (1 << 20, "MiB"),
    (1 << 10, "KiB"),
    (1, "B"),
];

impl ByteCount {
    /// Makes a count of `bytes` bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }
    /// Returns the count as a plain number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
    /// Returns the size in three significant digits and a binary unit, such as `342 MiB`.
    pub fn rounded(self) -> String {
        decimal::format_rounded_decimal(self.0, ROUNDED_SIZE_UNITS)
    }
    /// Returns the size for people who compare it with `other`: rounded, but in whole bytes where the
    /// two would look the same and are not.
    pub fn rounded_beside(self, other: Self) -> String {
        match self.rounded() {
            text if self != other && text == other.rounded() => format!("{} B", self.0),
            text => text,
        }
    }
}

impl FromStr for ByteCount {
    type Err = QuantityError;
    /// Parses a size such as `64 MiB`: a decimal number and a unit from `B` to `TB` or from `KiB`
    /// to `TiB`. Fails unless that is a whole number of bytes.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let wanted =
            "a size such as \"64 MiB\" (B, kB, MB, GB, TB in 1000s; KiB, MiB, GiB, TiB in 1024s)";
        parse_quantity(text, SIZE_UNITS, wanted).map(Self)
    }
}

impl fmt::Display for ByteCount {
    /// Prints the exact size with at most three decimals, such as `64 MiB` or `1 GB`. Binary units
    /// come first where the number is below 1000. It parses back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&decimal::format_decimal(self.0, SIZE_UNITS))
    }
}
