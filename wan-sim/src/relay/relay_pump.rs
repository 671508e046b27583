//! The relay's thread: deliver what is due, wait, take what has arrived.

use super::datagram_batch::FlowId;
use super::pipe::{Pipe, ReadBuffer};
use super::queued_datagrams::{QueuedDatagram, QueuedDatagrams};
use super::relay_socket::{RelaySocket, SocketRoute};
use super::relay_state::{BACKWARD_LINK, FLOWS_MAX, FORWARD_LINK, RelayState};
use crate::fidelity::READ_GAP_MAX;
use crate::mutex::lock_mutex;
use crate::priority;
use crate::run_clock::{RunClock, thread_cpu_run_clock};
use crate::{Delivery, Packet, PacketFlow, PacketName};
use quinn_udp::RecvMeta;
use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::BTreeMap;
use std::io::{self, IoSliceMut, Read as _, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use units::{Span, TimeNs};

/// The state of the relay's thread.
pub(super) struct RelayPump {
    clock: RunClock,
    shared: Arc<Mutex<RelayState>>,
    /// Readable when the relay's handle wants an end; closed when this thread ends.
    life: UnixStream,
    listeners: Vec<(RelaySocket, SocketAddr)>,
    flows: BTreeMap<FlowId, Flow>,
    /// Readable when some flow is: however many there are, one waits for it.
    flows_ready: OwnedFd,
    flow_ids: BTreeMap<(usize, SocketAddr), FlowId>,
    flows_made: u64,
    /// Packets that the sockets of forgotten flows had lost.
    overflowed_before: u64,
    forward: Pipe,
    backward: Pipe,
    queued: QueuedDatagrams,
    reads: Vec<ReadBuffer>,
    /// The deliveries of the datagrams of one read.
    arrivals: Vec<(PacketName, Delivery)>,
}

/// One client address at one listener, with a socket of its own towards the target.
struct Flow {
    listener: usize,
    client: SocketRoute,
    target: SocketAddr,
    upstream: RelaySocket,
    used: TimeNs,
    batches_under_way: u32,
}

/// The socket that packets arrive at.
#[derive(Clone, Copy)]
enum PacketSource {
    Listener(usize),
    Flow(FlowId),
}

impl RelayPump {
    /// Makes the state of a relay without flows; each of `listeners` is a socket with its target.
    pub(super) fn new(
        listeners: Vec<(RelaySocket, SocketAddr)>,
        shared: Arc<Mutex<RelayState>>,
        life: UnixStream,
    ) -> io::Result<Self> {
        let clock = lock_mutex(&shared).clock.clone();
        let flows_ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self {
            clock,
            shared,
            life,
            listeners,
            flows: BTreeMap::new(),
            flows_ready,
            overflowed_before: 0,
            flow_ids: BTreeMap::new(),
            flows_made: 0,
            forward: Pipe::default(),
            backward: Pipe::default(),
            queued: QueuedDatagrams::default(),
            arrivals: Vec::new(),
            reads: (0..quinn_udp::BATCH_SIZE).map(|_| ReadBuffer::default()).collect(),
        })
    }

    /// Relays packets until the handle stops the thread. Signals the handle when the thread is
    /// ready.
    pub(super) fn run(mut self) -> io::Result<()> {
        // The default slack of 50 us would delay every packet by as much.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
        priority::raise_thread_priority();
        let (mut reaped, mut counted) = (TimeNs::default(), TimeNs::default());
        let (mut last, mut accounted) = (self.now(), TimeNs::default());
        // From here on, a delay of this thread is measured.
        self.life.write_all(&[0])?;
        loop {
            self.settle_queues();
            self.deliver_due();
            let now = self.now();
            if now.since(reaped) >= FLOW_IDLE_MAX {
                self.remove_idle_flows(now);
                reaped = now;
            }
            let Some(ready) = self.wait_for_packets()? else {
                return Ok(());
            };
            let now = self.now();
            let gap = Span::from_ns(now.since(last).ns().saturating_sub(HEARTBEAT_INTERVAL.ns()));
            last = now;
            if gap > READ_GAP_MAX {
                lock_mutex(&self.shared).fidelity.record_read(gap);
                self.count_overflows();
            }
            if now.since(counted) >= OVERFLOW_COUNT_INTERVAL {
                self.count_overflows();
                counted = now;
            }
            if now.since(accounted) >= HEARTBEAT_INTERVAL {
                lock_mutex(&self.shared).fidelity.record_cpu_time(thread_cpu_run_clock());
                accounted = now;
            }
            if !lock_mutex(&self.shared).moved.iter().all(Vec::is_empty) {
                self.apply_moves();
            }
            for source in ready {
                self.receive_packets(source);
            }
        }
    }

    /// Returns the time since the relay started.
    fn now(&self) -> TimeNs {
        self.clock.now()
    }

    /// Counts packets that sockets lost before they were read, which is not the link's doing.
    fn count_overflows(&self) {
        let listeners = self.listeners.iter().map(|(port, _)| port.overflowed_datagrams());
        let flows = self.flows.values().map(|flow| flow.upstream.overflowed_datagrams());
        let overflowed = self.overflowed_before + listeners.chain(flows).sum::<u64>();
        let mut shared = lock_mutex(&self.shared);
        let more = overflowed.saturating_sub(shared.own.overflowed);
        shared.own.overflowed += more;
        shared.fidelity.record_drops(more);
    }

    /// Puts the datagrams into the pipe whose delivery a queue has decided, and drops others.
    fn settle_queues(&mut self) {
        let waiting: Vec<_> = self.queued.directions().collect();
        for direction in waiting {
            let now = self.now();
            let decided = lock_mutex(&self.shared).take_decided(direction, now);
            for decided in decided {
                let Some(queued) = self.queued.remove(direction, decided.packet) else { continue };
                let Some(flow) = self.flows.get_mut(&queued.flow) else { continue };
                flow.batches_under_way -= 1;
                let Some(delivery) = decided.fate.delivery() else { continue };
                let forward = direction == FORWARD_LINK;
                let pipe = if forward { &mut self.forward } else { &mut self.backward };
                let QueuedDatagram { flow: id, ecn, data } = queued;
                let began = pipe.push_datagram(id, ecn, &data, decided.packet, delivery);
                flow.batches_under_way += u32::from(began);
            }
        }
    }

    /// Moves packets in flight to the arrival times that changes of the links gave them.
    fn apply_moves(&mut self) {
        // Those decided before the change may be among the moved ones.
        self.settle_queues();
        let mut shared = lock_mutex(&self.shared);
        for (direction, pipe) in
            [(FORWARD_LINK, &mut self.forward), (BACKWARD_LINK, &mut self.backward)]
        {
            for flow in pipe.move_packets(&std::mem::take(&mut shared.moved[direction])) {
                if let Some(flow) = self.flows.get_mut(&flow) {
                    flow.batches_under_way += 1;
                }
            }
        }
    }

    /// Sends the batches that are due in both directions.
    fn deliver_due(&mut self) {
        let now = self.now();
        let mut sent = Vec::new();
        while let Some(batch) = self.forward.pop_due_batch(now) {
            if let Some(flow) = self.flows.get_mut(&batch.flow) {
                flow.batches_under_way -= 1;
                let target = SocketRoute { address: flow.target, from: None };
                // Those before it took their time.
                let late = self.clock.now().since(batch.due());
                sent.push((late, flow.upstream.send_datagrams(&target, &batch.as_datagrams())));
            }
            self.forward.recycle_batch(batch);
        }
        while let Some(batch) = self.backward.pop_due_batch(now) {
            if let Some(flow) = self.flows.get_mut(&batch.flow) {
                flow.batches_under_way -= 1;
                let (listener, _) = &self.listeners[flow.listener];
                let late = self.clock.now().since(batch.due());
                sent.push((late, listener.send_datagrams(&flow.client, &batch.as_datagrams())));
            }
            self.backward.recycle_batch(batch);
        }
        if sent.is_empty() {
            return;
        }
        let mut shared = lock_mutex(&self.shared);
        for (late, refused) in sent {
            shared.fidelity.record_delivery(late);
            shared.fidelity.record_drops(refused);
            shared.own.send_errors += refused;
        }
    }

    /// Waits for packets or for the next delivery. Returns the sockets with packets; `None` when
    /// the relay shall end.
    fn wait_for_packets(&self) -> io::Result<Option<Vec<PacketSource>>> {
        let mut fds = vec![
            PollFd::new(&self.life, PollFlags::IN),
            PollFd::new(&self.flows_ready, PollFlags::IN),
        ];
        fds.extend(self.listeners.iter().map(|(port, _)| PollFd::new(port, PollFlags::IN)));
        let due = [self.forward.next_due(), self.backward.next_due(), self.next_decision()];
        let due = due.into_iter().flatten().min();
        let wait =
            due.map_or(HEARTBEAT_INTERVAL, |due| due.since(self.now()).min(HEARTBEAT_INTERVAL));
        let wait = Timespec { tv_sec: 0, tv_nsec: wait.ns().cast_signed() };
        match rustix::event::poll(&mut fds, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        if ready(&fds[0]) && (&self.life).read(&mut [0; 64])? == 0 {
            return Ok(None);
        }
        let listeners = fds[2..].iter().enumerate().filter(|(_, fd)| ready(fd));
        let mut sources: Vec<_> =
            listeners.map(|(index, _)| PacketSource::Listener(index)).collect();
        if ready(&fds[1]) {
            let mut events = [const { MaybeUninit::uninit() }; FLOWS_READY_MAX];
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let (events, _) = epoll::wait(&self.flows_ready, &mut events, Some(&at_once))?;
            sources.extend(events.iter().map(|event| PacketSource::Flow(FlowId(event.data.u64()))));
        }
        Ok(Some(sources))
    }

    /// Returns when a queue next decides the fate of a waiting datagram; `None` if none waits.
    fn next_decision(&self) -> Option<TimeNs> {
        let mut waiting = self.queued.directions().peekable();
        waiting.peek()?;
        let shared = lock_mutex(&self.shared);
        waiting.filter_map(|direction| shared.links[direction].next_decision()).min()
    }

    /// Reads packets that have arrived at `source`, in one call so that deliveries are not late,
    /// and offers them to the link.
    fn receive_packets(&mut self, source: PacketSource) {
        let mut reads = std::mem::take(&mut self.reads);
        let mut metas = [RecvMeta::default(); quinn_udp::BATCH_SIZE];
        let mut buffers: Vec<_> = reads
            .iter_mut()
            .map(|read| {
                read.buffer.resize(DATAGRAMS_BYTES_MAX, 0);
                IoSliceMut::new(&mut read.buffer)
            })
            .collect();
        let port = match source {
            PacketSource::Listener(index) => &self.listeners[index].0,
            PacketSource::Flow(id) => &self.flows[&id].upstream,
        };
        // An error belongs to a packet sent earlier, and is gone when read.
        let taken = port.receive_datagrams(&mut buffers, &mut metas).unwrap_or(0);
        let now = self.now();
        for (read, meta) in reads.iter_mut().zip(&metas).take(taken) {
            (read.len, read.segment_bytes) = (meta.len, meta.stride.max(1));
            self.accept_datagrams(now, source, meta, read);
        }
        self.reads = reads;
    }

    /// Offers each datagram of `read` to the link, and puts those that will arrive into the pipe.
    fn accept_datagrams(
        &mut self,
        now: TimeNs,
        source: PacketSource,
        meta: &RecvMeta,
        read: &mut ReadBuffer,
    ) {
        let datagrams = read.len.div_ceil(read.segment_bytes).max(1);
        let id = match source {
            PacketSource::Flow(id) if self.flows[&id].target == meta.addr => id,
            PacketSource::Flow(_) => {
                lock_mutex(&self.shared).own.foreign += datagrams as u64;
                return;
            }
            PacketSource::Listener(index) => match self.flow_of_client(index, meta) {
                Some(id) => id,
                None => {
                    let mut shared = lock_mutex(&self.shared);
                    shared.own.no_flow += datagrams as u64;
                    shared.fidelity.record_drops(datagrams as u64);
                    return;
                }
            },
        };
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        flow.used = now;
        let client = flow.client.address;
        let (direction, pipe, key) = match source {
            PacketSource::Listener(_) => {
                (FORWARD_LINK, &mut self.forward, PacketFlow::between(client, flow.target))
            }
            PacketSource::Flow(_) => {
                (BACKWARD_LINK, &mut self.backward, PacketFlow::between(flow.target, client))
            }
        };
        let headers = if meta.addr.ip().to_canonical().is_ipv4() { 28 } else { 48 };
        let (len, segment_bytes) = (read.len, read.segment_bytes);
        let part = |index: usize| {
            let from = index * segment_bytes;
            from..len.min(from + segment_bytes)
        };
        self.arrivals.clear();
        let mut shared = lock_mutex(&self.shared);
        let first = shared.links[direction].counters().packets;
        // One path takes all flows, so recordings need not name them.
        let hashes = shared.links[direction].path_count() > 1;
        let key = if hashes { key } else { PacketFlow::default() };
        for index in 0..datagrams {
            // A datagram is at most 64 KiB.
            let ip_bytes = part(index).len() as u32 + headers;
            let packet = Packet { ip_bytes, ecn_capable: meta.ecn.is_some(), flow: key };
            let offered = shared.offer(direction, now, packet);
            self.arrivals.extend(offered.deliveries());
            for name in offered.queued() {
                let data = read.buffer[part(index)].to_vec();
                let queued = QueuedDatagram { flow: id, ecn: meta.ecn, data };
                self.queued.insert(direction, name, queued);
                flow.batches_under_way += 1;
            }
        }
        if pipe.adopt_buffer(id, meta.ecn, read, &self.arrivals) {
            flow.batches_under_way += 1;
            return;
        }
        for (name, delivery) in &self.arrivals {
            let datagram = &read.buffer[part((name.number - first) as usize)];
            let began = pipe.push_datagram(id, meta.ecn, datagram, *name, *delivery);
            flow.batches_under_way += u32::from(began);
        }
    }

    /// Returns the flow of the client that `meta` names, with a new upstream socket for a new
    /// client. `None` at [`FLOWS_MAX`] flows or when no socket can be had.
    fn flow_of_client(&mut self, listener: usize, meta: &RecvMeta) -> Option<FlowId> {
        if let Some(id) = self.flow_ids.get(&(listener, meta.addr)) {
            return Some(*id);
        }
        if self.flows.len() >= FLOWS_MAX {
            return None;
        }
        let (_, target) = self.listeners[listener];
        let any = match target {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let upstream = RelaySocket::bind(any).ok()?;
        let id = FlowId(self.flows_made);
        let data = epoll::EventData::new_u64(id.0);
        epoll::add(&self.flows_ready, &upstream, data, epoll::EventFlags::IN).ok()?;
        self.flows_made += 1;
        self.flow_ids.insert((listener, meta.addr), id);
        self.flows.insert(
            id,
            Flow {
                listener,
                client: SocketRoute { address: meta.addr, from: meta.dst_ip },
                target,
                upstream,
                used: TimeNs::default(),
                batches_under_way: 0,
            },
        );
        Some(id)
    }

    /// Removes flows without packets for [`FLOW_IDLE_MAX`] and without any under way, and closes
    /// their sockets.
    fn remove_idle_flows(&mut self, now: TimeNs) {
        let (flow_ids, overflowed) = (&mut self.flow_ids, &mut self.overflowed_before);
        self.flows.retain(|_, flow| {
            let keep = flow.batches_under_way > 0 || now.since(flow.used) < FLOW_IDLE_MAX;
            if !keep {
                flow_ids.remove(&(flow.listener, flow.client.address));
                *overflowed += flow.upstream.overflowed_datagrams();
            }
            keep
        });
    }
}

/// 10 ms: the longest sleep of the relay's thread, a chosen time. A longer gap between two reads
/// shows that the thread was delayed.
const HEARTBEAT_INTERVAL: Span = Span::from_ms(10);

/// 100 ms: the interval at which the relay asks the kernel how many datagrams its full sockets
/// dropped. The time is chosen, since each question is a system call.
const OVERFLOW_COUNT_INTERVAL: Span = Span::from_ms(100);

/// 64 flows (client addresses): the most whose packets the relay reads before it delivers packets
/// again; other flows are read next. The number is chosen, so that deliveries are not late.
const FLOWS_READY_MAX: usize = 64;

/// 120 s: the relay removes a flow (one client address) without packets for so long, and closes its
/// socket. It checks flows at the same interval. The time is chosen; RFC 4787 asks as much of a
/// NAT.
const FLOW_IDLE_MAX: Span = Span::from_secs(120);

/// 65,536 bytes: the most bytes of datagrams that the kernel joins in one read (UDP GRO), hence the
/// length of a read buffer.
const DATAGRAMS_BYTES_MAX: usize = 65_536;
