//! One socket of the virtual network, as quinn wants it.

use super::medium::Medium;
use super::net_clock::Timer;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use units::TimeNs;

#[derive(Debug)]
pub(super) struct Socket {
    medium: Medium,
    address: SocketAddr,
    timer: Mutex<Timer>,
}

impl Socket {
    pub(super) fn new(medium: Medium, address: SocketAddr) -> Self {
        let timer = Mutex::new(medium.clock.timer());
        Self { medium, address, timer }
    }

    /// Takes the packets that are due; otherwise returns the time of the next one.
    fn take_due(
        &self,
        cx: &Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Result<usize, Option<TimeNs>> {
        let now = self.medium.now();
        let mut state = self.medium.lock();
        let others = state.admit(now, self.address.ip(), self.address);
        // They take the lock only when they run, after this.
        others.into_iter().for_each(Waker::wake);
        let Some(inbox) = state.inboxes.get_mut(&self.address) else {
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
        let due = state.next_due(self.address);
        if let Some(inbox) = state.inboxes.get_mut(&self.address) {
            inbox.reader = Some((cx.waker().clone(), due));
        }
        Err(due)
    }

    fn sleep_until(&self, at: TimeNs, cx: &mut Context<'_>) -> Poll<()> {
        self.timer.lock().unwrap_or_else(PoisonError::into_inner).poll_until(at, cx)
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.medium.send(self.address, transmit);
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.take_due(cx, buffers, metas) {
                Ok(taken) => return Poll::Ready(Ok(taken)),
                Err(None) => return Poll::Pending,
                Err(Some(due)) => ready!(self.sleep_until(due, cx)),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn max_transmit_segments(&self) -> usize {
        GSO_SEGMENTS
    }

    fn max_receive_segments(&self) -> usize {
        1
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.medium.lock().inboxes.remove(&self.address);
    }
}

/// A link's queue drops; it never blocks its sender.
#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// 10 segments: the most that quinn puts into one transmit.
const GSO_SEGMENTS: usize = 10;
