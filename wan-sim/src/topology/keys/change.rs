//! One change of a link as files spell it.

use super::spelling::{deserialize_optional_spelling, deserialize_spelling};
use serde::Deserialize;
use units::{BitRate, Fraction, Span};

/// A change of a link at a time after the lab's start. Missing keys stay as they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::topology) struct RawChange {
    #[serde(deserialize_with = "deserialize_spelling")]
    pub(in crate::topology) at: Span,
    #[serde(default, deserialize_with = "deserialize_optional_spelling")]
    pub(in crate::topology) rate: Option<BitRate>,
    #[serde(default, deserialize_with = "deserialize_optional_spelling")]
    pub(in crate::topology) delay: Option<Span>,
    #[serde(default, deserialize_with = "deserialize_optional_spelling")]
    pub(in crate::topology) loss: Option<Fraction>,
    pub(in crate::topology) cut: Option<bool>,
}
