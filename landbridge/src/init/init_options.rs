//! Options of `landbridge init` with several parts, such as `east=203.0.113.10`.

use gateway::config::is_valid_host_name_value;
use gateway::wan::connect::peer_addresses::PeerAddress;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use units::{BitRate, Fraction, Span};

/// UDP port 7400: the port of a gateway's lanes where `landbridge init` is given an address
/// without a port. The number is chosen.
const FIRST_PORT_DEFAULT: u16 = 7400;

/// A region and the addresses of its gateways: `east=203.0.113.10,203.0.113.11:7500`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InitRegionOption {
    /// Name of the region.
    pub region: String,
    /// The IP address or host name of each gateway, with the UDP port of its lanes.
    pub addresses: Vec<PeerAddress>,
}

impl FromStr for InitRegionOption {
    type Err = String;

    /// Parses a name, `=`, and the addresses of the region's gateways.
    fn from_str(text: &str) -> Result<Self, String> {
        let (region, addresses) = text.split_once('=').ok_or_else(|| {
            format!("`{text}` has no `=`; write NAME=ADDRESS, such as east=203.0.113.10")
        })?;
        Ok(Self {
            region: parse_init_name_option(region)?,
            addresses: parse_init_addresses_option(addresses)?,
        })
    }
}

/// Parses a name of the config files: lower-case letters, digits and inner hyphens.
pub(crate) fn parse_init_name_option(text: &str) -> Result<String, String> {
    match gateway::config::is_valid_config_name_value(text.trim()) {
        true => Ok(text.trim().to_owned()),
        false => Err(format!(
            "`{text}` is no name; write lower-case letters, digits and inner hyphens, at most 63"
        )),
    }
}

/// Parses the addresses of gateways, between commas or spaces.
pub(crate) fn parse_init_addresses_option(text: &str) -> Result<Vec<PeerAddress>, String> {
    let words = text.split([',', ' ']).filter(|word| !word.is_empty());
    let addresses = words.map(parse_init_address_option).collect::<Result<Vec<_>, _>>()?;
    match addresses.is_empty() {
        true => Err("no address; write that at which other regions reach the gateway".to_owned()),
        false => Ok(addresses),
    }
}

/// Parses an IP address or a host name, with or without a UDP port.
fn parse_init_address_option(text: &str) -> Result<PeerAddress, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(PeerAddress::Ip(address));
    }
    if let Ok(address) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Ok(PeerAddress::Ip(SocketAddr::new(address, FIRST_PORT_DEFAULT)));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok().filter(|port| *port != 0)),
        None => (text, Some(FIRST_PORT_DEFAULT)),
    };
    match port {
        Some(port) if is_valid_host_name_value(host) => {
            Ok(PeerAddress::Name { host: host.to_ascii_lowercase(), port })
        }
        _ => Err(format!(
            "`{text}` is no IP address and no host name; write 203.0.113.10, 203.0.113.10:7400, \
             2001:db8::1, [2001:db8::1]:7400, gw.example.net or gw.example.net:7400"
        )),
    }
}

/// A value for every region, `8`, or for the one that it names, `east=8`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InitPerRegionOption<T> {
    /// The region; `None` for every region.
    pub region: Option<String>,
    /// The value.
    pub value: T,
}

impl<T: FromStr<Err: ToString>> FromStr for InitPerRegionOption<T> {
    type Err = String;

    /// Parses a value for every region, or a region's name, `=` and its value.
    fn from_str(text: &str) -> Result<Self, String> {
        let (region, value) = match text.split_once('=') {
            Some((region, value)) => (Some(parse_init_name_option(region)?), value),
            None => (None, text),
        };
        let value = value.trim().parse().map_err(|error: T::Err| error.to_string())?;
        Ok(Self { region, value })
    }
}

impl<T: Clone> InitPerRegionOption<T> {
    /// Returns the value for a region: the last that names it, or else the last for every region;
    /// `None` if there is neither.
    pub fn value_for(all: &[Self], region: &str) -> Option<T> {
        let last =
            |name: Option<&str>| all.iter().rev().find(|option| option.region.as_deref() == name);
        last(Some(region)).or_else(|| last(None)).map(|option| option.value.clone())
    }
}

/// A link and its properties: `east-west=80ms`, `east-west=80ms,10Gbit/s,0.1%`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InitLinkOption {
    /// The names of two regions, joined by a hyphen.
    pub link: String,
    /// Round-trip time without queueing.
    pub rtt: Span,
    /// Rate in each direction, in IP bytes, if known.
    pub rate: Option<BitRate>,
    /// Random loss, if any.
    pub loss: Option<Fraction>,
}

impl FromStr for InitLinkOption {
    type Err = String;

    /// Parses the name of a link, `=`, its round-trip time, and then a rate and a loss in any
    /// order.
    fn from_str(text: &str) -> Result<Self, String> {
        let (link, properties) = text.split_once('=').ok_or_else(|| {
            format!("`{text}` has no `=`; write A-B=RTT[,RATE[,LOSS]], such as east-west=80ms")
        })?;
        let mut words = properties.split(',').map(str::trim);
        let rtt = words.next().unwrap_or_default().parse::<Span>();
        let mut link = Self {
            link: parse_init_link_option(link)?,
            rtt: rtt.map_err(|error| error.to_string())?,
            rate: None,
            loss: None,
        };
        for word in words {
            match (word.parse::<BitRate>(), word.parse::<Fraction>()) {
                (Ok(rate), _) if link.rate.is_none() => link.rate = Some(rate),
                (_, Ok(loss)) if link.loss.is_none() => link.loss = Some(loss),
                _ => {
                    return Err(format!(
                        "`{word}` is neither a rate such as 10Gbit/s nor a loss such as 0.1%, or it \
                         is the second"
                    ));
                }
            }
        }
        Ok(link)
    }
}

/// Parses the name of a link: two names with a hyphen between them, which the fabric's regions tell
/// apart.
fn parse_init_link_option(text: &str) -> Result<String, String> {
    let is_part = |part: &str| gateway::config::is_valid_config_name_value(part);
    let halves = text.match_indices('-').map(|(at, _)| (&text[..at], &text[at + 1..]));
    match halves.into_iter().any(|(one, other)| is_part(one) && is_part(other)) {
        true => Ok(text.to_owned()),
        false => Err(format!("`{text}` is no link; write two regions, such as east-west")),
    }
}
