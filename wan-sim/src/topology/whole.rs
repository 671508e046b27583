//! Whole numbers in files: an invalid one is refused with its key and the accepted range.

use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Unexpected, Visitor};
use std::fmt;
use std::num::NonZeroU32;

pub(super) fn gap<'de, D: Deserializer<'de>>(file: D) -> Result<Option<NonZeroU32>, D::Error> {
    Ok(NonZeroU32::new(within(file, "gap", 1, u32::MAX)?))
}

pub(super) fn limit_packets<'de, D: Deserializer<'de>>(
    file: D,
) -> Result<Option<NonZeroU32>, D::Error> {
    Ok(NonZeroU32::new(within(file, "limit_packets", 1, u32::MAX)?))
}

pub(super) fn overhead_bytes<'de, D: Deserializer<'de>>(file: D) -> Result<Option<u16>, D::Error> {
    within(file, "overhead_bytes", 0, u16::MAX).map(Some)
}

pub(super) fn mtu<'de, D: Deserializer<'de>>(file: D) -> Result<Option<u16>, D::Error> {
    within(file, "mtu", MTU_MIN, u16::MAX).map(Some)
}

pub(super) fn seed<'de, D: Deserializer<'de>>(file: D) -> Result<Option<u64>, D::Error> {
    within(file, "seed", 0, MOST).map(Some)
}

pub(super) fn drops<'de, D: Deserializer<'de>>(file: D) -> Result<Option<Vec<u64>>, D::Error> {
    file.deserialize_any(PacketNumbers).map(Some)
}

fn within<'de, D, T>(file: D, key: &'static str, least: T, most: T) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Into<u64> + TryFrom<u64>,
{
    let whole = Whole { key, least: least.into(), most: most.into() };
    let number = whole.deserialize(file)?;
    T::try_from(number).map_err(|_| D::Error::custom(format!("`{key}` is out of its range")))
}

struct Whole {
    key: &'static str,
    least: u64,
    most: u64,
}

impl<'de> DeserializeSeed<'de> for Whole {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, file: D) -> Result<u64, D::Error> {
        file.deserialize_any(self)
    }
}

impl Visitor<'_> for Whole {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, least, most } = self;
        write!(f, "for `{key}` a whole number from {least} to {most}")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        let positive = u64::try_from(number).ok();
        let within = positive.filter(|number| (self.least..=self.most).contains(number));
        within.ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
    }
}

struct PacketNumbers;

impl<'de> Visitor<'de> for PacketNumbers {
    type Value = Vec<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("for `drops` the numbers of packets from 0, such as [3, 7]")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut given: A) -> Result<Vec<u64>, A::Error> {
        let mut numbers = Vec::new();
        while let Some(number) =
            given.next_element_seed(Whole { key: "drops", least: 0, most: MOST })?
        {
            numbers.push(number);
        }
        Ok(numbers)
    }
}

/// The largest integer of TOML.
const MOST: u64 = i64::MAX.cast_unsigned();
/// 1280 bytes: the least MTU of IPv6.
const MTU_MIN: u16 = 1280;
