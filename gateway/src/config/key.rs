//! Descriptions of tables and keys: the reader takes values by them, and the reference page
//! lists them. A key that no description has cannot be read.

use super::config_value::{FromConfigValue, ValueType};
use std::marker::PhantomData;

/// When a key must be given, and what holds without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyNeed {
    /// Always required.
    Required,
    /// Required under this condition; the second text says what holds otherwise.
    RequiredIf(&'static str, &'static str),
    /// Optional, with this default.
    Optional(&'static str),
}

/// One key of a table, whose value is read as a `T`.
#[derive(Debug)]
pub(super) struct Key<T> {
    /// The key as the file spells it.
    pub name: &'static str,
    need: KeyNeed,
    example: &'static str,
    meaning: &'static str,
    value: PhantomData<fn() -> T>,
}

/// A key's description without its Rust type.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyDescription {
    /// The key as the file spells it.
    pub name: &'static str,
    /// The form of its value.
    pub value: ValueType,
    /// When it must be given.
    pub need: KeyNeed,
    /// A value as the file spells it.
    pub example: &'static str,
    /// The meaning, with unit and range, in whole sentences.
    pub meaning: &'static str,
    /// Whether the key accepts a value.
    #[cfg(test)]
    pub accepts: fn(&toml::de::DeValue<'_>) -> bool,
}

impl<T: FromConfigValue> Key<T> {
    /// Makes a key of config files from its name, need, example and meaning.
    pub(super) const fn new(
        name: &'static str,
        need: KeyNeed,
        example: &'static str,
        meaning: &'static str,
    ) -> Self {
        Self { name, need, example, meaning, value: PhantomData }
    }

    /// Returns the key's description, in which its Rust type is not a parameter.
    pub(super) const fn description(&self) -> KeyDescription {
        KeyDescription {
            name: self.name,
            value: T::VALUE_TYPE,
            need: self.need,
            example: self.example,
            meaning: self.meaning,
            #[cfg(test)]
            accepts: key_accepts::<T>,
        }
    }
}

/// Returns whether a key of type `T` accepts a value.
#[cfg(test)]
fn key_accepts<T: FromConfigValue>(value: &toml::de::DeValue<'_>) -> bool {
    T::from_config_value(value).is_ok()
}

/// A kind of table: a whole file, or the tables `[name.X]` of one name.
#[derive(Debug)]
pub(super) struct TableKeys {
    /// First part of the table's header, such as `region`; empty for the file itself.
    pub name: &'static str,
    /// Placeholder of the table's own name in the page, such as `REGION`.
    pub placeholder: &'static str,
    /// How many such tables a file needs, and how their names are chosen.
    pub about: &'static str,
    /// The text of a fault when a table of this kind is required and missing.
    pub accepted: &'static str,
    /// Keys with values, in the order of the page.
    pub keys: &'static [KeyDescription],
    /// Tables inside this one.
    pub tables: &'static [&'static TableKeys],
}

impl TableKeys {
    /// Returns the names of all keys and inner tables that a table of this kind may have.
    pub(super) fn key_names(&self) -> impl Iterator<Item = &'static str> {
        let keys = self.keys.iter().map(|key| key.name);
        keys.chain(self.tables.iter().map(|table| table.name))
    }
}
