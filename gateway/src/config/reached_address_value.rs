//! The addresses and host names of fabric files at which peers reach the lanes of a gateway.

use super::config_value::{
    BindAddress, FromConfigValue, ValueType, config_value_type, problem_of_address_config_values,
};
use crate::wan::connect::peer_addresses::{PeerAddress, PeerAddresses};
use std::net::IpAddr;
use toml::de::DeValue;

/// Addresses at which peers reach lanes; neither IP nor port may be unspecified.
#[derive(Debug, Clone)]
pub(super) struct ReachedAddress(pub(super) PeerAddresses);

impl FromConfigValue for ReachedAddress {
    /// Name, TOML type and accepted form of lanes' own addresses, as faults and docs show them.
    const VALUE_TYPE: ValueType = config_value_type(
        "peer address",
        "string or array",
        "an IP address or host name and a UDP port that peers reach, such as \
         \"203.0.113.10:7400\" or \"gw.example.net:7400\"; or an array of such addresses, of \
         different hosts and one family, which lanes use in turn",
    );
    /// Reads the addresses at which peers reach lanes, each of one host and with a port.
    fn parse_config_value(value: &DeValue<'_>) -> Option<Self> {
        let addresses = parse_reached_address_value(value)?;
        let mut known = addresses.all().iter().filter_map(PeerAddress::ip_address);
        let reachable = known.all(|address| unreachable_address_value_kind(address.ip()).is_none());
        reachable.then_some(Self(addresses))
    }
    /// Names the first of the addresses that is at fault, and says why.
    fn problem_of_config_value(value: &DeValue<'_>) -> Option<String> {
        let known = problem_of_address_config_values(value, |address| {
            unreachable_address_value_kind(address.ip())
        });
        let is_name = |value: &DeValue<'_>| value.as_str().is_some_and(is_valid_host_name_value);
        let names = value
            .as_array()
            .map_or(is_name(value), |array| array.iter().any(|entry| is_name(entry.get_ref())));
        known.or_else(|| names.then(|| "has no port".to_owned()))
    }
}

/// Returns the kind of an IP address that other hosts cannot reach as one host; `None` for others.
fn unreachable_address_value_kind(address: IpAddr) -> Option<&'static str> {
    match address {
        _ if address.is_unspecified() => Some("stands for all addresses of a host"),
        _ if address.is_multicast() => Some("is a multicast address, of many hosts"),
        IpAddr::V4(address) if address.is_broadcast() => Some("is the broadcast address"),
        IpAddr::V6(address) if address.is_unicast_link_local() => {
            Some("is a link-local address, which other networks do not reach")
        }
        _ => None,
    }
}

/// Parses one address at which peers reach lanes, or an array of them. Each has an IP address or a host
/// name.
fn parse_reached_address_value(value: &DeValue<'_>) -> Option<PeerAddresses> {
    let address = |value: &DeValue<'_>| match BindAddress::parse_config_value(value) {
        Some(bind) => Some(PeerAddress::Ip(bind.0)),
        None => {
            let (host, port) = value.as_str()?.rsplit_once(':')?;
            let port = port.parse().ok().filter(|port| *port != 0)?;
            let host = is_valid_host_name_value(host).then(|| host.to_ascii_lowercase())?;
            Some(PeerAddress::Name { host, port })
        }
    };
    let addresses = match value.as_array() {
        None => vec![address(value)?],
        Some(array) => {
            let addresses = array.iter().map(|entry| address(entry.get_ref()));
            addresses.collect::<Option<Vec<_>>>()?
        }
    };
    PeerAddresses::from_addresses(addresses)
}

/// Returns whether a text is a host name (RFC 1123): at most 253 letters, digits, hyphens and dots, in
/// labels of 1 to 63, the last of which is no number, as in an IP address.
pub fn is_valid_host_name_value(text: &str) -> bool {
    let is_label = |label: &str| {
        let inner = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        inner && (1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-')
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
    text.len() <= 253 && text.split('.').all(is_label) && !is_number
}
