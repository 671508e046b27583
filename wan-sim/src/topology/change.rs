//! One change of a link as files spell it.

use super::spelling::{given, spelled};
use serde::Deserialize;
use units::{BitRate, Fraction, Span};

/// A change of a link at a time after the lab's start. Missing keys stay as they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawChange {
    #[serde(deserialize_with = "given")]
    pub(super) at: Span,
    #[serde(default, deserialize_with = "spelled")]
    pub(super) rate: Option<BitRate>,
    #[serde(default, deserialize_with = "spelled")]
    pub(super) delay: Option<Span>,
    #[serde(default, deserialize_with = "spelled")]
    pub(super) loss: Option<Fraction>,
    pub(super) cut: Option<bool>,
}
