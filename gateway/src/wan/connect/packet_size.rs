//! The packet size of a lane: pinned by the fabric file, or discovered.

use super::peer_addresses::PeerLocation;
use crate::wan::lane_spec::LaneSpec;
use crate::wan::peer_link::PeerLink;
use hier_collectives::ids::GatewayId;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// 9,000 bytes, a jumbo packet: MTU discovery of a lane tries no longer IP packet, even where an
/// interface offers more. A loopback device offers 65,536 bytes, for which each lane would reserve
/// 128 MiB.
/// Tested by `lanes_find_the_longest_packets_that_get_through`.
const DISCOVERED_MTU_MAX: u16 = 9000;
/// 1,472 bytes of UDP payload: a lane accepts packets up to this length even if its own are
/// shorter, as quinn does by default. A peer's interface may have a larger MTU than ours.
pub(super) const ACCEPTED_PACKET_BYTES_MIN: u16 = 1472;
/// 65,507 bytes: the largest payload of a UDP datagram over IPv4. A greater packet size that
/// follows from a stated MTU is cut to this.
const UDP_PAYLOAD_BYTES_MAX: u16 = 65_507;
/// 1,200 bytes: the UDP payload that every path must carry for QUIC (RFC 9000). A smaller packet
/// size that follows from an MTU is raised to this.
const UDP_PAYLOAD_BYTES_MIN: u16 = 1200;

/// The packet size of a lane to one peer, in bytes of UDP payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PacketSize {
    /// The size that the fabric file states. Without discovery a burst of losses does not look like a
    /// path that drops large packets.
    Pinned { bytes: u16 },
    /// The largest size that gets through.
    Discovered { bytes_max: u16 },
}

/// The packet sizes of a lane, by peer. They are determined once: the socket, and the size announced to
/// peers, are for the longest.
pub(super) struct PacketSizes(BTreeMap<GatewayId, PacketSize>);

impl PacketSizes {
    /// Determines the packet sizes of a lane: those of the fabric file, else up to this host's MTU
    /// towards each peer.
    pub fn for_lane(spec: &LaneSpec, lane: u16) -> Self {
        let own = spec.listen.of_lane(lane).ip();
        let to = |peer: &PeerLink| {
            if spec.mtu_pinned {
                return PacketSize::Pinned { bytes: udp_packet_size(spec.fabric.mtu(), own) };
            }
            let to =
                peer.addresses.as_ref().and_then(PeerLocation::now).map(|now| now.of_lane(lane));
            let sent = to.and_then(|to| spec.host.mtu_towards(own, to));
            let mtu = sent.map_or(spec.fabric.mtu(), |mtu| mtu.min(DISCOVERED_MTU_MAX));
            PacketSize::Discovered { bytes_max: udp_packet_size(mtu, own) }
        };
        Self(spec.peers.iter().map(|(id, peer)| (*id, to(peer))).collect())
    }

    /// Returns the size of packets to one peer.
    pub fn for_peer(&self, peer: &PeerLink) -> PacketSize {
        self.0[&peer.id]
    }

    /// Returns the bytes of UDP payload in the longest packets to any peer.
    pub fn longest_packet_bytes(&self) -> u16 {
        let bytes = |size: &PacketSize| match size {
            PacketSize::Pinned { bytes } | PacketSize::Discovered { bytes_max: bytes } => *bytes,
        };
        self.0.values().map(bytes).fold(UDP_PAYLOAD_BYTES_MIN, u16::max)
    }
}

/// Returns the bytes of UDP payload in an IP packet of `mtu` bytes from `address`, at least
/// [`UDP_PAYLOAD_BYTES_MIN`] and at most [`UDP_PAYLOAD_BYTES_MAX`].
fn udp_packet_size(mtu: u16, address: IpAddr) -> u16 {
    let headers = if address.is_ipv4() { 28 } else { 48 };
    mtu.saturating_sub(headers).clamp(UDP_PAYLOAD_BYTES_MIN, UDP_PAYLOAD_BYTES_MAX)
}
