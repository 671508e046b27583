//! Room for waiting packets, in bytes, in time or in bandwidth-delay products.

use std::str::FromStr;
use units::{ByteCount, QuantityError, Span};

/// Room for packets that wait for the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueSize {
    /// A number of bytes: "5 MB".
    Bytes(ByteCount),
    /// The bytes that the rate sends in this time: "20 ms".
    Time(Span),
    /// Thousandths of rate times round trip, where a round trip is twice the one-way
    /// delay: "1.5 BDP".
    ThousandthsOfBdp(u32),
}

impl FromStr for QueueSize {
    type Err = QuantityError;
    /// Parses a size, a time or a multiple of the BDP: `5 MB`, `20 ms` or `1.5 BDP`. A multiple has
    /// at most three decimals.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let error = || QuantityError {
            value: text.to_owned(),
            wanted: "a queue such as \"5 MB\", \"20 ms\" or \"1 BDP\"",
        };
        let lower = text.trim().to_ascii_lowercase();
        if let Some(number) = lower.strip_suffix("bdp") {
            // Thousandths, for which milliseconds of a second serve.
            let seconds: Span = format!("{} s", number.trim()).parse().map_err(|_| error())?;
            if !seconds.ns().is_multiple_of(1_000_000) {
                return Err(error());
            }
            let thousandths = u32::try_from(seconds.ns() / 1_000_000).map_err(|_| error())?;
            return Ok(Self::ThousandthsOfBdp(thousandths));
        }
        if let Ok(bytes) = text.parse() {
            return Ok(Self::Bytes(bytes));
        }
        text.parse().map(Self::Time).map_err(|_| error())
    }
}

impl From<ByteCount> for QueueSize {
    /// Makes the size of a queue with room for `bytes`.
    fn from(bytes: ByteCount) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Span> for QueueSize {
    /// Makes the size of a queue with room for the bytes that its link sends in `time`.
    fn from(time: Span) -> Self {
        Self::Time(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_spellings_and_no_other() {
        assert_eq!("5 MB".parse(), Ok(QueueSize::Bytes(ByteCount::new(5_000_000))));
        assert_eq!("20ms".parse(), Ok(QueueSize::Time(Span::from_ms(20))));
        assert_eq!("1.5 BDP".parse(), Ok(QueueSize::ThousandthsOfBdp(1500)));
        assert_eq!("1bdp".parse(), Ok(QueueSize::ThousandthsOfBdp(1000)));
        for text in ["", "bdp", "1", "-1 BDP", "0.0001 BDP", "9999999 BDP", "1 packet"] {
            assert!(text.parse::<QueueSize>().is_err(), "{text}");
        }
    }
}
