//! The addresses of a gateway's lanes.
//!
//! The config readers make them; lanes, the daemon and the doctor read them.

use hier_collectives::ids::GatewayId;
use std::net::{IpAddr, SocketAddr};

/// One address or several, over which lanes are distributed: of `n` addresses, lane `i` uses the one
/// at `i` modulo `n`. All lanes of an address share its UDP port. Several addresses serve several carriers or
/// network ports of one link.
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

    /// Returns the UDP address of lane `lane`: address number `lane` modulo their number.
    pub fn of_lane(&self, lane: u16) -> SocketAddr {
        let index = usize::from(lane % self.count());
        index.checked_sub(1).map_or(self.first, |at| self.others[at])
    }

    /// Returns the place of a lane among the lanes of its address, which share a UDP port.
    pub fn place_of_lane(&self, lane: u16) -> u16 {
        lane / self.count()
    }

    /// Returns whether two lanes have the same address.
    pub fn have_same_address(&self, one: u16, other: u16) -> bool {
        one % self.count() == other % self.count()
    }

    /// Returns all addresses as they were given.
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

/// Returns whether the gateway `one` dials the lanes to `other`. Each comes with whether it can be
/// dialled. If both can, the first by name does; else the one that cannot.
pub fn dials_lane_addresses(one: (GatewayId, bool), other: (GatewayId, bool)) -> bool {
    let ((one, is_dialled), (other, other_is_dialled)) = (one, other);
    if is_dialled == other_is_dialled { one < other } else { other_is_dialled }
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
    fn lanes_are_distributed_over_addresses() {
        let (one, other) = (address("10.0.0.1:7400"), address("10.1.0.1:7500"));
        let several = LaneAddresses::from_addresses(&[one, other]).expect("valid");
        let lanes: Vec<String> = (0..4).map(|lane| several.of_lane(lane).to_string()).collect();
        assert_eq!(lanes, ["10.0.0.1:7400", "10.1.0.1:7500", "10.0.0.1:7400", "10.1.0.1:7500"]);
        let places: Vec<u16> = (0..5).map(|lane| several.place_of_lane(lane)).collect();
        assert_eq!(places, [0, 0, 1, 1, 2]);
        assert!(several.have_same_address(1, 3) && !several.have_same_address(1, 2));
        assert_eq!(LaneAddresses::from(one).of_lane(3), one);
        assert_eq!(LaneAddresses::from(one).place_of_lane(3), 3);
        assert_eq!((several.count(), LaneAddresses::from(one).count()), (2, 1));
        assert!(several.has_ip(other.ip()) && !several.has_ip(address("10.2.0.1:1").ip()));
    }

    #[test]
    fn the_gateway_that_cannot_be_dialled_dials() {
        let dials = |one, other| {
            let (one, other) = ((GatewayId(0), one), (GatewayId(1), other));
            [dials_lane_addresses(one, other), dials_lane_addresses(other, one)]
        };
        assert_eq!(dials(true, true), [true, false], "the first by name");
        assert_eq!(dials(false, true), [true, false]);
        assert_eq!(dials(true, false), [false, true]);
    }

    #[test]
    fn addresses_that_do_not_fit_together_are_invalid() {
        let (one, same) = (address("10.0.0.1:7400"), address("10.0.0.1:7500"));
        for bad in [vec![], vec![one, same], vec![one, address("[::1]:7400")]] {
            assert_eq!(LaneAddresses::from_addresses(&bad), None, "{bad:?}");
        }
    }
}
