//! An emulated link takes packets in order of time and decides the fate of each.

use super::conditions::Conditions;
use super::cross::{CrossEngine, CrossPacket, CrossReport, CrossStep};
use super::emulated_path::{EmulatedPath, Entry, Undecided};
use super::link_event::{LinkEvent, LinkEventLabel, LinkEventSink};
use super::link_spec::LinkSpec;
use super::packet::packet_fate::{
    Decided, DropReason, Fate, FateCounters, Moved, PacketFates, PacketName, PacketOwner,
};
use super::packet::{Packet, PacketFlow};
use super::script::{Change, Script};
use crate::random_stream::{RandomStream, mix_random_bits};
use units::{ByteCount, TimeNs};

/// One direction of a link.
///
/// Offer each packet with the time it enters; its fate is returned at once, except
/// [`Fate::Queued`]: a queue under CoDel decides when packets leave it, and
/// [`EmulatedLink::take_decided`] returns those. Times must not go back. A packet meets the loss
/// and the delay of the time it is offered, and the rate of the time it is sent. A [`Script`] is
/// known ahead, so fates take it into account; [`EmulatedLink::set_spec`] is not known ahead, and
/// returns the arrivals that it moves.
///
/// Each impairment has a random stream of its own and draws for every packet offered. So an
/// impairment that is switched on changes no draw of another. Copies and cross traffic draw from
/// streams of their own.
#[derive(Debug)]
pub struct EmulatedLink {
    blackhole: bool,
    /// The longest IP packet that it takes.
    mtu_bytes: u32,
    script: Script,
    duplicate: RandomStream,
    /// At least one.
    paths: Vec<EmulatedPath>,
    /// The seed of the hash that puts flows on paths.
    path_seed: u64,
    cross: CrossEngine,
    /// Packets whose fate is decided and not taken yet.
    decided: Vec<Decided>,
    events: LinkEventSink,
    counters: FateCounters,
}

/// The next thing that happens inside a link by itself. Those of one time happen in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Occurrence {
    Script,
    /// A packet leaves the queue of the path with this index.
    Decision(usize),
    Cross,
}

impl EmulatedLink {
    /// The ASCII text `backward`, XORed into the seed of a link's backward direction, so that the two
    /// directions draw different random numbers.
    pub const BACKWARD_SEED_MASK: u64 = u64::from_be_bytes(*b"backward");

    /// Makes an idle link; `seed` decides every random draw.
    pub fn new(spec: LinkSpec, seed: u64) -> Self {
        Self::scripted(spec, Script::default(), seed)
    }

    /// Makes an idle link that changes and drops packets as `script` says.
    pub fn scripted(spec: LinkSpec, script: Script, seed: u64) -> Self {
        Self::under(spec, script, &Conditions::default(), seed)
    }

    /// Makes an idle link with a script and with these conditions, which
    /// [`Conditions::check`] accepts.
    pub fn under(spec: LinkSpec, script: Script, conditions: &Conditions, seed: u64) -> Self {
        let mut paths = vec![EmulatedPath::new(spec, conditions.capacity.clone(), seed)];
        for (index, parallel) in (1..).zip(&conditions.parallel) {
            let seed = RandomStream::new(seed, &format!("path {index}")).next_u64();
            paths.push(EmulatedPath::new(*parallel, None, seed));
        }
        Self {
            blackhole: false,
            mtu_bytes: u32::MAX,
            script,
            duplicate: RandomStream::new(seed, "duplicate"),
            paths,
            path_seed: RandomStream::new(seed, "paths").next_u64(),
            cross: CrossEngine::new(&conditions.cross, seed),
            decided: Vec::new(),
            events: LinkEventSink::default(),
            counters: FateCounters::default(),
        }
    }

    /// Offers the link a packet that enters at `now`; returns the fate of the packet and of its
    /// copy.
    pub fn offer(&mut self, now: TimeNs, packet: Packet) -> PacketFates {
        self.advance(now);
        let number = self.counters.packets;
        let scripted = self.script.take_drop(number);
        self.counters.packets += 1;
        self.counters.ip_bytes += u64::from(packet.ip_bytes);
        let path = self.path_of(packet.flow);
        let name = PacketName { number, copy: false };
        let entry = self.draw_entry(path, PacketOwner::Offered(name), packet);
        let duplicated = self.duplicate.random_bool(self.paths[path].spec.duplicate());
        let fate = if self.blackhole {
            Fate::Drop(DropReason::Blackhole)
        } else if scripted {
            Fate::Drop(DropReason::Script)
        } else {
            self.paths[path].enter(now, entry, self.mtu_bytes, &self.script)
        };
        self.counters.count_fate(&fate);
        self.emit(now, entry.owner, packet, &fate);
        let copy = (duplicated && !self.blackhole).then(|| {
            self.counters.duplicated += 1;
            let name = PacketName { number, copy: true };
            let entry = self.draw_entry(path, PacketOwner::Offered(name), packet);
            let fate = self.paths[path].enter(now, entry, self.mtu_bytes, &self.script);
            self.emit(now, entry.owner, packet, &fate);
            fate
        });
        PacketFates { number, fate, copy }
    }

    /// Returns when the next fate of a queued packet is decided, or was decided and is not taken
    /// yet; `None` when there is none.
    pub fn next_decision(&self) -> Option<TimeNs> {
        let taken = self.decided.first().map(|decided| decided.at);
        let coming = self.paths.iter().filter_map(EmulatedPath::next_decision);
        coming.chain(taken).min()
    }

    /// Returns the fates that were decided by `now` and not taken yet, in order of time.
    pub fn take_decided(&mut self, now: TimeNs) -> Vec<Decided> {
        self.advance(now);
        std::mem::take(&mut self.decided)
    }

    /// Gives the link the properties `spec` from `now` on, which must not be before the last
    /// packet. All parallel paths get the same properties; a recorded capacity stays.
    ///
    /// Packets that wait are sent at the new rate. Returns the packets whose arrival that moves, in
    /// the order in which they were offered. A queue that becomes smaller drops none of them. Call
    /// [`EmulatedLink::take_decided`] first, since a moved packet may have a fate that nobody took.
    pub fn set_spec(&mut self, now: TimeNs, spec: LinkSpec) -> Vec<Moved> {
        // What happens until now comes before this change.
        self.advance(now);
        let mut moved = Vec::new();
        for path in &mut self.paths {
            for (owner, at) in path.set_spec(now, spec, &self.script) {
                match owner {
                    PacketOwner::Offered(packet) => moved.push(Moved { packet, at }),
                    PacketOwner::Cross(name) => self.cross.move_arrival(name, at),
                }
            }
        }
        moved
    }

    /// Silently drops IP packets of more than `bytes` from now on.
    pub fn set_mtu(&mut self, bytes: u32) {
        self.mtu_bytes = bytes;
    }

    /// Drops every packet offered from now on if `blackhole` is true; passes packets again if not.
    /// Cross traffic is dropped, too.
    pub fn set_blackhole(&mut self, blackhole: bool) {
        self.blackhole = blackhole;
    }

    /// Calls `sink` with every packet that the link drops or marks from now on, in order of time.
    pub fn send_events_to(&mut self, sink: impl FnMut(&LinkEvent) + Send + 'static) {
        self.events = LinkEventSink::new(sink);
    }

    /// Returns the current properties of the link; of its first path where it has several.
    pub fn spec(&self) -> &LinkSpec {
        &self.paths[0].spec
    }

    /// Returns the number of parallel paths, from 1.
    pub fn path_count(&self) -> usize {
        self.paths.len()
    }

    /// Returns the index of the path that packets of `flow` take, from 0.
    pub fn path_of(&self, flow: PacketFlow) -> usize {
        if self.paths.len() == 1 {
            return 0;
        }
        let hash = mix_random_bits(self.path_seed ^ flow.number());
        ((u128::from(hash) * self.paths.len() as u128) >> 64) as usize
    }

    /// Returns the counters since the link was made. They count no cross traffic.
    pub fn counters(&self) -> FateCounters {
        self.counters
    }

    /// Returns the figures of the cross traffic until `now`, in the order of its flows.
    pub fn cross_reports(&mut self, now: TimeNs) -> Vec<CrossReport> {
        self.advance(now);
        self.cross.reports()
    }

    /// Returns the bytes of IP packets that wait for the rate at `now`, on all paths together.
    pub fn queue_bytes(&mut self, now: TimeNs) -> ByteCount {
        self.advance(now);
        ByteCount::new(self.paths.iter_mut().map(|path| path.queue_bytes(now)).sum())
    }

    /// Returns the most bytes of IP packets that ever waited at one time, on the path where most
    /// did.
    pub fn queue_bytes_peak(&self) -> ByteCount {
        let peaks = self.paths.iter().map(EmulatedPath::queue_bytes_peak);
        ByteCount::new(peaks.max().unwrap_or_default())
    }

    /// Lets everything happen that is due by `now`: scripted changes, decisions of queues and the
    /// events of cross traffic, in order of time.
    fn advance(&mut self, now: TimeNs) {
        while let Some((at, occurrence)) = self.next_occurrence().filter(|(at, _)| *at <= now) {
            match occurrence {
                Occurrence::Script => self.follow_script(at),
                Occurrence::Decision(path) => self.decide(at, path),
                Occurrence::Cross => match self.cross.process_event() {
                    CrossStep::Left(packets) => {
                        for packet in packets {
                            let path = self.path_of(packet.packet.flow);
                            let approach = self.paths[path].draw_approach();
                            self.cross.schedule_entry(packet, at + approach);
                        }
                    }
                    CrossStep::Enters(packet) => self.offer_cross(at, packet),
                },
            }
        }
    }

    /// Returns the next thing that happens inside the link by itself, with its time.
    fn next_occurrence(&self) -> Option<(TimeNs, Occurrence)> {
        let script = self.script.next_change().map(|at| (at, Occurrence::Script));
        let cross = self.cross.next_event().map(|at| (at, Occurrence::Cross));
        let paths = self.paths.iter().enumerate();
        let decisions = paths
            .filter_map(|(index, path)| Some((path.next_decision()?, Occurrence::Decision(index))));
        decisions.chain(script).chain(cross).min()
    }

    /// Applies the changes of the script that are due at `now`.
    fn follow_script(&mut self, now: TimeNs) {
        while let Some(change) = self.script.pop_change(now) {
            match change {
                Change::Spec(spec) => self.paths.iter_mut().for_each(|path| path.spec = spec),
                Change::Cut => self.blackhole = true,
                Change::Join => self.blackhole = false,
            }
        }
    }

    /// Decides the fate of the packets that leave the queue of a path at `at`.
    fn decide(&mut self, at: TimeNs, path: usize) {
        let way_back = self.paths[path].spec.delay();
        for (Undecided { owner, packet, .. }, fate) in self.paths[path].decide(at, &self.script) {
            self.emit(at, owner, packet, &fate);
            match owner {
                PacketOwner::Cross(name) => self.cross.take_fate(name, fate, way_back),
                PacketOwner::Offered(name) => {
                    if !name.copy {
                        self.counters.count_fate(&fate);
                    }
                    let ip_bytes = packet.ip_bytes;
                    self.decided.push(Decided { at, packet: name, ip_bytes, fate });
                }
            }
        }
    }

    /// Offers a packet of the cross traffic that enters at `at`.
    fn offer_cross(&mut self, at: TimeNs, CrossPacket { name, packet }: CrossPacket) {
        let path = self.path_of(packet.flow);
        let entry = self.draw_entry(path, PacketOwner::Cross(name), packet);
        let fate = if self.blackhole {
            Fate::Drop(DropReason::Blackhole)
        } else {
            self.paths[path].enter(at, entry, self.mtu_bytes, &self.script)
        };
        self.emit(at, entry.owner, packet, &fate);
        self.cross.take_fate(name, fate, self.paths[path].spec.delay());
    }

    /// Makes the entry of a packet to a path, with its random draws.
    fn draw_entry(&mut self, path: usize, owner: PacketOwner, packet: Packet) -> Entry {
        Entry { owner, packet, draws: self.paths[path].draw_chances(owner) }
    }

    /// Emits the event of a packet that was dropped or marked.
    fn emit(&mut self, at: TimeNs, owner: PacketOwner, packet: Packet, fate: &Fate) {
        let Some(label) = LinkEventLabel::of(fate) else { return };
        let name = match owner {
            PacketOwner::Offered(name) => Some(name),
            PacketOwner::Cross(_) => None,
        };
        let Packet { flow, ip_bytes, .. } = packet;
        self.events.emit(&LinkEvent { at, flow, packet: name, ip_bytes, label });
    }
}
