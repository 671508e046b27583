//! The address of a collector of spans, as a value of a config file.

use super::config_value::{FromConfigValue, ValueType, config_value_type};
use crate::observe::spans::otlp_endpoint::OtlpEndpoint;
use toml::de::DeValue;

impl FromConfigValue for OtlpEndpoint {
    /// Name, TOML type and accepted form of a collector's address, as faults and docs show them.
    const VALUE_TYPE: ValueType = config_value_type(
        "collector",
        "string",
        "a URL of host and port, such as \"http://127.0.0.1:4318\", with a path if the collector has one",
    );
    /// Reads the URL of a collector.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        value.as_str()?.parse().ok()
    }
    /// Says what is wrong with the URL.
    fn problem_of_config_value(value: &DeValue<'_>) -> Option<String> {
        value.as_str()?.parse::<Self>().err().map(str::to_owned)
    }
}
