//! Segments going out, within grants; grants and receipts themselves.

use super::segment::{Outgoing, PartState};
use super::*;
use crate::fec::parity_shards;
use crate::ids::{SegmentIndex, TreeIndex};
use crate::size_class::SizeClass;
use crate::topology::{Link, LinkState};
use std::ops::Range;
use units::Fraction;

impl Session {
    /// Grants what there is room for now, and sends what is ready, to everybody.
    pub(super) fn send_everywhere(&mut self, now: TimeNs) {
        self.grant(self.config.me, now);
        for peer in self.ready_peers() {
            self.grant(peer, now);
            self.send_what_may_go(peer, now);
        }
    }

    /// Tells a peer how far it may send: as far as its bytes meet memory that waits, and, where
    /// they wait here for those of others, one window ahead of results, of all collectives
    /// together. The oldest comes first, so that one always goes on. What we make of others'
    /// partials for somebody above takes memory until the result is here: so we grant it to
    /// ourselves in the same way.
    fn grant(&mut self, peer: GatewayId, now: TimeNs) {
        let (me, epoch) = (self.config.me, self.epoch);
        let Some(active) = &self.active else { return };
        let ahead = if peer == me {
            active.relayed
        } else {
            plan::result_window(&self.config.fabric, me, peer, &active.plan)
        };
        let mut left = ahead.get() / active.plan.segment.get();
        // Smaller classes do not wait behind large ones here; peers keep early room for them.
        let mut reserves = SizeClass::ALL.map(SizeClass::reserve);
        let mut opened = Vec::new();
        for (sequence, collective) in &mut self.live {
            // What was passed on is held until receipts for it are in, also when all is ready here.
            if !matches!(collective.phase, Phase::Running | Phase::Ready) {
                continue;
            }
            let window = left;
            let reserve = &mut reserves[collective.class() as usize];
            let held = (peer == me && *reserve > 0).then(|| collective.held_on_the_way(me));
            let held = held.filter(|held| held <= reserve);
            *reserve -= held.unwrap_or(0);
            let waiting = collective.parts.iter().filter(|part| part.waits_with(peer, me));
            let of_all: u64 = waiting.map(|part| u64::from(part.count())).sum();
            for (tree, part) in collective.parts.iter().enumerate() {
                let tree = TreeIndex(u16::try_from(tree).unwrap_or(u16::MAX));
                let granted = collective.granted.get(&(peer, tree)).copied().unwrap_or(0);
                let spared = held.is_some() && part.waits_with(peer, me);
                let limit = if part.comes_down_from(peer) || spared {
                    part.count()
                } else if part.streams_from(me) == Some(peer) {
                    part.local_prefix
                } else if part.waits_with(peer, me) {
                    // Trees go on at the same pace, so each has its part of the window.
                    let share = (window * u64::from(part.count())).div_ceil(of_all.max(1));
                    let share = u32::try_from(share).unwrap_or(u32::MAX);
                    let waits_from = part.waits_from(peer, me);
                    let limit = part.count().min(waits_from.saturating_add(share));
                    let taken = limit.max(granted).saturating_sub(waits_from);
                    left = left.saturating_sub(u64::from(taken));
                    limit
                } else {
                    continue;
                };
                if limit > granted {
                    collective.granted.insert((peer, tree), limit);
                    if peer == me {
                        let segments = (granted..limit).map(SegmentIndex);
                        let key = |segment| SegmentKey { sequence: *sequence, tree, segment };
                        opened.extend(segments.map(key));
                        continue;
                    }
                    let message = Message::Grant { epoch, sequence: *sequence, tree, limit };
                    self.core.actions.push_back(Action::Message { to: peer, message });
                }
            }
        }
        opened.into_iter().for_each(|key| self.advance(key, now));
    }

    /// Sends a peer the segments that are ready, each within its grant or the peer's early room:
    /// of the smallest class first, and of that of the lowest collective.
    pub(super) fn send_what_may_go(&mut self, to: GatewayId, now: TimeNs) {
        if !self.ready_peers().contains(&to) {
            return;
        }
        SizeClass::ALL.into_iter().for_each(|class| self.send_of_class(class, to, now));
    }

    fn send_of_class(&mut self, class: SizeClass, to: GatewayId, now: TimeNs) {
        let (room, repaired) = (class.room(self.room_at(to).early), self.repaired(class, to));
        let Some(peer) = self.peers.get_mut(&to) else {
            return;
        };
        for (sequence, collective) in &mut self.live {
            let Some((_, descriptor)) = collective.descriptor else {
                continue;
            };
            let sends = matches!(collective.phase, Phase::Running | Phase::Ready);
            if !sends || descriptor.size_class() != class {
                continue;
            }
            let slot = collective.result_slot(*sequence);
            for (tree, part) in collective.parts.iter_mut().enumerate() {
                let tree = TreeIndex(u16::try_from(tree).unwrap_or(u16::MAX));
                let granted = collective.grants.get(&(to, tree)).copied().unwrap_or(0);
                while let Some((index, source)) = ready_segment(part, to, slot) {
                    let segment = SegmentIndex(index);
                    let key = SegmentKey { sequence: *sequence, tree, segment };
                    let bytes = source.view.range.end - source.view.range.start;
                    if index >= granted {
                        let used: u64 = peer.early_out.values().sum();
                        if used + bytes > room {
                            break;
                        }
                        peer.early_out.insert(key, bytes);
                    }
                    let left = u64::from(part.count() - index) * bytes;
                    let tail = repaired.tail(*sequence, left, bytes);
                    if let Some(outbound) = part.out.get_mut(&to) {
                        outbound.next += 1;
                        outbound.due.insert(index);
                    }
                    if collective.timing.wan_begin == TimeNs::default() {
                        collective.timing.wan_begin = now;
                    }
                    let header = SegmentHeader {
                        epoch: self.epoch,
                        key,
                        bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
                        digest: descriptor.digest(),
                        weight: source.weight,
                        // Whoever hands it to a lane sees what follows.
                        parity: 0,
                    };
                    let source = source.view;
                    let turn = Turn { class, depth: depth(index, part.count()) };
                    self.core.actions.push_back(Action::Send { to, header, source, turn, tail });
                }
            }
        }
    }

    /// What of a class's bytes to a peer is worth repairing.
    fn repaired(&self, class: SizeClass, to: GatewayId) -> Repaired {
        let behind =
            |(_, c): &(&Sequence, &Collective)| c.phase == Phase::Running && c.class() >= class;
        Repaired {
            last: self.live.iter().rfind(behind).map(|(sequence, _)| *sequence),
            bytes: self.room_at(to).tail,
            loss: self.link_to(to).map_or(Fraction::default(), |link| link.loss),
            mtu: self.config.fabric.mtu(),
        }
    }

    /// What is kept here for a peer's segments.
    pub(super) fn room_for(&self, peer: GatewayId) -> Room {
        self.room_over(self.link_to(peer))
    }

    /// What may be under way to a peer: what it keeps by its own fabric's link, which need not be
    /// ours, and no more than we would.
    pub(super) fn room_at(&self, peer: GatewayId) -> Room {
        let (link, said) = (self.link_to(peer), self.peers.get(&peer).and_then(|peer| peer.link));
        let as_said = |LinkState { rate, rtt, loss }: LinkState| {
            link.map(|link| Link { rate, rtt, loss, ..link.clone() })
        };
        let theirs = said.and_then(as_said);
        let (ours, theirs) = (self.room_over(link), self.room_over(theirs.as_ref().or(link)));
        Room { early: ours.early.min(theirs.early), tail: ours.tail.min(theirs.tail) }
    }

    fn room_over(&self, link: Option<&Link>) -> Room {
        let Some(Active { plan, .. }) = &self.active else { return Room::default() };
        let repair = link.map(|link| plan.fec(link, self.config.fabric.mtu()));
        let tail = repair.map_or(0, |repair| repair.tail_bytes());
        Room { early: plan::unsolicited_window_over(link, plan).get(), tail }
    }

    pub(super) fn link_to(&self, peer: GatewayId) -> Option<&Link> {
        let fabric = &self.config.fabric;
        fabric.link(fabric.gateway(self.config.me).region, fabric.gateway(peer).region)
    }

    pub(super) fn on_receipts(
        &mut self,
        from: GatewayId,
        (sequence, tree): (Sequence, TreeIndex),
        segments: Range<u32>,
        now: TimeNs,
    ) {
        let key = |segment| SegmentKey { sequence, tree, segment: SegmentIndex(segment) };
        if let Some(peer) = self.peers.get_mut(&from) {
            let keys = key(segments.start)..key(segments.end);
            let theirs: Vec<_> = peer.early_out.range(keys).map(|(key, _)| *key).collect();
            for key in &theirs {
                peer.early_out.remove(key);
            }
        }
        let live = self.live.get(&sequence);
        let part = live.and_then(|collective| collective.parts.get(usize::from(tree.0)));
        let out = part.and_then(|part| part.out.get(&from));
        let due = out.into_iter().flat_map(|out| out.due.range(segments.clone()));
        let due: Vec<SegmentKey> = due.copied().map(key).collect();
        let mut relayed = false;
        for key in due {
            relayed |= self.on_receipt(from, key, now);
        }
        if relayed {
            self.grant(self.config.me, now);
        }
        self.send_what_may_go(from, now);
        self.settle(sequence, now);
    }

    /// The first of a segment that was given out to be sent. True when memory for what is passed on
    /// may have room again.
    fn on_receipt(&mut self, from: GatewayId, key: SegmentKey, now: TimeNs) -> bool {
        let Some(collective) = self.live.get_mut(&key.sequence) else { return false };
        let Some(part) = collective.parts.get_mut(usize::from(key.tree.0)) else { return false };
        let Some(outbound) = part.out.get_mut(&from) else { return false };
        outbound.due.remove(&key.segment.0);
        self.core.actions.push_back(Action::Receipted { from, key });
        self.core.progress = now;
        let of_partial = outbound.what == Outgoing::Partial;
        let (hands_up, relays) = (part.only_hands_up(), part.needs_partial_job());
        let segment = part.segment(key.segment.0);
        segment.receipts_due -= 1;
        segment.partial_due -= u16::from(of_partial);
        if hands_up {
            self.result_in_place(key, now);
        } else if of_partial {
            self.release_if_done(key, now);
        }
        of_partial && relays
    }

    /// A peer still speaks of a collective that is complete here: the receipts that would let
    /// it go were lost.
    pub(super) fn repeat_receipts(&mut self, to: GatewayId, sequence: Sequence) {
        let (Some(active), Some(descriptor)) = (&self.active, self.finished.get(&sequence)) else {
            return;
        };
        let (me, epoch) = (self.config.me, self.epoch);
        let mut receipts = Vec::new();
        for (tree, part) in (0..).map(TreeIndex).zip(self.parts_of((active, sequence), descriptor))
        {
            if part.expects_from(to, me) && part.count() > 0 {
                receipts.push(Message::Receipt {
                    epoch,
                    sequence,
                    tree,
                    segments: 0..part.count(),
                });
            }
        }
        for message in receipts {
            self.core.actions.push_back(Action::Message { to, message });
        }
    }

    pub(super) fn send_receipt(&mut self, to: GatewayId, key: SegmentKey) {
        let SegmentKey { sequence, tree, segment: SegmentIndex(segment) } = key;
        let (epoch, segments) = (self.epoch, segment..segment.saturating_add(1));
        let message = Message::Receipt { epoch, sequence, tree, segments };
        self.core.actions.push_back(Action::Message { to, message });
    }
}

/// Bytes of a peer's that are under way beyond grants, and with parity.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Room {
    pub early: u64,
    pub tail: u64,
}

/// The last bytes to a peer: losses before them are made good while they are under way, and
/// losses of a collective that another follows while that one's are.
struct Repaired {
    /// The last collective under way that does not go ahead.
    last: Option<Sequence>,
    /// How many.
    bytes: u64,
    loss: Fraction,
    mtu: u16,
}

impl Repaired {
    /// Of a segment with `left` bytes to go, itself among them.
    fn tail(&self, sequence: Sequence, left: u64, bytes: u64) -> Tail {
        if self.last != Some(sequence) || left > self.bytes {
            return Tail::default();
        }
        Tail { parity: parity_shards(bytes, self.loss, self.mtu), room: self.bytes }
    }
}

/// How far into a part of `count` segments one of them is.
fn depth(index: u32, count: u32) -> u32 {
    let depth = u64::from(index) * u64::from(u32::MAX) / u64::from(count.max(1));
    u32::try_from(depth).unwrap_or(u32::MAX)
}

/// The next segment for a peer, when its source is there.
fn ready_segment(part: &PartState, to: GatewayId, slot: Buffer) -> Option<(u32, Input)> {
    let outbound = part.out.get(&to)?;
    let segment = part.segments.get(outbound.next as usize)?;
    let source = match outbound.what {
        Outgoing::Partial => segment.partial.clone()?,
        Outgoing::Result if segment.result => {
            let view = part.view(outbound.next, slot);
            Input { view, weight: 1.0 }
        }
        Outgoing::Result => return None,
    };
    Some((outbound.next, source))
}
