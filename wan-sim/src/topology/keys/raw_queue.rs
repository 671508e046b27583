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

impl RawCodel {
    /// Makes CoDel of the keys. RFC 8289 recommends the values of keys that are missing.
    pub(in crate::topology) fn build(self) -> Codel {
        Codel {
            target: self.target.unwrap_or(Codel::RECOMMENDED.target),
            interval: self.interval.unwrap_or(Codel::RECOMMENDED.interval),
        }
    }
}

impl RawRed {
    /// Makes RED of the keys. Its authors recommend the weight where that is missing.
    pub(in crate::topology) fn build(self) -> Red {
        let RawRed { min, max, probability, weight } = self;
        Red { min, max, probability, weight: weight.unwrap_or(RED_WEIGHT_DEFAULT) }
    }
}

impl RawPolicer {
    /// Makes the policer with the rate and the burst of the keys.
    pub(in crate::topology) fn build(self) -> Policer {
        Policer { rate: self.rate, burst: self.burst }
    }
}
