//! Whole numbers in files: an invalid one is refused with its key and the accepted range.

use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Unexpected, Visitor};
use std::fmt;
use std::num::NonZeroU32;

/// Reads the key `gap` of reordering, from 1: a packet may skip the delay at so many places behind
/// the last that did, or more.
pub(in crate::topology) fn deserialize_whole_gap<'de, D: Deserializer<'de>>(
    file: D,
) -> Result<Option<NonZeroU32>, D::Error> {
    Ok(NonZeroU32::new(deserialize_whole_number(file, "gap", 1, u32::MAX)?))
}

/// Reads the key `limit_packets`, from 1.
pub(in crate::topology) fn deserialize_whole_limit_packets<'de, D: Deserializer<'de>>(
    file: D,
) -> Result<Option<NonZeroU32>, D::Error> {
    Ok(NonZeroU32::new(deserialize_whole_number(file, "limit_packets", 1, u32::MAX)?))
}

/// Reads the key `overhead_bytes`, from 0 to 65,535.
pub(in crate::topology) fn deserialize_whole_overhead_bytes<'de, D: Deserializer<'de>>(
    file: D,
) -> Result<Option<u16>, D::Error> {
    deserialize_whole_number(file, "overhead_bytes", 0, u16::MAX).map(Some)
}

/// Reads the key `mtu`: bytes of the longest IP packet, from [`MTU_BYTES_MIN`] to 65,535.
pub(in crate::topology) fn deserialize_whole_mtu<'de, D: Deserializer<'de>>(
    file: D,
) -> Result<Option<u16>, D::Error> {
    deserialize_whole_number(file, "mtu", MTU_BYTES_MIN, u16::MAX).map(Some)
}

/// Reads the key `seed` of the random draws, from 0 to [`TOML_INTEGER_MAX`].
pub(in crate::topology) fn deserialize_whole_seed<'de, D: Deserializer<'de>>(
    file: D,
) -> Result<Option<u64>, D::Error> {
    deserialize_whole_number(file, "seed", 0, TOML_INTEGER_MAX).map(Some)
}

/// Reads the key `drops`: numbers of packets to drop, from 0.
pub(in crate::topology) fn deserialize_whole_drops<'de, D: Deserializer<'de>>(
    file: D,
) -> Result<Option<Vec<u64>>, D::Error> {
    file.deserialize_any(WholePacketNumbers).map(Some)
}

/// Reads a whole number from `least` to `most`; an error names `key` and this range.
fn deserialize_whole_number<'de, D, T>(
    file: D,
    key: &'static str,
    least: T,
    most: T,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Into<u64> + TryFrom<u64>,
{
    let whole = WholeNumber { key, least: least.into(), most: most.into() };
    let number = whole.deserialize(file)?;
    T::try_from(number).map_err(|_| D::Error::custom(format!("`{key}` is out of its range")))
}

/// The visitor for a whole number in a range.
struct WholeNumber {
    key: &'static str,
    least: u64,
    most: u64,
}

impl<'de> DeserializeSeed<'de> for WholeNumber {
    type Value = u64;

    /// Reads a whole number and checks its range.
    fn deserialize<D: Deserializer<'de>>(self, file: D) -> Result<u64, D::Error> {
        file.deserialize_any(self)
    }
}

impl Visitor<'_> for WholeNumber {
    type Value = u64;

    /// Says which numbers the key accepts, for errors.
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, least, most } = self;
        write!(f, "for `{key}` a whole number from {least} to {most}")
    }

    /// Accepts a number inside the range.
    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        let positive = u64::try_from(number).ok();
        let within = positive.filter(|number| (self.least..=self.most).contains(number));
        within.ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
    }
}

/// The visitor for a list of packet numbers.
struct WholePacketNumbers;

impl<'de> Visitor<'de> for WholePacketNumbers {
    type Value = Vec<u64>;

    /// Says that a list of packet numbers is accepted, for errors.
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("for `drops` the numbers of packets from 0, such as [3, 7]")
    }

    /// Reads the packet numbers of the list.
    fn visit_seq<A: SeqAccess<'de>>(self, mut given: A) -> Result<Vec<u64>, A::Error> {
        let mut numbers = Vec::new();
        while let Some(number) = given.next_element_seed(WholeNumber {
            key: "drops",
            least: 0,
            most: TOML_INTEGER_MAX,
        })? {
            numbers.push(number);
        }
        Ok(numbers)
    }
}

/// 2^63 - 1: the largest integer that TOML can hold, since its integers have 64 bits and a sign.
/// Larger seeds and packet numbers in files are refused.
const TOML_INTEGER_MAX: u64 = i64::MAX.cast_unsigned();
/// 1,280 bytes: the least MTU that a lab or fabric file may state, as IPv6 requires; a smaller one
/// is refused.
const MTU_BYTES_MIN: u16 = 1280;
