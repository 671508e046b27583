//! A UDP socket whose segmentation offload (GSO) stays within the largest datagram.
//!
//! The kernel takes up to ten packets of quinn in one call. Ten jumbo packets exceed the largest UDP
//! datagram, so the kernel refuses them. quinn takes the refusal for loss: the path looks like a black hole.
//! The endpoint of a lane wraps its socket here (`endpoint.rs`).

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// 65,507 bytes: the largest UDP payload over IPv4.
const UDP_PAYLOAD_MAX: usize = 65_507;

#[derive(Debug)]
struct GsoLimitedSocket {
    socket: Arc<dyn AsyncUdpSocket>,
    segments_max: usize,
}

/// Wraps `socket` so that it sends at most as many packets of `packet_bytes` at once as fit a datagram, or
/// one packet at a time.
pub fn limit_gso(
    socket: Arc<dyn AsyncUdpSocket>,
    packet_bytes: u16,
    one_by_one: bool,
) -> Arc<dyn AsyncUdpSocket> {
    let offered = if one_by_one { 1 } else { socket.max_transmit_segments() };
    let segments_max = segments_max(offered, packet_bytes);
    Arc::new(GsoLimitedSocket { socket, segments_max })
}

fn segments_max(offered: usize, packet_bytes: u16) -> usize {
    offered.min(UDP_PAYLOAD_MAX / usize::from(packet_bytes)).max(1)
}

impl AsyncUdpSocket for GsoLimitedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.socket).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_send(transmit)
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_recv(context, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.segments_max
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_sent_at_once_fit_a_datagram() {
        assert_eq!(segments_max(10, 1472), 10);
        assert_eq!(segments_max(10, 8872), 7);
        assert_eq!(segments_max(64, 65_507), 1);
        for bytes in 1200..=65_507 {
            assert!(segments_max(64, bytes) * usize::from(bytes) <= UDP_PAYLOAD_MAX);
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
