//! The relay's thread: deliver what is due, wait, take what has arrived.

use super::pipe::{FlowId, Pipe, Read};
use super::shared::{BACKWARD, FLOWS_MAX, FORWARD, LIMITS, RelayState, lock};
use super::socket::{Datagrams, RelaySocket, Route};
use crate::clock::{RunClock, thread_cpu};
use crate::priority;
use crate::{Delivery, Packet, PacketName};
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
    reads: Vec<Read>,
    /// The deliveries of the datagrams of one read.
    arrivals: Vec<(PacketName, Delivery)>,
}

/// One client address at one listener, with a socket of its own towards the target.
struct Flow {
    listener: usize,
    client: Route,
    target: SocketAddr,
    upstream: RelaySocket,
    used: TimeNs,
    batches_under_way: u32,
}

#[derive(Clone, Copy)]
enum PacketSource {
    Listener(usize),
    Flow(FlowId),
}

impl RelayPump {
    pub(super) fn new(
        listeners: Vec<(RelaySocket, SocketAddr)>,
        shared: Arc<Mutex<RelayState>>,
        life: UnixStream,
    ) -> io::Result<Self> {
        let clock = lock(&shared).clock.clone();
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
            arrivals: Vec::new(),
            reads: (0..quinn_udp::BATCH_SIZE).map(|_| Read::default()).collect(),
        })
    }

    pub(super) fn run(mut self) -> io::Result<()> {
        // The default slack of 50 us would delay every packet by as much.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
        priority::raise();
        let (mut reaped, mut counted) = (TimeNs::default(), TimeNs::default());
        let (mut last, mut accounted) = (self.now(), TimeNs::default());
        // From here on, being held up is noticed.
        self.life.write_all(&[0])?;
        loop {
            self.deliver();
            let now = self.now();
            if now.since(reaped) >= FLOW_IDLE {
                self.reap(now);
                reaped = now;
            }
            let Some(ready) = self.wait()? else {
                return Ok(());
            };
            let now = self.now();
            let gap = Span::from_ns(now.since(last).ns().saturating_sub(HEARTBEAT.ns()));
            last = now;
            if gap > LIMITS.read_gap {
                lock(&self.shared).fidelity.read(gap, &LIMITS);
                self.count_overflows();
            }
            if now.since(counted) >= OVERFLOWS_COUNTED_EVERY {
                self.count_overflows();
                counted = now;
            }
            if now.since(accounted) >= HEARTBEAT {
                lock(&self.shared).fidelity.worked(thread_cpu());
                accounted = now;
            }
            if !lock(&self.shared).moved.iter().all(Vec::is_empty) {
                self.apply_moves();
            }
            for source in ready {
                self.receive(source);
            }
        }
    }

    fn now(&self) -> TimeNs {
        self.clock.now()
    }

    /// Counts packets that sockets lost before they were read, which is not the link's doing.
    fn count_overflows(&self) {
        let listeners = self.listeners.iter().map(|(port, _)| port.overflowed());
        let flows = self.flows.values().map(|flow| flow.upstream.overflowed());
        let overflowed = self.overflowed_before + listeners.chain(flows).sum::<u64>();
        let mut shared = lock(&self.shared);
        let more = overflowed.saturating_sub(shared.own.overflowed);
        shared.own.overflowed += more;
        shared.fidelity.dropped(more);
    }

    /// Takes over what the relay's handle changed.
    fn apply_moves(&mut self) {
        let mut shared = lock(&self.shared);
        for (direction, pipe) in [(FORWARD, &mut self.forward), (BACKWARD, &mut self.backward)] {
            for flow in pipe.move_to(&std::mem::take(&mut shared.moved[direction])) {
                if let Some(flow) = self.flows.get_mut(&flow) {
                    flow.batches_under_way += 1;
                }
            }
        }
    }

    fn deliver(&mut self) {
        let now = self.now();
        let mut sent = Vec::new();
        while let Some(batch) = self.forward.pop_due(now) {
            if let Some(flow) = self.flows.get_mut(&batch.flow) {
                flow.batches_under_way -= 1;
                let target = Route { address: flow.target, from: None };
                // Those before it took their time.
                let late = self.clock.now().since(batch.due());
                sent.push((late, flow.upstream.send(&target, &batch.outgoing())));
            }
            self.forward.recycle(batch);
        }
        while let Some(batch) = self.backward.pop_due(now) {
            if let Some(flow) = self.flows.get_mut(&batch.flow) {
                flow.batches_under_way -= 1;
                let (listener, _) = &self.listeners[flow.listener];
                let late = self.clock.now().since(batch.due());
                sent.push((late, listener.send(&flow.client, &batch.outgoing())));
            }
            self.backward.recycle(batch);
        }
        if sent.is_empty() {
            return;
        }
        let mut shared = lock(&self.shared);
        for (late, refused) in sent {
            shared.fidelity.delivered(late);
            shared.fidelity.dropped(refused);
            shared.own.send_errors += refused;
        }
    }

    /// Waits for packets or for the next delivery; `None` when the relay shall end.
    fn wait(&self) -> io::Result<Option<Vec<PacketSource>>> {
        let mut fds = vec![
            PollFd::new(&self.life, PollFlags::IN),
            PollFd::new(&self.flows_ready, PollFlags::IN),
        ];
        fds.extend(self.listeners.iter().map(|(port, _)| PollFd::new(port, PollFlags::IN)));
        let due = [self.forward.next_due(), self.backward.next_due()].into_iter().flatten().min();
        let wait = due.map_or(HEARTBEAT, |due| due.since(self.now()).min(HEARTBEAT));
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

    /// Takes packets that have arrived at `source`, but not so many that deliveries would be late.
    fn receive(&mut self, source: PacketSource) {
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
        let taken = port.receive(&mut buffers, &mut metas).unwrap_or(0);
        let now = self.now();
        for (read, meta) in reads.iter_mut().zip(&metas).take(taken) {
            (read.len, read.segment_bytes) = (meta.len, meta.stride.max(1));
            self.accept(now, source, meta, read);
        }
        self.reads = reads;
    }

    /// Offers each datagram of `read` to the link, and keeps those that will arrive.
    fn accept(&mut self, now: TimeNs, source: PacketSource, meta: &RecvMeta, read: &mut Read) {
        let datagrams = read.len.div_ceil(read.segment_bytes).max(1);
        let id = match source {
            PacketSource::Flow(id) if self.flows[&id].target == meta.addr => id,
            PacketSource::Flow(_) => {
                lock(&self.shared).own.foreign += datagrams as u64;
                return;
            }
            PacketSource::Listener(index) => match self.flow(index, meta) {
                Some(id) => id,
                None => {
                    let mut shared = lock(&self.shared);
                    shared.own.no_flow += datagrams as u64;
                    shared.fidelity.dropped(datagrams as u64);
                    return;
                }
            },
        };
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        flow.used = now;
        let (direction, pipe) = match source {
            PacketSource::Listener(_) => (FORWARD, &mut self.forward),
            PacketSource::Flow(_) => (BACKWARD, &mut self.backward),
        };
        let headers = if meta.addr.ip().to_canonical().is_ipv4() { 28 } else { 48 };
        let (len, segment_bytes) = (read.len, read.segment_bytes);
        let part = |index: usize| {
            let from = index * segment_bytes;
            from..len.min(from + segment_bytes)
        };
        self.arrivals.clear();
        let mut shared = lock(&self.shared);
        let first = shared.links[direction].counters().packets;
        for index in 0..datagrams {
            // A datagram is at most 64 KiB.
            let ip_bytes = part(index).len() as u32 + headers;
            let packet = Packet { ip_bytes, ecn_capable: meta.ecn.is_some() };
            self.arrivals.extend(shared.offer(direction, now, packet).deliveries());
        }
        if pipe.adopt(id, meta.ecn, read, &self.arrivals) {
            flow.batches_under_way += 1;
            return;
        }
        for (name, delivery) in &self.arrivals {
            let datagram = &read.buffer[part((name.number - first) as usize)];
            let began = pipe.push(id, meta.ecn, datagram, *name, *delivery);
            flow.batches_under_way += u32::from(began);
        }
    }

    /// The flow of a client, made when it is new.
    fn flow(&mut self, listener: usize, meta: &RecvMeta) -> Option<FlowId> {
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
                client: Route { address: meta.addr, from: meta.dst_ip },
                target,
                upstream,
                used: TimeNs::default(),
                batches_under_way: 0,
            },
        );
        Some(id)
    }

    fn reap(&mut self, now: TimeNs) {
        let (flow_ids, overflowed) = (&mut self.flow_ids, &mut self.overflowed_before);
        self.flows.retain(|_, flow| {
            let keep = flow.batches_under_way > 0 || now.since(flow.used) < FLOW_IDLE;
            if !keep {
                flow_ids.remove(&(flow.listener, flow.client.address));
                *overflowed += flow.upstream.overflowed();
            }
            keep
        });
    }
}

impl super::pipe::Batch {
    fn outgoing(&self) -> Datagrams<'_> {
        Datagrams { data: &self.data, segment_bytes: self.segment_bytes, ecn: self.ecn }
    }
}

/// The longest wait, so that a longer one means that the thread was held up.
const HEARTBEAT: Span = Span::from_ms(10);

/// How often the sockets are asked what they lost.
const OVERFLOWS_COUNTED_EVERY: Span = Span::from_ms(100);

/// Flows read before deliveries have their turn; the others are next.
const FLOWS_READY_MAX: usize = 64;

/// A flow without packets for this long is forgotten.
const FLOW_IDLE: Span = Span::from_secs(120);

/// 65,536 bytes: the kernel joins at most so many bytes of datagrams in one read.
const DATAGRAMS_BYTES_MAX: usize = 65_536;
