//! A UDP socket that gathers the packets of a lane's turn into few send calls.
//!
//! quinn hands over at most ten packets at a time, and lets other tasks run after twenty. The socket
//! keeps them until no more can leave in the same call, or until the turn of the lane ends. Packets
//! leave in the order in which quinn made them. No packet waits for a timer.
//!
//! **The end of a turn.** A lane's executor polls woken tasks in order, and puts a task that wakes
//! itself behind the others. The socket wakes [`GatheringSocketTurnEnd`] with each transmit that waits. When that
//! task is polled, everything that was ready has run once, so it sends. It goes behind the others
//! only if quinn has made `DRIVER_TURN_PACKETS` packets since its last poll, since quinn's driver
//! then has more. Those packets joined the batch, or made it leave. A batch has at most 64 packets, so
//! it leaves by the fifth poll.
//!
//! **No room.** A batch that the kernel has no room for is kept. What cannot join it is refused with
//! `WouldBlock` until it has left, so that quinn waits for room as well. The inner socket has no
//! readiness then, and its pollers wake quinn and [`GatheringSocketTurnEnd`].
//!
//! **Other errors.** The system's socket logs them, once a minute, and reports success. Where another
//! socket does report an error, the packets that waited are lost as on the network. Only a transmit
//! that did not wait returns it.
//!
//! **The end of the lane.** A socket that is dropped sends what waits.

use super::packet_batch::{PacketBatch, batch_packet_count, batch_packets_per_transmit};
use crate::lock::lock_ignoring_poison;
use crate::observe::metrics::LaneMetrics;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime, UdpPoller};
use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker, ready};

/// 20 packets: after so many, quinn's driver of a connection lets other tasks run, although it has
/// more to send. If quinn made as many in a lane's turn, the packets gathered so far stay for the
/// next turn.
/// Tested by `a_lane_with_more_to_send_fills_its_calls`.
const DRIVER_TURN_PACKETS: usize = 20;

/// A UDP socket that gathers packets between quinn and the socket of the host.
struct GatheringSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    /// Bytes of UDP payload in the longest packets.
    packet_bytes: usize,
    /// Whether each packet is handed to the system by itself.
    one_by_one: bool,
    metrics: LaneMetrics,
    waiting: Mutex<WaitingPackets>,
}

/// The packets that wait, and the task that ends their wait.
struct WaitingPackets {
    batch: PacketBatch,
    /// Packets from quinn since [`GatheringSocketTurnEnd`] was last polled.
    turn_packets: usize,
    turn_end: Waker,
}

/// The task that sends the packets of a turn when nothing follows them. It ends with the socket.
struct GatheringSocketTurnEnd {
    socket: Weak<GatheringSocket>,
    /// The poller of the inner socket while that one has no room.
    poller: Option<Pin<Box<dyn UdpPoller>>>,
}

/// Wraps the socket of a lane so that its packets, of up to `packet_bytes`, leave in few send calls.
/// With `one_by_one` each leaves by itself. Call it on the executor of the lane, which is `runtime`.
pub fn make_gathering_socket(
    inner: Arc<dyn AsyncUdpSocket>,
    runtime: &dyn Runtime,
    packet_bytes: u16,
    one_by_one: bool,
    metrics: LaneMetrics,
) -> Arc<dyn AsyncUdpSocket> {
    let batch = PacketBatch::new();
    let turn_end = Waker::noop().clone();
    let waiting = Mutex::new(WaitingPackets { batch, turn_packets: 0, turn_end });
    let packet_bytes = usize::from(packet_bytes).max(1);
    let socket = Arc::new(GatheringSocket { inner, packet_bytes, one_by_one, metrics, waiting });
    runtime
        .spawn(Box::pin(GatheringSocketTurnEnd { socket: Arc::downgrade(&socket), poller: None }));
    socket
}

impl GatheringSocket {
    /// Returns how many packets the inner socket takes in one call. It may become 1 when a network
    /// card turns out to have no segmentation offload.
    fn segments_max(&self) -> usize {
        if self.one_by_one { 1 } else { self.inner.max_transmit_segments() }
    }

    /// Sends the packets that wait in one call. On any error but the one below they are lost.
    ///
    /// # Errors
    /// `WouldBlock`: the kernel has no room, and the packets still wait.
    fn send_batch(&self, batch: &mut PacketBatch) -> io::Result<()> {
        let Some(transmit) = batch.as_transmit() else { return Ok(()) };
        match self.send_now(&transmit) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            Ok(()) | Err(_) => {
                batch.clear();
                Ok(())
            }
        }
    }

    /// Hands packets to the inner socket, and counts them.
    ///
    /// # Errors
    /// The errors of the inner socket, which has taken no packet then.
    fn send_now(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.inner.try_send(transmit)?;
        self.metrics.send_calls.inc();
        self.metrics.sent_packets.inc_by(batch_packet_count(transmit) as u64);
        Ok(())
    }
}

impl AsyncUdpSocket for GatheringSocket {
    /// Makes a poller of the inner socket, which has room when the packets that wait can leave.
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    /// Sends packets, or keeps a copy of them until the end of the turn.
    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let segments_max = self.segments_max();
        let mut waiting = lock_ignoring_poison(&self.waiting);
        let WaitingPackets { batch, turn_packets, turn_end } = &mut *waiting;
        if !batch.append(transmit, segments_max) {
            self.send_batch(batch)?;
            if !batch.append(transmit, segments_max) {
                self.send_now(transmit)?;
            }
        }
        *turn_packets += batch_packet_count(transmit);
        if batch.is_complete(segments_max) {
            // Without room it waits for the end of the turn, which waits for room.
            let _ = self.send_batch(batch);
        }
        if !batch.is_empty() {
            turn_end.wake_by_ref();
        }
        Ok(())
    }

    /// Receives datagrams from the inner socket.
    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(context, buffers, meta)
    }

    /// Returns the address of the inner socket.
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    /// Returns how many packets quinn should make at a time.
    fn max_transmit_segments(&self) -> usize {
        batch_packets_per_transmit(self.packet_bytes, self.segments_max())
    }

    /// Returns the limit of the inner socket, by which quinn sizes its receive buffers.
    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    /// Returns whether the inner socket's packets may be fragmented.
    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

impl Future for GatheringSocketTurnEnd {
    type Output = ();

    /// Sends the packets that wait, unless quinn has more for them or the kernel has no room.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let Some(socket) = this.socket.upgrade() else { return Poll::Ready(()) };
        let mut waiting = lock_ignoring_poison(&socket.waiting);
        let WaitingPackets { batch, turn_packets, turn_end } = &mut *waiting;
        turn_end.clone_from(context.waker());
        if std::mem::take(turn_packets) >= DRIVER_TURN_PACKETS && !batch.is_empty() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        while socket.send_batch(batch).is_err() {
            let poller =
                this.poller.get_or_insert_with(|| Arc::clone(&socket.inner).create_io_poller());
            if ready!(poller.as_mut().poll_writable(context)).is_err() {
                // The executor ends, and drops the socket.
                return Poll::Ready(());
            }
        }
        this.poller = None;
        Poll::Pending
    }
}

impl Drop for GatheringSocket {
    /// Sends the packets that wait, and ends the task that would have sent them.
    fn drop(&mut self) {
        let mut waiting = lock_ignoring_poison(&self.waiting);
        let _ = self.send_batch(&mut waiting.batch);
        waiting.turn_end.wake_by_ref();
    }
}

impl fmt::Debug for GatheringSocket {
    /// Prints the inner socket for logs, without the packets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatheringSocket").field("inner", &self.inner).finish_non_exhaustive()
    }
}
