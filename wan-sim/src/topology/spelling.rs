//! Quantities in files, each spelled in quotes with its unit.

use serde::de::{Deserializer, Error, Visitor};
use std::marker::PhantomData;
use std::str::FromStr;

pub(super) fn spelled<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err: std::fmt::Display>,
{
    given(deserializer).map(Some)
}

pub(super) fn given<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err: std::fmt::Display>,
{
    deserializer.deserialize_any(Spelling(PhantomData))
}

/// Parses a bare number as its text, so that the error names the missing unit.
struct Spelling<T>(PhantomData<T>);

impl<T: FromStr<Err: std::fmt::Display>> Visitor<'_> for Spelling<T> {
    type Value = T;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a quantity with its unit, in quotes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}
