//! One socket of the virtual network, as quinn wants it.

use super::medium::{GSO_SEGMENTS_MAX, Medium};
use super::net_clock::NetTimer;
use super::net_state::SocketKey;
use crate::mutex::lock_mutex;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use units::TimeNs;

/// A socket of the virtual network.
#[derive(Debug)]
pub(super) struct VirtualSocket {
    medium: Medium,
    address: SocketAddr,
    /// Its place among the sockets that share the address.
    place: u16,
    timer: Mutex<NetTimer>,
}

impl VirtualSocket {
    /// Makes a socket, whose inbox the caller has made.
    pub(super) fn new(medium: Medium, (address, place): SocketKey) -> Self {
        let timer = Mutex::new(medium.clock.new_timer());
        Self { medium, address, place, timer }
    }

    /// Moves the datagrams that are due into `buffers`; returns how many.
    ///
    /// Where none is due, registers the task of `cx` and returns the time of the next datagram as
    /// the error.
    fn take_due_datagrams(
        &self,
        cx: &Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Result<usize, Option<TimeNs>> {
        let now = self.medium.now();
        let mut state = self.medium.lock_state();
        let socket = (self.address, self.place);
        let others = state.admit_to_ingress(now, self.address.ip(), socket);
        // They take the lock only when they run, after this.
        others.into_iter().for_each(Waker::wake);
        let Some(inbox) = state.inboxes.get_mut(&socket) else {
            return Err(None);
        };
        let mut taken = 0;
        for (buffer, meta) in buffers.iter_mut().zip(metas) {
            match inbox.datagrams.first_entry() {
                Some(entry) if entry.key().0 <= now => {
                    let datagram = entry.remove();
                    inbox.bytes -= datagram.payload.len();
                    // Like a kernel, cut what the reader left no room for.
                    let len = datagram.payload.len().min(buffer.len());
                    buffer[..len].copy_from_slice(&datagram.payload[..len]);
                    *meta = RecvMeta::default();
                    meta.addr = datagram.source;
                    meta.len = len;
                    meta.stride = len;
                    meta.ecn = datagram.ecn;
                    meta.dst_ip = Some(self.address.ip());
                    taken += 1;
                }
                _ => break,
            }
        }
        if taken > 0 {
            return Ok(taken);
        }
        let due = state.next_due(socket);
        if let Some(inbox) = state.inboxes.get_mut(&socket) {
            inbox.reader = Some((cx.waker().clone(), due));
        }
        Err(due)
    }

    /// Polls for the time `at` on the clock of the network.
    fn poll_sleep_until(&self, at: TimeNs, cx: &mut Context<'_>) -> Poll<()> {
        lock_mutex(&self.timer).poll_until(at, cx)
    }
}

impl AsyncUdpSocket for VirtualSocket {
    /// Returns a poller that is always ready: a queue drops packets and never blocks the sender.
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritableSocket)
    }

    /// Sends a transmit; never fails, since lost packets are counted instead.
    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.medium.send_transmit(self.address, transmit);
        Ok(())
    }

    /// Receives datagrams that are due, or waits for the next one.
    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.take_due_datagrams(cx, buffers, metas) {
                Ok(taken) => return Poll::Ready(Ok(taken)),
                Err(None) => return Poll::Pending,
                Err(Some(due)) => ready!(self.poll_sleep_until(due, cx)),
            }
        }
    }

    /// Returns the address that the socket is bound to.
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    /// Returns how many segments one transmit may hold.
    fn max_transmit_segments(&self) -> usize {
        GSO_SEGMENTS_MAX
    }

    /// Returns 1: each buffer receives one datagram.
    fn max_receive_segments(&self) -> usize {
        1
    }

    /// Returns false: packets are never fragmented.
    fn may_fragment(&self) -> bool {
        false
    }
}

impl Drop for VirtualSocket {
    /// Frees the address, once no other socket has it, and drops the datagrams that wait in its inbox.
    fn drop(&mut self) {
        let mut state = self.medium.lock_state();
        state.inboxes.remove(&(self.address, self.place));
        let address = self.address;
        if !state.inboxes.keys().any(|(other, _)| *other == address) {
            state.shared.remove(&address);
        }
    }
}

/// A poller that always reports room, since a link's queue drops and never blocks the sender.
#[derive(Debug)]
struct AlwaysWritableSocket;

impl UdpPoller for AlwaysWritableSocket {
    /// Returns that the socket can send, which it always can.
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
