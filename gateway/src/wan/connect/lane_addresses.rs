//! The addresses of a gateway's lanes.
//!
//! The config readers make them; lanes, the daemon and the doctor read them.

use std::net::{IpAddr, SocketAddr};

/// One address or several, over which lanes are distributed: lane `i` uses address `i` modulo their
/// number, at a port `i` above. Several addresses serve several carriers or ports of one link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneAddresses {
    first: SocketAddr,
    others: Vec<SocketAddr>,
}

impl LaneAddresses {
    /// Creates lane addresses from one or more socket addresses. Returns `None` if there is none,
    /// two have the same IP, or IPv4 and IPv6 are mixed. A lane of one family cannot reach one of
    /// the other.
    pub fn from_addresses(addresses: &[SocketAddr]) -> Option<Self> {
        let (first, others) = addresses.split_first()?;
        let differ = |at: usize| others[at..].iter().all(|o| o.ip() != addresses[at].ip());
        let alike = others.iter().all(|other| other.is_ipv4() == first.is_ipv4());
        let valid = alike && (0..others.len()).all(differ);
        valid.then(|| Self { first: *first, others: others.to_vec() })
    }

    /// Returns the address of lane 0.
    pub fn first(&self) -> SocketAddr {
        self.first
    }

    /// Returns the UDP address of lane `lane`: address number `lane` modulo their number, and
    /// `lane` ports above that address's own port.
    pub fn of_lane(&self, lane: u16) -> SocketAddr {
        let index = usize::from(lane) % (1 + self.others.len());
        let address = index.checked_sub(1).map_or(self.first, |at| self.others[at]);
        SocketAddr::new(address.ip(), address.port() + lane)
    }

    /// Returns all addresses as they were given. A lane's port is its number above its address's
    /// port.
    pub fn all(&self) -> impl Iterator<Item = SocketAddr> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    /// Returns the number of addresses, at least 1.
    pub fn count(&self) -> u16 {
        u16::try_from(1 + self.others.len()).unwrap_or(u16::MAX)
    }

    /// Returns whether a lane has the address `ip`, at any port.
    pub fn has_ip(&self, ip: IpAddr) -> bool {
        self.all().any(|address| address.ip() == ip)
    }
}

impl From<SocketAddr> for LaneAddresses {
    /// Makes the addresses of lanes that all have the IP address of lane 0, `first`.
    fn from(first: SocketAddr) -> Self {
        Self { first, others: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn lanes_are_distributed_over_addresses_with_a_port_each() {
        let (one, other) = (address("10.0.0.1:7400"), address("10.1.0.1:7500"));
        let several = LaneAddresses::from_addresses(&[one, other]).expect("valid");
        let lanes: Vec<String> = (0..4).map(|lane| several.of_lane(lane).to_string()).collect();
        assert_eq!(lanes, ["10.0.0.1:7400", "10.1.0.1:7501", "10.0.0.1:7402", "10.1.0.1:7503"]);
        assert_eq!(LaneAddresses::from(one).of_lane(3), address("10.0.0.1:7403"));
        assert_eq!((several.count(), LaneAddresses::from(one).count()), (2, 1));
        assert!(several.has_ip(other.ip()) && !several.has_ip(address("10.2.0.1:1").ip()));
    }

    #[test]
    fn addresses_that_do_not_fit_together_are_invalid() {
        let (one, same) = (address("10.0.0.1:7400"), address("10.0.0.1:7500"));
        for bad in [vec![], vec![one, same], vec![one, address("[::1]:7400")]] {
            assert_eq!(LaneAddresses::from_addresses(&bad), None, "{bad:?}");
        }
    }
}
