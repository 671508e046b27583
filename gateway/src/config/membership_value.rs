//! Values of config files about who goes on together, and with which fabric: votes of regions, the patience
//! with silences, the silence of a gateway that is lost, the version of a fabric.

use super::config_value::{FromConfigValue, ValueType, config_value_type, parse_u32_config_value};
use hier_collectives::topology::Patience;
use toml::de::DeValue;
use units::Span;

/// The votes of a region, from 0 to 100: sums fit 32 bits, and no region needs finer ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct VoteCount(pub(super) u16);

impl FromConfigValue for VoteCount {
    /// Name, TOML type and accepted form of a number of votes, as faults and docs show them.
    const VALUE_TYPE: ValueType =
        config_value_type("vote count", "integer", "a whole number from 0 to 100");
    /// Reads a number of votes: an integer from 0 to 100.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        let votes = u16::try_from(parse_u32_config_value(value)?).ok()?;
        (0..=100).contains(&votes).then_some(Self(votes))
    }
}

/// The number of a version of a fabric, from 1 to 1,000,000,000: far more than any deployment needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct FabricNumber(pub(super) u64);

impl FromConfigValue for FabricNumber {
    /// Name, TOML type and accepted form of a version, as faults and docs show them.
    const VALUE_TYPE: ValueType =
        config_value_type("version", "integer", "a whole number from 1 to 1000000000");
    /// Reads a version: an integer from 1 to 1,000,000,000.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        let number = parse_u32_config_value(value)?;
        (1..=1_000_000_000).contains(&number).then_some(Self(number.into()))
    }
}

/// A silence after which a gateway counts as lost, from 3 s to 15 s. Several keep-alives, which come each
/// second, fit the shortest; QUIC ends a connection after the longest.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerSilence(pub(super) Span);

impl FromConfigValue for PeerSilence {
    /// Name, TOML type and accepted form of a silence, as faults and docs show them.
    const VALUE_TYPE: ValueType =
        config_value_type("silence", "string", "a time from 3 s to 15 s, such as \"5 s\"");
    /// Reads a silence: a time from 3 s to 15 s.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        let silence: Span = value.as_str()?.parse().ok()?;
        (Span::from_secs(3)..=Span::from_secs(15)).contains(&silence).then_some(Self(silence))
    }
}

impl FromConfigValue for Patience {
    /// Name, TOML type and accepted form of a patience, as faults and docs show them.
    const VALUE_TYPE: ValueType =
        config_value_type("patience", "string", "a time from 6 s to 15 min, such as \"30 s\"");
    /// Reads a patience: a time from 6 s to 15 min.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        Self::of_span(value.as_str()?.parse().ok()?).ok()
    }
}
