//! The queue disciplines and the policer of a link as a file spells them.

use super::spelling::{deserialize_optional_spelling, deserialize_spelling};
use crate::link::RED_WEIGHT_DEFAULT;
use crate::{Codel, Policer, Red};
use serde::Deserialize;
use units::{BitRate, ByteCount, Fraction, Span};

/// The keys of CoDel: `{}` for the recommended values.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::topology) struct RawCodel {
    #[serde(deserialize_with = "deserialize_optional_spelling")]
    target: Option<Span>,
    #[serde(deserialize_with = "deserialize_optional_spelling")]
    interval: Option<Span>,
}

/// The keys of RED.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::topology) struct RawRed {
    #[serde(deserialize_with = "deserialize_spelling")]
    min: ByteCount,
    #[serde(deserialize_with = "deserialize_spelling")]
    max: ByteCount,
    #[serde(deserialize_with = "deserialize_spelling")]
    probability: Fraction,
    #[serde(default, deserialize_with = "deserialize_optional_spelling")]
    weight: Option<Fraction>,
}

/// The keys of a policer.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::topology) struct RawPolicer {
    #[serde(deserialize_with = "deserialize_spelling")]
    rate: BitRate,
    #[serde(deserialize_with = "deserialize_spelling")]
    burst: ByteCount,
}

impl From<RawCodel> for Codel {
    /// Makes CoDel of the keys. RFC 8289 recommends the values of keys that are missing.
    fn from(raw: RawCodel) -> Self {
        Self {
            target: raw.target.unwrap_or(Self::RECOMMENDED.target),
            interval: raw.interval.unwrap_or(Self::RECOMMENDED.interval),
        }
    }
}

impl From<RawRed> for Red {
    /// Makes RED of the keys. Its authors recommend the weight where that is missing.
    fn from(raw: RawRed) -> Self {
        let RawRed { min, max, probability, weight } = raw;
        Self { min, max, probability, weight: weight.unwrap_or(RED_WEIGHT_DEFAULT) }
    }
}

impl From<RawPolicer> for Policer {
    /// Makes the policer with the rate and the burst of the keys.
    fn from(raw: RawPolicer) -> Self {
        Self { rate: raw.rate, burst: raw.burst }
    }
}
