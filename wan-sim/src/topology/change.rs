//! One change of a link as files spell it.

use super::spelling::{deserialize_optional_quantity, deserialize_quantity};
use serde::Deserialize;
use units::{BitRate, Fraction, Span};

/// A change of a link at a time after the lab's start. Missing keys stay as they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawChange {
    #[serde(deserialize_with = "deserialize_quantity")]
    pub(super) at: Span,
    #[serde(default, deserialize_with = "deserialize_optional_quantity")]
    pub(super) rate: Option<BitRate>,
    #[serde(default, deserialize_with = "deserialize_optional_quantity")]
    pub(super) delay: Option<Span>,
    #[serde(default, deserialize_with = "deserialize_optional_quantity")]
    pub(super) loss: Option<Fraction>,
    pub(super) cut: Option<bool>,
}
