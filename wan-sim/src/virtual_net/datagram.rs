//! A datagram in flight through the virtual network.

use crate::{Delivery, PacketName};
use bytes::Bytes;
use quinn::udp::EcnCodepoint;
use std::net::SocketAddr;

/// A datagram in flight.
#[derive(Debug, Clone)]
pub(super) struct Datagram {
    pub(super) source: SocketAddr,
    pub(super) ecn: Option<EcnCodepoint>,
    pub(super) payload: Bytes,
    /// The packet's name on the link that it comes off last; `None` before the link, behind a port,
    /// and once the link is replaced.
    pub(super) on_link: Option<PacketName>,
}

impl Datagram {
    /// Returns the datagram after a link, which may have marked it or flipped a bit. `name` is the
    /// name of the packet on the link.
    pub(super) fn after_link(mut self, name: PacketName, delivery: Delivery) -> Self {
        self.on_link = Some(name);
        if delivery.marked.is_some() {
            self.ecn = Some(EcnCodepoint::Ce);
        }
        if let Some(bit) = delivery.corrupt_bit
            && !self.payload.is_empty()
        {
            let mut payload = self.payload.to_vec();
            let bit = bit as usize % (payload.len() * 8);
            payload[bit / 8] ^= 1 << (bit % 8);
            self.payload = payload.into();
        }
        self
    }
}
