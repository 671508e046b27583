//! One path of a link: policer, queue with its discipline, rate, and delay line.

use super::capacity::CapacityRecording;
use super::chances::{Draws, PathChances};
use super::link_spec::LinkSpec;
use super::packet::Packet;
use super::packet::packet_fate::{Delivery, DropReason, Fate, MarkReason, PacketOwner};
use super::queue::{
    Bottleneck, BottleneckRateChange, CodelQueue, Departure, Discipline, Idleness, PolicerBucket,
    QueuedPacket, RedAverage, RedVerdict, Transmission,
};
use super::script::Script;
use crate::random_stream::RandomStream;
use std::collections::BTreeSet;
use std::sync::Arc;
use units::{Span, TimeNs};

/// One path of a link, with a queue and random streams of its own.
#[derive(Debug)]
pub(super) struct EmulatedPath {
    pub(super) spec: LinkSpec,
    chances: PathChances,
    approach: RandomStream,
    bucket: PolicerBucket,
    red: RedAverage,
    codel: CodelQueue<Undecided>,
    bottleneck: Bottleneck,
    queue_bytes_peak: u64,
    /// Latest arrival of a packet that keeps order.
    last_arrival: TimeNs,
    /// Arrivals to come; kept only for a limit on packets.
    inside: BTreeSet<(TimeNs, PacketOwner)>,
}

/// A packet that waits for the decision of CoDel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Undecided {
    pub(super) owner: PacketOwner,
    pub(super) packet: Packet,
    draws: Draws,
    /// The mark that the packet already has.
    marked: Option<MarkReason>,
}

/// A packet that enters a path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) owner: PacketOwner,
    pub(super) packet: Packet,
    pub(super) draws: Draws,
}

impl EmulatedPath {
    /// Makes an idle path; `seed` decides every random draw.
    pub(super) fn new(spec: LinkSpec, capacity: Option<Arc<CapacityRecording>>, seed: u64) -> Self {
        Self {
            spec,
            chances: PathChances::new(seed),
            approach: RandomStream::new(seed, "approach"),
            bucket: PolicerBucket::new(),
            red: RedAverage::new(RandomStream::new(seed, "red")),
            codel: CodelQueue::new(),
            bottleneck: Bottleneck::new(capacity),
            queue_bytes_peak: 0,
            last_arrival: TimeNs::default(),
            inside: BTreeSet::new(),
        }
    }

    /// Draws loss, corruption and delay of the next packet, from the random stream of its kind: offered
    /// packet, copy, or cross traffic.
    pub(super) fn draw_chances(&mut self, owner: PacketOwner) -> Draws {
        self.chances.of_owner(owner).draw(&self.spec)
    }

    /// Decides the fate of a packet that enters at `now`: random loss, MTU, policer, limit of
    /// packets, queue, then delay.
    pub(super) fn enter(
        &mut self,
        now: TimeNs,
        entry: Entry,
        mtu_bytes: u32,
        script: &Script,
    ) -> Fate {
        let Entry { owner, packet, draws } = entry;
        let mut marked = None;
        if let Some(reason) = draws.lost {
            if !(self.spec.losses_marked() && packet.ecn_capable) {
                return Fate::Drop(reason);
            }
            marked = Some(MarkReason::Loss);
        }
        if packet.ip_bytes > mtu_bytes {
            return Fate::Drop(DropReason::Mtu);
        }
        if let Some(policer) = self.spec.policer()
            && !self.bucket.take(now, policer, packet.ip_bytes)
        {
            return Fate::Drop(DropReason::Policer);
        }
        if let Some(limit) = self.spec.limit_packets() {
            while self.inside.first().is_some_and(|(at, _)| *at <= now) {
                self.inside.pop_first();
            }
            if self.inside.len() + self.codel.len() >= limit.get() as usize {
                return Fate::Drop(DropReason::Limit);
            }
        }
        let undecided = Undecided { owner, packet, draws, marked };
        match self.spec.discipline() {
            Discipline::Codel(_) => self.wait_or_send(now, undecided, script),
            // Left over from before a change of the discipline: nothing may overtake them.
            _ if self.codel.first_entered().is_some() => self.wait_or_send(now, undecided, script),
            Discipline::DropTail => self.send(now, undecided, script),
            Discipline::Red(red) => {
                let idleness = self.idleness(now);
                let waiting_bytes = self.bottleneck.waiting_bytes(now);
                match self.red.decide(&red, now, waiting_bytes, idleness) {
                    RedVerdict::Pass => self.send(now, undecided, script),
                    RedVerdict::Notify if packet.ecn_capable => {
                        let marked = undecided.marked.or(Some(MarkReason::Red));
                        self.send(now, Undecided { marked, ..undecided }, script)
                    }
                    RedVerdict::Notify | RedVerdict::Drop => Fate::Drop(DropReason::Red),
                }
            }
        }
    }

    /// Returns when the next packet that waits for its fate leaves the queue; `None` when none
    /// does.
    pub(super) fn next_decision(&self) -> Option<TimeNs> {
        self.codel.first_entered().map(|entered| self.bottleneck.next_start(entered))
    }

    /// Removes the packets that leave the queue of CoDel at `now`, the time of the next decision.
    /// Returns each with its fate.
    pub(super) fn decide(&mut self, now: TimeNs, script: &Script) -> Vec<(Undecided, Fate)> {
        let codel = match self.spec.discipline() {
            Discipline::Codel(codel) => Some(codel),
            Discipline::DropTail | Discipline::Red(_) => None,
        };
        let Departure { dropped, sent } = self.codel.take_next(now, codel);
        let dropped = dropped.into_iter().map(|left| (left.item, Fate::Drop(DropReason::Codel)));
        let mut decided: Vec<_> = dropped.collect();
        if let Some((QueuedPacket { item, .. }, marks)) = sent {
            let marked = item.marked.or(marks.then_some(MarkReason::Codel));
            decided.push((item, self.send(now, Undecided { marked, ..item }, script)));
        }
        decided
    }

    /// Gives the path the properties `spec` from `now` on. Returns the packets whose arrival that
    /// moves, in the order they came, with their new arrivals.
    pub(super) fn set_spec(
        &mut self,
        now: TimeNs,
        spec: LinkSpec,
        script: &Script,
    ) -> Vec<(PacketOwner, TimeNs)> {
        let rates = BottleneckRateChange { before: self.spec.rate(), after: spec.rate() };
        self.spec = spec;
        if rates.before == rates.after {
            return Vec::new();
        }
        let mut latest = None;
        let mut moved = Vec::new();
        for (held, was) in self.bottleneck.change_rate(now, rates, || script.rate_changes()) {
            let before = held.arrival.arrival_time(was);
            // Behind what it was behind, wherever that has been moved to.
            let behind = latest.or(held.arrival.not_before()).unwrap_or_default();
            held.arrival = held.arrival.with_predecessor_at(behind);
            let at = held.arrival.arrival_time(held.sent);
            if held.arrival.keeps_order() {
                latest = Some(at);
            }
            if self.inside.remove(&(before, held.owner)) {
                self.inside.insert((at, held.owner));
            }
            if at != before {
                moved.push((held.owner, at));
            }
        }
        self.last_arrival = latest.unwrap_or(self.last_arrival);
        moved
    }

    /// Draws the time that a packet of cross traffic takes from its sender to the queue: up to the
    /// time of a packet.
    ///
    /// Without it, packets would come exactly when others leave, and always find room.
    pub(super) fn draw_approach(&mut self) -> Span {
        let most = self.full_packet_time().unwrap_or_default().ns();
        Span::from_ns(self.approach.random_below(most + 1))
    }

    /// Returns the bytes of IP packets that wait at `now`.
    pub(super) fn queue_bytes(&mut self, now: TimeNs) -> u64 {
        self.codel.bytes() + self.bottleneck.waiting_bytes(now)
    }

    /// Returns the most bytes of IP packets that ever waited at one time.
    pub(super) fn queue_bytes_peak(&self) -> u64 {
        self.queue_bytes_peak
    }

    /// Sends a packet at `now` where none waits and the bottleneck is free. Else lets the packet
    /// wait for its fate, or drops it where the queue has no room.
    fn wait_or_send(&mut self, now: TimeNs, undecided: Undecided, script: &Script) -> Fate {
        if self.codel.first_entered().is_none() && self.bottleneck.next_start(now) <= now {
            return self.send(now, undecided, script);
        }
        let ip_bytes = undecided.packet.ip_bytes;
        let bytes = self.queue_bytes(now) + u64::from(ip_bytes);
        if bytes > self.spec.queue().get() {
            return Fate::Drop(DropReason::Queue);
        }
        self.queue_bytes_peak = self.queue_bytes_peak.max(bytes);
        let ecn_capable = undecided.packet.ecn_capable;
        let item = undecided;
        self.codel.push(QueuedPacket { item, entered: now, ip_bytes, ecn_capable });
        Fate::Queued
    }

    /// Hands a packet to the bottleneck at `now` and decides how it arrives; drops it where its
    /// queue is full.
    fn send(&mut self, now: TimeNs, undecided: Undecided, script: &Script) -> Fate {
        let Undecided { owner, packet, draws, marked } = undecided;
        let transmission = Transmission { owner, entered: now, ip_bytes: packet.ip_bytes };
        let later = script.rate_changes();
        let Some(accepted) = self.bottleneck.accept_packet(transmission, &self.spec, later) else {
            return Fate::Drop(DropReason::Queue);
        };
        self.queue_bytes_peak = self.queue_bytes_peak.max(accepted.waiting_bytes);
        let threshold = self.spec.mark_above();
        let long = self.spec.discipline() == Discipline::DropTail
            && threshold.is_some_and(|bytes| accepted.waiting_bytes > bytes.get());
        let marked = marked.or((packet.ecn_capable && long).then_some(MarkReason::Queue));
        let delay = &mut self.chances.of_owner(owner).delay;
        let arrival = delay.decide_arrival(&self.spec, draws.transit, self.last_arrival);
        let at = arrival.arrival_time(accepted.sent);
        if let Some(held) = self.bottleneck.newest_packet() {
            held.arrival = arrival;
        }
        if arrival.keeps_order() {
            self.last_arrival = at;
        }
        if self.spec.limit_packets().is_some() {
            self.inside.insert((at, owner));
        }
        Fate::Deliver(Delivery { at, marked, corrupt_bit: draws.corrupt_bit })
    }

    /// Returns since when the bottleneck has been idle at `now`, and how long it takes to send a
    /// packet of full length. `None` while it sends, or when its rate has no limit.
    fn idleness(&self, now: TimeNs) -> Option<Idleness> {
        let since = self.bottleneck.clear_at();
        let packet_time = self.full_packet_time().filter(|_| since < now)?;
        Some(Idleness { since, packet_time })
    }

    /// Returns how long the bottleneck takes to send a packet of full length; `None` when its rate
    /// has no limit.
    fn full_packet_time(&self) -> Option<Span> {
        let rate = self.bottleneck.mean_rate(&self.spec)?;
        Some(Span::from_ns(FULL_PACKET_BITS * NS_PER_SECOND / rate.bits_per_second().max(1)))
    }
}

/// 12,000 bits: a full packet of 1,500 bytes. RED ages its average once for each sending time of
/// such a packet in which nothing comes. Cross traffic reaches the queue within one such time.
const FULL_PACKET_BITS: u64 = 12_000;
/// 1,000,000,000 nanoseconds in a second.
const NS_PER_SECOND: u64 = 1_000_000_000;
