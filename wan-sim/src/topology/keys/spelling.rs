//! Quantities in files, each spelled in quotes with its unit.

use serde::de::{Deserializer, Error, Visitor};
use std::marker::PhantomData;
use std::str::FromStr;

/// Reads an optional quantity from a quoted text with its unit.
pub(in crate::topology) fn deserialize_optional_spelling<'de, D: Deserializer<'de>, T>(
    deserializer: D,
) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err: std::fmt::Display>,
{
    deserialize_spelling(deserializer).map(Some)
}

/// Reads a quantity from a quoted text with its unit.
pub(in crate::topology) fn deserialize_spelling<'de, D: Deserializer<'de>, T>(
    deserializer: D,
) -> Result<T, D::Error>
where
    T: FromStr<Err: std::fmt::Display>,
{
    deserializer.deserialize_any(Spelling(PhantomData))
}

/// The visitor that parses a quantity. It parses a bare number as text, so that the error names the
/// missing unit.
struct Spelling<T>(PhantomData<T>);

impl<T: FromStr<Err: std::fmt::Display>> Visitor<'_> for Spelling<T> {
    type Value = T;

    /// Says what is accepted, for errors.
    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a quantity with its unit, in quotes")
    }

    /// Parses the quoted text of a quantity.
    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    /// Parses a bare integer as text, which fails with the missing unit.
    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    /// Parses a bare decimal as text, which fails with the missing unit.
    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}
