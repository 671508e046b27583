//! Addresses at which the lanes of a peer are reached, by IP address or by host name.
//!
//! The config readers make [`PeerAddresses`]. The diallers of a peer share its [`PeerLocation`], and
//! resolve names while they dial, so that a peer that was lost is found at its new address.

mod peer_location;

pub(super) use peer_location::RESOLUTION_TIMEOUT;
pub use peer_location::{PeerLocation, UNRESOLVED_NAME_REMEDY};

use super::lane_addresses::LaneAddresses;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// An address at which lanes of a peer are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerAddress {
    /// An IP address and a UDP port.
    Ip(SocketAddr),
    /// A host name, which the system resolves, and a UDP port.
    Name {
        /// The name, in lower case.
        host: String,
        /// The port.
        port: u16,
    },
}

impl PeerAddress {
    /// Returns the IP address and port; `None` for a host name.
    pub fn ip_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(address) => Some(*address),
            Self::Name { .. } => None,
        }
    }

    /// Returns the host name; `None` for an IP address.
    pub fn host_name(&self) -> Option<&str> {
        match self {
            Self::Ip(_) => None,
            Self::Name { host, .. } => Some(host),
        }
    }

    /// Returns the UDP port.
    pub fn port(&self) -> u16 {
        match self {
            Self::Ip(address) => address.port(),
            Self::Name { port, .. } => *port,
        }
    }
}

impl fmt::Display for PeerAddress {
    /// Prints the address as it stands in a fabric file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// One address or several, over which the lanes of a peer are distributed as over [`LaneAddresses`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerAddresses(Vec<PeerAddress>);

impl PeerAddresses {
    /// Creates the addresses of a peer. Returns `None` if there is none, two have the same IP address
    /// or name, or IPv4 and IPv6 are mixed.
    pub fn from_addresses(addresses: Vec<PeerAddress>) -> Option<Self> {
        let known: Vec<SocketAddr> = addresses.iter().filter_map(PeerAddress::ip_address).collect();
        let names: Vec<&str> = addresses.iter().filter_map(PeerAddress::host_name).collect();
        let names_differ = (1..names.len()).all(|at| !names[..at].contains(&names[at]));
        let fit = known.is_empty() || LaneAddresses::from_addresses(&known).is_some();
        (!addresses.is_empty() && names_differ && fit).then_some(Self(addresses))
    }

    /// Makes the address of lanes that all have one host name.
    pub fn of_host_name(name: &str, port: u16) -> Self {
        Self(vec![PeerAddress::Name { host: name.to_ascii_lowercase(), port }])
    }

    /// Returns all addresses, at least one.
    pub fn all(&self) -> &[PeerAddress] {
        &self.0
    }

    /// Returns the address of lane 0.
    pub fn first(&self) -> &PeerAddress {
        &self.0[0]
    }

    /// Returns the number of addresses, at least 1.
    pub fn count(&self) -> u16 {
        u16::try_from(self.0.len()).unwrap_or(u16::MAX)
    }

    /// Returns the address of lane `lane`: address number `lane` modulo their number.
    pub fn of_lane(&self, lane: u16) -> &PeerAddress {
        &self.0[usize::from(lane % self.count())]
    }

    /// Returns whether an address is a host name.
    pub fn have_names(&self) -> bool {
        self.0.iter().any(|address| address.host_name().is_some())
    }

    /// Returns the first of the addresses that is no host name.
    pub fn first_ip_address(&self) -> Option<SocketAddr> {
        self.0.iter().find_map(PeerAddress::ip_address)
    }

    /// Returns the addresses as IP addresses; `None` if one is a host name.
    pub fn without_names(&self) -> Option<LaneAddresses> {
        let known: Option<Vec<SocketAddr>> = self.0.iter().map(PeerAddress::ip_address).collect();
        LaneAddresses::from_addresses(&known?)
    }
}

impl From<LaneAddresses> for PeerAddresses {
    /// Makes addresses without names.
    fn from(addresses: LaneAddresses) -> Self {
        Self(addresses.all().map(PeerAddress::Ip).collect())
    }
}

impl From<SocketAddr> for PeerAddresses {
    /// Makes the addresses of lanes that all have one IP address.
    fn from(address: SocketAddr) -> Self {
        Self(vec![PeerAddress::Ip(address)])
    }
}

/// Returns whether a socket that is bound to `own` sends to `ip`: both are of one family, or `own` is
/// the unspecified address of IPv6, which takes both.
pub fn is_reached_from_peer_address(own: IpAddr, ip: IpAddr) -> bool {
    own.is_ipv4() == ip.is_ipv4() || (own.is_ipv6() && own.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_do_not_fit_together_are_invalid() {
        let named = |host: &str, port| PeerAddress::Name { host: host.to_owned(), port };
        let at = |text: &str| PeerAddress::Ip(text.parse().expect("an address"));
        let (one, other) = (at("10.0.0.1:7400"), at("10.0.0.2:7400"));
        let mixed = PeerAddresses::from_addresses(vec![one.clone(), named("gw", 1), other]);
        let mixed = mixed.expect("valid");
        assert_eq!((mixed.count(), mixed.of_lane(4)), (3, &named("gw", 1)));
        assert_eq!(mixed.without_names(), None);
        for bad in [
            vec![],
            vec![one.clone(), one.clone()],
            vec![named("gw", 1), named("gw", 2)],
            vec![one, named("gw", 1), at("[::1]:7400")],
        ] {
            assert_eq!(PeerAddresses::from_addresses(bad), None);
        }
    }
}
