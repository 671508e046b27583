//! A UDP socket whose segmentation offload (GSO) stays within the largest datagram.
//!
//! The kernel takes up to ten packets of quinn in one call. Ten jumbo packets exceed the largest UDP
//! datagram, so the kernel refuses them. quinn takes the refusal for loss: the path looks like a black hole.
//! The endpoint of a lane wraps its socket here (`lane_endpoint.rs`).

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// 65,507 bytes: the largest payload of a UDP datagram over IPv4, and so of one send call with
/// segmentation offload.
const UDP_PAYLOAD_BYTES_MAX: usize = 65_507;

/// A UDP socket that takes at most `segments_max` packets in one send call.
#[derive(Debug)]
struct GsoLimitedSocket {
    socket: Arc<dyn AsyncUdpSocket>,
    segments_max: usize,
}

/// Wraps `socket` so that packets of `packet_bytes` bytes sent at once fit one UDP datagram. With
/// `one_by_one` it sends one packet at a time.
pub fn limit_gso(
    socket: Arc<dyn AsyncUdpSocket>,
    packet_bytes: u16,
    one_by_one: bool,
) -> Arc<dyn AsyncUdpSocket> {
    let offered = if one_by_one { 1 } else { socket.max_transmit_segments() };
    let segments_max = gso_segments_max(offered, packet_bytes);
    Arc::new(GsoLimitedSocket { socket, segments_max })
}

/// Returns how many packets one send call may take: at most `offered` by the socket, and as many as
/// fit a datagram.
fn gso_segments_max(offered: usize, packet_bytes: u16) -> usize {
    offered.min(UDP_PAYLOAD_BYTES_MAX / usize::from(packet_bytes)).max(1)
}

impl AsyncUdpSocket for GsoLimitedSocket {
    /// Returns the poller of the wrapped socket.
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.socket).create_io_poller()
    }

    /// Sends packets through the wrapped socket.
    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_send(transmit)
    }

    /// Receives datagrams from the wrapped socket.
    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_recv(context, buffers, meta)
    }

    /// Returns the address of the wrapped socket.
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns the limit of packets that quinn hands over in one call.
    fn max_transmit_segments(&self) -> usize {
        self.segments_max
    }

    /// Returns the limit of the wrapped socket, which is not changed.
    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    /// Returns whether the wrapped socket's packets may be fragmented.
    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_sent_at_once_fit_a_datagram() {
        assert_eq!(gso_segments_max(10, 1472), 10);
        assert_eq!(gso_segments_max(10, 8872), 7);
        assert_eq!(gso_segments_max(64, 65_507), 1);
        for bytes in 1200..=65_507 {
            assert!(gso_segments_max(64, bytes) * usize::from(bytes) <= UDP_PAYLOAD_BYTES_MAX);
        }
    }

    #[tokio::test]
    async fn packets_are_sent_one_by_one_on_request() {
        let net = wan_sim::VirtualNet::new();
        let socket = net.bind("10.0.0.1:1".parse().expect("an address")).expect("free");
        assert!(limit_gso(Arc::clone(&socket), 1472, false).max_transmit_segments() > 1);
        assert_eq!(limit_gso(socket, 1472, true).max_transmit_segments(), 1);
    }
}
