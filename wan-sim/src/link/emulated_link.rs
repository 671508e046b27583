//! An emulated link takes packets in order of time and decides the fate of each at once.

use super::bottleneck::{Bottleneck, RateChange, Transmission};
use super::chances::{Chances, Draws};
use super::fate::{
    Delivery, DropReason, Fate, LinkCounters, MarkReason, Moved, Packet, PacketFates, PacketName,
};
use super::script::{Change, Script};
use super::spec::LinkSpec;
use crate::random_stream::RandomStream;
use std::collections::BTreeSet;
use units::{ByteCount, TimeNs};

/// One direction of a link.
///
/// Offer each packet with the time it enters; its fate is returned at once. Times must not
/// go back. A packet meets the loss and the delay of the time it is offered, and the rate of
/// the time it is sent. A [`Script`] is known ahead, so fates take it into account;
/// [`EmulatedLink::set_spec`] is not known ahead, and returns the arrivals that it moves.
///
/// Each impairment has a random stream of its own and draws for every packet offered, so
/// switching one on leaves the others' draws alone. Copies draw from streams of their own.
#[derive(Debug)]
pub struct EmulatedLink {
    spec: LinkSpec,
    blackhole: bool,
    /// The longest IP packet that it takes.
    mtu_bytes: u32,
    script: Script,
    duplicate: RandomStream,
    originals: Chances,
    copies: Chances,
    bottleneck: Bottleneck,
    /// Latest arrival of a packet that keeps order.
    last_arrival: TimeNs,
    /// Arrivals to come; kept only for a limit on packets.
    inside: BTreeSet<(TimeNs, PacketName)>,
    counters: LinkCounters,
}

impl EmulatedLink {
    /// Makes an idle link; `seed` decides every random draw.
    pub fn new(spec: LinkSpec, seed: u64) -> Self {
        Self::scripted(spec, Script::default(), seed)
    }

    /// Makes an idle link that changes and drops packets as `script` says.
    pub fn scripted(spec: LinkSpec, script: Script, seed: u64) -> Self {
        Self {
            spec,
            blackhole: false,
            mtu_bytes: u32::MAX,
            script,
            duplicate: RandomStream::new(seed, "duplicate"),
            originals: Chances::new(seed),
            copies: Chances::new(RandomStream::new(seed, "copies").next_u64()),
            bottleneck: Bottleneck::new(),
            last_arrival: TimeNs::default(),
            inside: BTreeSet::new(),
            counters: LinkCounters::default(),
        }
    }

    /// Offers the link a packet that enters at `now`; returns the fate of the packet and of its
    /// copy.
    pub fn offer(&mut self, now: TimeNs, packet: Packet) -> PacketFates {
        self.follow_script(now);
        let number = self.counters.packets;
        let scripted = self.script.take_drop(number);
        self.counters.packets += 1;
        self.counters.ip_bytes += u64::from(packet.ip_bytes);
        let draws = self.originals.draw(&self.spec);
        let duplicated = self.duplicate.random_bool(self.spec.duplicate());
        let fate = if self.blackhole {
            Fate::Drop(DropReason::Blackhole)
        } else if scripted {
            Fate::Drop(DropReason::Script)
        } else {
            self.decide_fate(now, packet, &draws, PacketName { number, copy: false })
        };
        self.counters.count_fate(&fate);
        let copy = (duplicated && !self.blackhole).then(|| {
            self.counters.duplicated += 1;
            let draws = self.copies.draw(&self.spec);
            self.decide_fate(now, packet, &draws, PacketName { number, copy: true })
        });
        PacketFates { number, fate, copy }
    }

    /// Applies the changes of the script that are due at `now`.
    fn follow_script(&mut self, now: TimeNs) {
        while let Some(change) = self.script.pop_change(now) {
            match change {
                Change::Spec(spec) => self.spec = spec,
                Change::Cut => self.blackhole = true,
                Change::Join => self.blackhole = false,
            }
        }
    }

    /// Decides the fate of one packet: random loss, MTU, limit of packets, queue, then delay.
    fn decide_fate(
        &mut self,
        now: TimeNs,
        packet: Packet,
        draws: &Draws,
        name: PacketName,
    ) -> Fate {
        let mut marked = None;
        if draws.lost {
            if !(self.spec.losses_marked() && packet.ecn_capable) {
                return Fate::Drop(DropReason::Loss);
            }
            marked = Some(MarkReason::Loss);
        }
        if packet.ip_bytes > self.mtu_bytes {
            return Fate::Drop(DropReason::Mtu);
        }
        if let Some(limit) = self.spec.limit_packets() {
            while self.inside.first().is_some_and(|(at, _)| *at <= now) {
                self.inside.pop_first();
            }
            if self.inside.len() >= limit.get() as usize {
                return Fate::Drop(DropReason::Limit);
            }
        }
        let transmission = Transmission { name, entered: now, ip_bytes: packet.ip_bytes };
        let Some(accepted) =
            self.bottleneck.accept_packet(transmission, &self.spec, self.script.rate_changes())
        else {
            return Fate::Drop(DropReason::Queue);
        };
        let threshold = self.spec.mark_above();
        let long = threshold.is_some_and(|bytes| accepted.waiting_bytes > bytes.get());
        let marked = marked.or((packet.ecn_capable && long).then_some(MarkReason::Queue));
        let chances = if name.copy { &mut self.copies } else { &mut self.originals };
        let arrival = chances.delay.decide_arrival(&self.spec, draws.transit, self.last_arrival);
        let at = arrival.arrival_time(accepted.sent);
        if let Some(held) = self.bottleneck.newest_packet() {
            held.arrival = arrival;
        }
        if arrival.keeps_order() {
            self.last_arrival = at;
        }
        if self.spec.limit_packets().is_some() {
            self.inside.insert((at, name));
        }
        Fate::Deliver(Delivery { at, marked, corrupt_bit: draws.corrupt_bit })
    }

    /// Gives the link the properties `spec` from `now` on, which must not be before the last
    /// packet.
    ///
    /// Packets that wait are sent at the new rate. Returns the packets whose arrival that moves, in
    /// the order they were offered. No packet is dropped, however small the new queue.
    pub fn set_spec(&mut self, now: TimeNs, spec: LinkSpec) -> Vec<Moved> {
        // Scripted changes until now come before this one.
        self.follow_script(now);
        let rates = RateChange { before: self.spec.rate(), after: spec.rate() };
        self.spec = spec;
        if rates.before == rates.after {
            return Vec::new();
        }
        let script = &self.script;
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
            if self.inside.remove(&(before, held.name)) {
                self.inside.insert((at, held.name));
            }
            if at != before {
                moved.push(Moved { packet: held.name, at });
            }
        }
        self.last_arrival = latest.unwrap_or(self.last_arrival);
        moved
    }

    /// Silently drops IP packets of more than `bytes` from now on.
    pub fn set_mtu(&mut self, bytes: u32) {
        self.mtu_bytes = bytes;
    }

    /// Drops every packet offered from now on if `blackhole` is true; passes packets again if not.
    pub fn set_blackhole(&mut self, blackhole: bool) {
        self.blackhole = blackhole;
    }

    /// Returns the current properties of the link.
    pub fn spec(&self) -> &LinkSpec {
        &self.spec
    }

    /// Returns the counters since the link was made.
    pub fn counters(&self) -> LinkCounters {
        self.counters
    }

    /// Returns the bytes of IP packets that wait for the rate at `now`.
    pub fn queue_bytes(&mut self, now: TimeNs) -> ByteCount {
        self.bottleneck.waiting_bytes(now)
    }

    /// Returns the most bytes of IP packets that ever waited at once.
    pub fn queue_bytes_peak(&self) -> ByteCount {
        self.bottleneck.waiting_bytes_peak()
    }
}
