//! The parser of numbers with units, which all quantities share, and its error.

use crate::decimal;

/// Why a text is not a quantity of the wanted kind; always an error of the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{value}` is not {wanted}")]
pub struct QuantityError {
    /// The given text.
    pub value: String,
    /// The accepted spelling, with an example.
    pub wanted: &'static str,
}

/// Parses a number with its unit. Returns the number times the scale of the unit, exactly; `units`
/// holds scale and name of each unit.
///
/// # Errors
/// [`QuantityError`], which says that the text is not `wanted`: it has no number, another unit, or
/// no whole product of 64 bits.
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

#[cfg(test)]
mod tests {
    use crate::bit_rate::{BitRate, RATE_UNITS};
    use crate::byte_count::ByteCount;
    use crate::fraction::{Fraction, ONE_PPB};
    use proptest::prelude::*;

    #[test]
    fn the_space_is_optional_and_units_are_exact() {
        assert_eq!("500Mbit/s".parse(), Ok(BitRate::from_bits_per_second(500_000_000)));
        assert_eq!("0.5 Gbit/s".parse(), Ok(BitRate::from_bits_per_second(500_000_000)));
        assert_eq!("64 MiB".parse(), Ok(ByteCount::new(64 << 20)));
        assert_eq!("1 MB".parse(), Ok(ByteCount::new(1_000_000)));
        assert_eq!("0.1 %".parse(), Ok(Fraction::from_ppb(1_000_000).expect("at most 1")));
        assert_eq!("100%".parse(), Ok(Fraction::from_ppb(ONE_PPB).expect("at most 1")));
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
        assert_eq!(ByteCount::new(56_316_576).to_string(), "56316.576 kB");
        assert_eq!(BitRate::from_bits_per_second(1_500_000_000).to_string(), "1.5 Gbit/s");
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
            assert_eq!(ByteCount::new(bytes).rounded(), text);
        }
        let (mib, more) = (ByteCount::new(1 << 20), ByteCount::new((1 << 20) + 1));
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
            assert_eq!(BitRate::from_bits_per_second(bits).rounded(), text);
        }
    }

    proptest! {
        #[test]
        fn rounded_quantities_are_within_half_a_percent(bits in 1u64..=1_000_000_000_000_000) {
            let text = BitRate::from_bits_per_second(bits).rounded();
            let (number, unit) = text.split_once(' ').expect("a number and a unit");
            let scale = RATE_UNITS.iter().find(|(_, name)| *name == unit).expect("a unit").0;
            let shown = number.parse::<f64>().expect("a number") * scale as f64;
            prop_assert!((shown / bits as f64 - 1.0).abs() <= 0.005, "{} for {}", text, bits);
        }

        #[test]
        fn printed_quantities_parse_back(bits: u64, bytes: u64, ppb in 0..=ONE_PPB) {
            let rate = BitRate::from_bits_per_second(bits);
            let fraction = Fraction::from_ppb(ppb).expect("at most 1");
            prop_assert_eq!(rate.to_string().parse(), Ok(rate));
            prop_assert_eq!(ByteCount::new(bytes).to_string().parse(), Ok(ByteCount::new(bytes)));
            prop_assert_eq!(fraction.to_string().parse(), Ok(fraction));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = (text.parse::<BitRate>(), text.parse::<ByteCount>(), text.parse::<Fraction>());
        }
    }
}
