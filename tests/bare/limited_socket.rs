//! A UDP socket whose send calls stay within the largest datagram, and is otherwise quinn's own.
//!
//! quinn hands the kernel up to ten packets in one call. Ten jumbo packets exceed the largest UDP
//! datagram, and quinn takes the refusal for loss. So jumbo packets would show nothing of quinn.

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// 65,507 bytes: the largest payload of a UDP datagram over IPv4, and so of one send call.
const SEND_CALL_BYTES_MAX: usize = 65_507;

/// A UDP socket that takes at most `segments_max` packets in one send call.
#[derive(Debug)]
pub struct LimitedSocket {
    socket: Arc<dyn AsyncUdpSocket>,
    segments_max: usize,
}

impl LimitedSocket {
    /// Wraps `socket` for packets of `packet_bytes` bytes. With `one_by_one` it sends one at a time.
    pub fn new(socket: Arc<dyn AsyncUdpSocket>, packet_bytes: u16, one_by_one: bool) -> Self {
        let offered = if one_by_one { 1 } else { socket.max_transmit_segments() };
        let fitting = SEND_CALL_BYTES_MAX / usize::from(packet_bytes.max(1));
        Self { socket, segments_max: offered.min(fitting).max(1) }
    }
}

impl AsyncUdpSocket for LimitedSocket {
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
