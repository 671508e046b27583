//! How long the packets of a lane are.

use crate::wan::connect::endpoint::{LaneSpec, PeerLink};
use hier_collectives::ids::GatewayId;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The longest IP packets that are looked for, in bytes: jumbo frames. A loopback device says
/// 65,536; an endpoint holds room for some thousand of the longest packets.
const SOUGHT_MAX: u16 = 9000;
/// Bytes of UDP payload in the longest packets that an endpoint takes at least: as QUIC's own do.
pub(crate) const TAKEN_MIN: u16 = 1472;
/// The largest UDP payload there is,
const MAX_DATAGRAM: u16 = 65_507;
/// and the largest that every path of QUIC takes.
const MIN_DATAGRAM: u16 = 1200;

/// How long the packets of a lane to one peer are, in bytes of UDP payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packets {
    /// As the fabric says. A burst of losses is not taken for a path that lets no large packets
    /// through, which would leave a lane with small ones for a while.
    Pinned { bytes: u16 },
    /// Up to what gets through.
    Discovered { bytes_max: u16 },
}

/// How long the packets of a lane are, by peer. Asked once: the socket, and what peers are told,
/// are for the longest.
pub(crate) struct Lengths(BTreeMap<GatewayId, Packets>);

impl Lengths {
    /// As the fabric says; where it says nothing, up to what this host sends to each peer.
    pub fn of(spec: &LaneSpec, lane: u16) -> Self {
        let own = spec.listen.of(lane).ip();
        let to = |peer: &PeerLink| {
            if spec.mtu_pinned {
                return Packets::Pinned { bytes: datagram_bytes(spec.fabric.mtu(), own) };
            }
            let sent = spec.host.mtu_towards(own, peer.addresses.of(lane));
            let mtu = sent.map_or(spec.fabric.mtu(), |mtu| mtu.min(SOUGHT_MAX));
            Packets::Discovered { bytes_max: datagram_bytes(mtu, own) }
        };
        Self(spec.peers.iter().map(|(id, peer)| (*id, to(peer))).collect())
    }

    /// To one peer.
    pub fn to(&self, peer: &PeerLink) -> Packets {
        self.0[&peer.id]
    }

    /// Bytes of UDP payload in the longest to any peer.
    pub fn longest(&self) -> u16 {
        let bytes = |packets: &Packets| match packets {
            Packets::Pinned { bytes } | Packets::Discovered { bytes_max: bytes } => *bytes,
        };
        self.0.values().map(bytes).fold(MIN_DATAGRAM, u16::max)
    }
}

/// Bytes of UDP payload in an IP packet of `mtu` bytes from `address`.
fn datagram_bytes(mtu: u16, address: IpAddr) -> u16 {
    let headers = if address.is_ipv4() { 28 } else { 48 };
    mtu.saturating_sub(headers).clamp(MIN_DATAGRAM, MAX_DATAGRAM)
}
