//! Packets that go into a link, and their flows.

pub(super) mod packet_fate;

use crate::random_stream::mix_random_bits;
use std::net::{IpAddr, SocketAddr};

/// The flow of a packet: a number that its addresses and ports determine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct PacketFlow(u64);

impl PacketFlow {
    /// Makes the flow with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the flow of packets from `source` to `destination`. The way back is another flow.
    pub fn between(source: SocketAddr, destination: SocketAddr) -> Self {
        let mixed = |key: u64, word: u64| mix_random_bits(key ^ word);
        let key = [source, destination].into_iter().fold(0, |key, address| {
            let ip = match address.ip() {
                IpAddr::V4(v4) => u128::from(u32::from(v4)),
                IpAddr::V6(v6) => u128::from(v6),
            };
            let key = mixed(mixed(key, (ip >> 64) as u64), ip as u64);
            mixed(key, u64::from(address.port()))
        });
        Self(key)
    }

    /// Returns the number of the flow.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// A packet as far as a link sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Length of the IP packet in bytes: a UDP payload plus 28 over IPv4, 48 over IPv6.
    pub ip_bytes: u32,
    /// Whether its header allows an ECN CE mark instead of a drop (ECT or CE).
    pub ecn_capable: bool,
    /// The flow, which chooses among parallel paths.
    pub flow: PacketFlow,
}

impl Packet {
    /// Makes a packet of `ip_bytes` that cannot be ECN-marked.
    pub const fn new(ip_bytes: u32) -> Self {
        Self { ip_bytes, ecn_capable: false, flow: PacketFlow(0) }
    }

    /// Makes a packet of `ip_bytes` that can be ECN-marked instead of dropped.
    pub const fn ecn_capable(ip_bytes: u32) -> Self {
        Self { ip_bytes, ecn_capable: true, flow: PacketFlow(0) }
    }

    /// Returns this packet as one of `flow`.
    pub const fn with_flow(self, flow: PacketFlow) -> Self {
        Self { flow, ..self }
    }
}
