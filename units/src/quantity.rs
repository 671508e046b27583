//! Rates, sizes and fractions.

use crate::decimal;
use std::fmt;
use std::str::FromStr;

/// Why a text is not a quantity of the wanted kind; always an error of the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{value}` is not {wanted}")]
pub struct QuantityError {
    /// The given text.
    pub value: String,
    /// The accepted spelling, with an example.
    pub wanted: &'static str,
}

/// Parses a number with its unit; `units` holds scale and name of each unit.
///
/// # Errors
/// [`QuantityError`], which says that the text is not `wanted`.
pub(crate) fn parse_quantity(
    text: &str,
    units: &[(u64, &str)],
    wanted: &'static str,
) -> Result<u64, QuantityError> {
    let error = || QuantityError { value: text.to_owned(), wanted };
    let (number, unit) = decimal::split_decimal_and_unit(text).ok_or_else(error)?;
    let (scale, _) = units.iter().find(|(_, name)| *name == unit).ok_or_else(error)?;
    decimal::scale_decimal(number, *scale).ok_or_else(error)
}

/// A rate in bits per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitRate(u64);

/// Accepted units of a rate, largest first: the scale of each in bits per second, and its name.
const RATE_UNITS: &[(u64, &str)] = &[
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

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteCount(u64);

/// Accepted units of a size: the scale of each in bytes, and its name. Binary units come first,
/// since output prefers binary units.
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

/// Units of a rounded size, largest first: the scale of each in bytes, and its name. They reach
/// beyond [`SIZE_UNITS`], since sums over a training run do.
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

/// A fraction from 0 to 1, in parts per billion, spelled in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fraction(u32);

/// 1,000,000,000 parts per billion: the largest value of a fraction, which is 1.
const ONE_PPB: u32 = 1_000_000_000;

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

impl FromStr for BitRate {
    type Err = QuantityError;
    /// Parses a rate such as `500 Mbit/s`: a decimal number and a unit from `bit/s` to `Tbit/s`.
    /// Fails unless that is a whole number of bits per second.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let wanted = "a rate such as \"500 Mbit/s\" (bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s)";
        parse_quantity(text, RATE_UNITS, wanted).map(Self)
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

impl fmt::Display for BitRate {
    /// Prints the exact rate, such as `1.5 Gbit/s`, in the largest unit not above it that needs at
    /// most three decimals. It parses back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&decimal::format_decimal(self.0, RATE_UNITS))
    }
}

impl fmt::Display for ByteCount {
    /// Prints the exact size with at most three decimals, such as `64 MiB` or `1 GB`. Binary units
    /// come first where the number is below 1000. It parses back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&decimal::format_decimal(self.0, SIZE_UNITS))
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_space_is_optional_and_units_are_exact() {
        assert_eq!("500Mbit/s".parse(), Ok(BitRate(500_000_000)));
        assert_eq!("0.5 Gbit/s".parse(), Ok(BitRate(500_000_000)));
        assert_eq!("64 MiB".parse(), Ok(ByteCount(64 << 20)));
        assert_eq!("1 MB".parse(), Ok(ByteCount(1_000_000)));
        assert_eq!("0.1 %".parse(), Ok(Fraction(1_000_000)));
        assert_eq!("100%".parse(), Ok(Fraction(ONE_PPB)));
    }

    #[test]
    fn malformed_quantities_are_refused() {
        for text in
            ["", "500", "Mbit/s", "-1 Mbit/s", "1e3 bit/s", "1.5 bit/s", "1 mbit/s", "1..2 kbit/s"]
        {
            assert!(text.parse::<BitRate>().is_err(), "{text}");
        }
        for text in ["100.1 %", "0.1", "-1 %", "0.00000001 %"] {
            assert!(text.parse::<Fraction>().is_err(), "{text}");
        }
        assert!("99999999999999999999 B".parse::<ByteCount>().is_err());
    }

    #[test]
    fn exact_sizes_use_the_unit_they_were_written_in() {
        for text in ["1 GB", "1 MB", "1.5 kB", "64 MiB", "250 KiB", "1000 GiB", "0 B", "999 B"] {
            assert_eq!(text.parse::<ByteCount>().map(|size| size.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(ByteCount(56_316_576).to_string(), "56316.576 kB");
        assert_eq!(BitRate(1_500_000_000).to_string(), "1.5 Gbit/s");
    }

    #[test]
    fn rounded_quantities_have_three_digits_and_one_unit() {
        let sizes = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "0.977 KiB"),
            (1 << 20, "1 MiB"),
            (56_316_576, "53.7 MiB"),
            (1_000_000_000, "954 MiB"),
            ((1 << 30) - 1, "1 GiB"),
            (u64::MAX, "16 EiB"),
        ];
        for (bytes, text) in sizes {
            assert_eq!(ByteCount(bytes).rounded(), text);
        }
        let (mib, more) = (ByteCount(1 << 20), ByteCount((1 << 20) + 1));
        let beside = [mib.rounded_beside(more), more.rounded_beside(mib), mib.rounded_beside(mib)];
        assert_eq!(beside, ["1048576 B", "1048577 B", "1 MiB"]);
        let rates = [
            (0, "0 bit/s"),
            (447_391_822, "447 Mbit/s"),
            (999_499_999, "999 Mbit/s"),
            (999_600_000, "1 Gbit/s"),
            (12_345, "12.3 kbit/s"),
        ];
        for (bits, text) in rates {
            assert_eq!(BitRate(bits).rounded(), text);
        }
    }

    proptest! {
        #[test]
        fn rounded_quantities_are_within_half_a_percent(bits in 1u64..=1_000_000_000_000_000) {
            let text = BitRate(bits).rounded();
            let (number, unit) = text.split_once(' ').expect("a number and a unit");
            let scale = RATE_UNITS.iter().find(|(_, name)| *name == unit).expect("a unit").0;
            let shown = number.parse::<f64>().expect("a number") * scale as f64;
            prop_assert!((shown / bits as f64 - 1.0).abs() <= 0.005, "{} for {}", text, bits);
        }

        #[test]
        fn printed_quantities_parse_back(bits: u64, bytes: u64, ppb in 0..=ONE_PPB) {
            prop_assert_eq!(BitRate(bits).to_string().parse(), Ok(BitRate(bits)));
            prop_assert_eq!(ByteCount(bytes).to_string().parse(), Ok(ByteCount(bytes)));
            prop_assert_eq!(Fraction(ppb).to_string().parse(), Ok(Fraction(ppb)));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = (text.parse::<BitRate>(), text.parse::<ByteCount>(), text.parse::<Fraction>());
        }
    }
}
