//! The state of the network: links, ports, and the datagrams in flight.

use super::datagram::Datagram;
use super::error::{INBOX_BYTES_MAX, Undelivered};
use crate::{
    Decided, EmulatedLink, Fate, LinkSpec, Packet, PacketFates, PacketFlow, PacketName, TraceHash,
    TraceRecord,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound;
use std::task::Waker;
use units::{Span, TimeNs};

/// The state of a virtual network.
#[derive(Debug, Default)]
pub(super) struct NetState {
    pub(super) links: BTreeMap<(IpAddr, IpAddr), EmulatedLink>,
    pub(super) ports: BTreeMap<IpAddr, HostPort>,
    /// The interface MTUs of addresses, where they are known.
    pub(super) interface_mtus: BTreeMap<IpAddr, u16>,
    pub(super) inboxes: BTreeMap<SocketKey, Inbox>,
    /// The addresses that several sockets share: their number, and the function that chooses one.
    pub(super) shared: BTreeMap<SocketAddr, (u16, SocketChoice)>,
    /// Datagrams that have left their link for an address with a port. They enter it in
    /// order of time, once that time has come.
    arriving: BTreeMap<IpAddr, Arriving>,
    /// Datagrams whose fate a queue decides when they leave it, with their receivers.
    queued: BTreeMap<Stage, BTreeMap<PacketName, (SocketAddr, Datagram)>>,
    /// Sockets that nothing reaches or leaves.
    pub(super) muted: BTreeSet<SocketAddr>,
    /// The public addresses of sockets that are not reachable at their own.
    seen_at: BTreeMap<SocketAddr, SocketAddr>,
    sent: u64,
    pub(super) undelivered: Undelivered,
    pub(super) trace: NetStateTrace,
}

/// A socket: its address, and its place among the sockets that share this address, which is 0 for one
/// alone.
pub(super) type SocketKey = (SocketAddr, u16);

/// Returns a number for a datagram with this payload. Of the sockets that share its address, the one
/// whose place is the number modulo theirs gets it.
pub type SocketChoice = fn(payload: &[u8]) -> u16;

/// A link on the way of a datagram, in the order in which datagrams meet them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// The port of the sender's address.
    Egress(IpAddr),
    /// The link from an address to another.
    Link(IpAddr, IpAddr),
    /// The port of the receiver's address.
    Ingress(IpAddr),
}

/// Datagrams with their receivers, by time and then by order of sending.
type Arriving = BTreeMap<(TimeNs, u64), (SocketAddr, Datagram)>;

/// The function that gets every packet of a trace.
type TraceSink = Box<dyn FnMut(&TraceRecord) + Send>;

/// The trace of all packets: a hash, and an optional sink.
#[derive(Default)]
pub(super) struct NetStateTrace {
    pub(super) hash: TraceHash,
    pub(super) sink: Option<TraceSink>,
}

impl NetStateTrace {
    /// Adds a packet to the hash, and passes it to the sink where there is one.
    fn add_record(&mut self, record: &TraceRecord) {
        self.hash.add_record(record);
        if let Some(sink) = &mut self.sink {
            sink(record);
        }
    }
}

impl fmt::Debug for NetStateTrace {
    /// Prints the hash for logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetStateTrace").field("hash", &self.hash).finish_non_exhaustive()
    }
}

/// The port that all links of one address share.
#[derive(Debug, Default)]
pub(super) struct HostPort {
    pub(super) egress: Option<EmulatedLink>,
    pub(super) ingress: Option<EmulatedLink>,
}

/// A socket's datagrams, by delivery time and then by order of sending.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) datagrams: BTreeMap<(TimeNs, u64), Datagram>,
    pub(super) bytes: usize,
    /// The task that waits, and the time until which it sleeps by itself.
    pub(super) reader: Option<(Waker, Option<TimeNs>)>,
}

impl NetState {
    /// Makes or replaces the link from `from` to `to`. Packets in flight on the earlier link lose
    /// their names, so that no change of the new link moves them. Packets that wait in the queue of
    /// the earlier link, under CoDel, are dropped.
    pub(super) fn set_link(&mut self, from: IpAddr, to: IpAddr, link: EmulatedLink) {
        let at_to = self.inboxes.iter_mut().filter(|((address, _), _)| address.ip() == to);
        let in_inboxes = at_to.flat_map(|(_, inbox)| inbox.datagrams.values_mut());
        let arriving = self.arriving.get_mut(&to).into_iter().flat_map(BTreeMap::values_mut);
        let under_way = in_inboxes.chain(arriving.map(|(_, datagram)| datagram));
        under_way
            .filter(|datagram| datagram.source.ip() == from)
            .for_each(|datagram| datagram.on_link = None);
        let waited = self.queued.remove(&Stage::Link(from, to)).unwrap_or_default();
        self.undelivered.dropped += waited.len() as u64;
        self.links.insert((from, to), link);
    }

    /// Sends a datagram at `now` through the sender's port and the link to `destination`.
    pub(super) fn route_datagram(
        &mut self,
        now: TimeNs,
        destination: SocketAddr,
        datagram: Datagram,
    ) {
        let (from, to) = (datagram.source.ip(), destination.ip());
        if self.muted.contains(&datagram.source) || self.muted.contains(&destination) {
            self.trace.add_record(&net_state_trace_record(now, destination, &datagram));
            self.undelivered.muted += 1;
            return;
        }
        if !self.links.contains_key(&(from, to)) {
            let record = net_state_trace_record(now, destination, &datagram);
            self.trace.add_record(&record);
            self.undelivered.no_link += 1;
            return;
        }
        self.enter_stage(Stage::Egress(from), now, destination, datagram);
    }

    /// Offers a datagram to the link of a stage at `now`, and passes it on as its fate has it. A
    /// stage without a link passes it on at `now`.
    fn enter_stage(
        &mut self,
        stage: Stage,
        now: TimeNs,
        destination: SocketAddr,
        datagram: Datagram,
    ) {
        let Some(link) = net_state_link_of_stage(&mut self.links, &mut self.ports, stage) else {
            return self.leave_stage(stage, now, destination, datagram);
        };
        let mut record = net_state_trace_record(now, destination, &datagram);
        let flow = PacketFlow::between(datagram.source, destination);
        let ecn_capable = datagram.ecn.is_some();
        let offered = link.offer(now, Packet { ip_bytes: record.ip_bytes, ecn_capable, flow });
        record.offered = Some(offered);
        self.trace.add_record(&record);
        let PacketFates { number, fate, copy } = offered;
        for (copy, fate) in [(false, Some(fate)), (true, copy)] {
            let Some(fate) = fate else { continue };
            let name = PacketName { number, copy };
            self.take_fate(stage, name, fate, (destination, datagram.clone()));
        }
    }

    /// Delivers, holds or drops a datagram by the fate that the link of `stage` gave to its packet
    /// `name`.
    fn take_fate(
        &mut self,
        stage: Stage,
        name: PacketName,
        fate: Fate,
        (destination, datagram): (SocketAddr, Datagram),
    ) {
        match fate {
            Fate::Drop(_) => {}
            Fate::Queued => {
                let queued = self.queued.entry(stage).or_default();
                queued.insert(name, (destination, datagram));
            }
            Fate::Deliver(delivery) => {
                let after = datagram.after_link(name, delivery);
                self.leave_stage(stage, delivery.at, destination, after);
            }
        }
    }

    /// Passes a datagram on that leaves a stage at `at`: to the next stage, or to the inbox.
    fn leave_stage(
        &mut self,
        stage: Stage,
        at: TimeNs,
        destination: SocketAddr,
        mut datagram: Datagram,
    ) {
        let to = destination.ip();
        match stage {
            Stage::Egress(from) => {
                datagram.on_link = None;
                self.enter_stage(Stage::Link(from, to), at, destination, datagram);
            }
            Stage::Link(..) => {
                if self.ports.get(&to).is_some_and(|port| port.ingress.is_some()) {
                    self.sent += 1;
                    let arriving = self.arriving.entry(to).or_default();
                    arriving.insert((at, self.sent), (destination, datagram));
                } else {
                    self.put_in_inbox(at, destination, datagram);
                }
            }
            Stage::Ingress(_) => {
                datagram.on_link = None;
                self.put_in_inbox(at, destination, datagram);
            }
        }
    }

    /// Passes on the datagrams whose fate queues have decided by `now`.
    pub(super) fn settle_queues(&mut self, now: TimeNs) {
        // In the order of the stages, as one may lead to the next.
        let mut last = None;
        loop {
            let after = last.map_or(Bound::Unbounded, Bound::Excluded);
            let next = self.queued.range((after, Bound::Unbounded)).next();
            let Some(stage) = next.map(|(stage, _)| *stage) else { break };
            last = Some(stage);
            let link = net_state_link_of_stage(&mut self.links, &mut self.ports, stage);
            for Decided { at, packet, ip_bytes, fate } in
                link.map(|link| link.take_decided(now)).unwrap_or_default()
            {
                let queued = self.queued.get_mut(&stage);
                let Some(held) = queued.and_then(|queued| queued.remove(&packet)) else { continue };
                let (source, destination) = (held.1.source, held.0);
                // The datagram's copy has the number of the datagram.
                let offered = Some(PacketFates { number: packet.number, fate, copy: None });
                let record = TraceRecord { now: at, source, destination, ip_bytes, offered };
                self.trace.add_record(&record);
                self.take_fate(stage, packet, fate, held);
            }
        }
        self.queued.retain(|_, queued| !queued.is_empty());
    }

    /// Returns when the next queue decides a fate that the host at `ip` may wait for.
    fn next_decision(&self, ip: IpAddr) -> Option<TimeNs> {
        let stages = self.queued.keys().filter(|stage| match stage {
            Stage::Egress(_) => true,
            Stage::Link(_, to) | Stage::Ingress(to) => *to == ip,
        });
        let decisions = stages.filter_map(|stage| match stage {
            Stage::Egress(from) => self.ports.get(from)?.egress.as_ref()?.next_decision(),
            Stage::Link(from, to) => self.links.get(&(*from, *to))?.next_decision(),
            Stage::Ingress(to) => self.ports.get(to)?.ingress.as_ref()?.next_decision(),
        });
        decisions.min()
    }

    /// Drops the datagrams that are in flight at `now` from `from` to `to`.
    pub(super) fn drop_under_way(&mut self, now: TimeNs, from: IpAddr, to: IpAddr) {
        let mut dropped = 0;
        if let Some(arriving) = self.arriving.get_mut(&to) {
            let lost = arriving.extract_if(.., |_, (_, datagram)| datagram.source.ip() == from);
            dropped += lost.count();
        }
        for (_, inbox) in self.inboxes.iter_mut().filter(|((address, _), _)| address.ip() == to) {
            let after = (now + Span::from_ns(1), 0)..;
            let lost = inbox.datagrams.extract_if(after, |_, d| d.source.ip() == from);
            for (_, datagram) in lost {
                inbox.bytes -= datagram.payload.len();
                dropped += 1;
            }
        }
        let waiting = self.queued.remove(&Stage::Link(from, to)).unwrap_or_default();
        self.undelivered.dropped += (dropped + waiting.len()) as u64;
    }

    /// Moves the datagrams that have reached the host `ip` by `now` into its ingress stage, which
    /// limits the rate of the host. Returns the wakers of the sockets that wait for them, except of `reader`.
    pub(super) fn admit_to_ingress(
        &mut self,
        now: TimeNs,
        ip: IpAddr,
        reader: SocketKey,
    ) -> Vec<Waker> {
        let mut others = Vec::new();
        self.settle_queues(now);
        while let Some(arriving) = self.arriving.get_mut(&ip)
            && let Some(entry) = arriving.first_entry()
            && entry.key().0 <= now
        {
            let ((at, _), (destination, datagram)) = entry.remove_entry();
            let socket = self.socket_of_datagram(destination, &datagram.payload);
            self.enter_stage(Stage::Ingress(ip), at, destination, datagram);
            if socket != Some(reader) {
                others.extend(socket.and_then(|socket| self.waker_for(socket)));
            }
        }
        others
    }

    /// Changes the link from `from` to `to` at `now`. Returns the wakers of readers whose packets
    /// now come sooner; `None` without such a link.
    pub(super) fn set_spec(
        &mut self,
        now: TimeNs,
        from: IpAddr,
        to: IpAddr,
        spec: LinkSpec,
    ) -> Option<Vec<Waker>> {
        let moved = self.links.get_mut(&(from, to))?.set_spec(now, spec);
        self.settle_queues(now);
        let moved: BTreeMap<_, _> = moved.iter().map(|moved| (moved.packet, moved.at)).collect();
        let new_time = |datagram: &Datagram| {
            let name = datagram.on_link.filter(|_| datagram.source.ip() == from)?;
            moved.get(&name).copied()
        };
        for (_, inbox) in self.inboxes.iter_mut().filter(|((address, _), _)| address.ip() == to) {
            rekey_net_state_datagrams(&mut inbox.datagrams, new_time);
        }
        if let Some(arriving) = self.arriving.get_mut(&to) {
            rekey_net_state_datagrams(arriving, |(_, datagram)| new_time(datagram));
        }
        let readers: Vec<_> =
            self.inboxes.keys().filter(|(at, _)| at.ip() == to).copied().collect();
        Some(readers.into_iter().filter_map(|reader| self.waker_for(reader)).collect())
    }

    /// Returns the time at which a socket has to look for datagrams again.
    pub(super) fn next_due(&self, socket: SocketKey) -> Option<TimeNs> {
        let (address, inbox) = (socket.0, self.inboxes.get(&socket)?);
        let arrived = inbox.datagrams.first_key_value().map(|((at, _), _)| *at);
        let arriving = self.arriving.get(&address.ip());
        let arriving = arriving.and_then(|arriving| arriving.first_key_value());
        let arriving = arriving.map(|((at, _), _)| *at);
        arrived.into_iter().chain(arriving).chain(self.next_decision(address.ip())).min()
    }

    /// Returns the public address of the socket at `address`, which is its own unless it was moved.
    pub(super) fn seen_address(&self, address: SocketAddr) -> SocketAddr {
        self.seen_at.get(&address).copied().unwrap_or(address)
    }

    /// Makes `seen_at` the public address of the socket at `address`, which loses its own.
    pub(super) fn move_socket(&mut self, address: SocketAddr, seen_at: SocketAddr) {
        self.seen_at.insert(address, seen_at);
    }

    /// Returns the socket that receives a datagram with this payload for the public address
    /// `destination`. `None` where the socket of that address was moved to another.
    pub(super) fn socket_of_datagram(
        &self,
        destination: SocketAddr,
        payload: &[u8],
    ) -> Option<SocketKey> {
        let address = self.socket_behind(destination)?;
        let place = |(sockets, choose): &(u16, SocketChoice)| choose(payload) % (*sockets).max(1);
        Some((address, self.shared.get(&address).map_or(0, place)))
    }

    /// Returns the address of the socket that receives packets for the public address `address`.
    /// `None` where the socket of that address was moved to another.
    fn socket_behind(&self, address: SocketAddr) -> Option<SocketAddr> {
        let moved = self.seen_at.iter().find(|(_, seen_at)| **seen_at == address);
        let at_home = || (!self.seen_at.contains_key(&address)).then_some(address);
        moved.map(|(address, _)| *address).or_else(at_home)
    }

    /// Removes and returns the waker of the reader of a socket, if the reader would sleep past its
    /// next datagram.
    pub(super) fn waker_for(&mut self, socket: SocketKey) -> Option<Waker> {
        let due = self.next_due(socket)?;
        let inbox = self.inboxes.get_mut(&socket)?;
        let (_, until) = inbox.reader.as_ref()?;
        if until.is_some_and(|until| until <= due) {
            return None;
        }
        inbox.reader.take().map(|(waker, _)| waker)
    }

    /// Puts a datagram that arrives at `at` into the inbox of the socket at `destination`, or
    /// counts it as undelivered.
    fn put_in_inbox(&mut self, at: TimeNs, destination: SocketAddr, datagram: Datagram) {
        let socket = self.socket_of_datagram(destination, &datagram.payload);
        let Some(inbox) = socket.and_then(|socket| self.inboxes.get_mut(&socket)) else {
            self.undelivered.no_socket += 1;
            return;
        };
        if inbox.bytes + datagram.payload.len() > INBOX_BYTES_MAX {
            self.undelivered.inbox_full += 1;
            return;
        }
        self.sent += 1;
        inbox.bytes += datagram.payload.len();
        inbox.datagrams.insert((at, self.sent), datagram);
    }
}

/// Changes the arrival times of datagrams in a map whose keys begin with them, after a link has
/// changed. Each of the `held` datagrams for which `new_time` returns a time gets that time.
fn rekey_net_state_datagrams<T>(
    held: &mut BTreeMap<(TimeNs, u64), T>,
    new_time: impl Fn(&T) -> Option<TimeNs>,
) {
    let moving = held.iter().filter_map(|(key, item)| Some((*key, new_time(item)?)));
    for (key, at) in moving.collect::<Vec<_>>() {
        if let Some(item) = held.remove(&key) {
            held.insert((at, key.1), item);
        }
    }
}

/// Returns the link of a stage; `None` where the stage has none.
fn net_state_link_of_stage<'a>(
    links: &'a mut BTreeMap<(IpAddr, IpAddr), EmulatedLink>,
    ports: &'a mut BTreeMap<IpAddr, HostPort>,
    stage: Stage,
) -> Option<&'a mut EmulatedLink> {
    match stage {
        Stage::Egress(from) => ports.get_mut(&from)?.egress.as_mut(),
        Stage::Link(from, to) => links.get_mut(&(from, to)),
        Stage::Ingress(to) => ports.get_mut(&to)?.ingress.as_mut(),
    }
}

/// Returns the trace record of a datagram that has met no link yet.
fn net_state_trace_record(
    now: TimeNs,
    destination: SocketAddr,
    datagram: &Datagram,
) -> TraceRecord {
    let ip_bytes = net_state_datagram_bytes(destination, datagram.payload.len());
    TraceRecord { now, source: datagram.source, destination, ip_bytes, offered: None }
}

/// Returns the bytes of the IP packet that carries `payload` bytes over UDP to `destination`.
fn net_state_datagram_bytes(destination: SocketAddr, payload: usize) -> u32 {
    let headers = if destination.is_ipv4() { 28 } else { 48 };
    // A transmit is at most 64 KiB.
    u32::try_from(payload).unwrap_or(u32::MAX - headers) + headers
}
