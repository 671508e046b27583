//! Fractions, spelled in percent.

use crate::quantity::{QuantityError, parse_quantity};
use std::fmt;
use std::str::FromStr;

/// A fraction from 0 to 1, in parts per billion, spelled in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fraction(u32);

/// 1,000,000,000 parts per billion: the largest value of a fraction, which is 1. A larger value is
/// refused.
pub(crate) const ONE_PPB: u32 = 1_000_000_000;

impl Fraction {
    /// Makes a fraction of `ppb` parts per billion; `None` above 1.
    pub const fn from_ppb(ppb: u32) -> Option<Self> {
        if ppb <= ONE_PPB { Some(Self(ppb)) } else { None }
    }
    /// Returns the fraction in parts per billion.
    pub const fn ppb(self) -> u32 {
        self.0
    }
    /// Returns the fraction as a floating-point number from 0 to 1.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(ONE_PPB)
    }
}

impl FromStr for Fraction {
    type Err = QuantityError;
    /// Parses a percentage such as `0.1 %`, from 0 % to 100 %. Fails unless that is a whole number
    /// of parts per billion.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let wanted = "a percentage such as \"0.1 %\", from 0 % to 100 %";
        let error = || QuantityError { value: text.to_owned(), wanted };
        let ppb = parse_quantity(text, &[(u64::from(ONE_PPB) / 100, "%")], wanted)?;
        u32::try_from(ppb).ok().and_then(Self::from_ppb).ok_or_else(error)
    }
}

impl fmt::Display for Fraction {
    /// Prints the exact percentage, such as `0.1 %`, with at most seven decimals. It parses back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = format!("{:.7}", f64::from(self.0) / 1e7);
        let percent = percent.trim_end_matches('0').trim_end_matches('.');
        f.pad(&format!("{percent} %"))
    }
}
