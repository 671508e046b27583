//! What of a gateway's memory a job takes, however large its buffers are.

use super::sizing::{result_window, unsolicited_window};
use super::tree::{Plan, Tree};
use crate::ids::GatewayId;
use crate::shard::CUT_BYTES;
use crate::size_class::{MEDIUM_BYTES, SMALL_BYTES, SizeClass};
use crate::topology::Fabric;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use units::{ByteCount, Span};

/// The most that a job takes at one gateway beside its ranks' own slots, by what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryBound {
    /// Partials of several local ranks.
    pub partials: ByteCount,
    /// What peers send before it is granted, and what may have to be restored from parity.
    pub early: ByteCount,
    /// Peers' partials that wait for those of others.
    pub ahead: ByteCount,
    /// Partials of subtrees on their way up, until their results are here.
    pub relayed: ByteCount,
}

impl MemoryBound {
    /// What its windows take, beside partials.
    pub fn windows(&self) -> ByteCount {
        ByteCount::new(self.total().get() - self.partials.get())
    }

    /// All of it.
    pub fn total(&self) -> ByteCount {
        let all = [self.partials, self.early, self.ahead, self.relayed];
        ByteCount::new(all.into_iter().map(ByteCount::get).sum())
    }
}

impl Plan {
    /// What collectives of any operation and size take at a gateway with `partials` of memory for
    /// partials of its ranks, while its peers keep the rules and nothing fails. Windows are
    /// shared by all trees and collectives; each tree may round its part up to a segment.
    pub fn memory(&self, fabric: &Fabric, me: GatewayId, partials: ByteCount) -> MemoryBound {
        let segment = self.segment.get().next_multiple_of(CUT_BYTES);
        let (mut shared, mut relays) = (BTreeMap::new(), 0);
        for tree in &self.trees {
            let near = tree.neighbours(me);
            // Results wait for nothing.
            let rounded = if tree.direction.has_partials() { segment } else { 0 };
            relays += u64::from(near.len() > 1 && tree.direction.has_partials());
            near.into_iter().for_each(|peer| *shared.entry(peer).or_insert(0) += rounded);
        }
        let several = fabric.gateway(me).ranks.len() > 1;
        let (mut early, mut ahead) = (0, 0);
        for (peer, rounded) in shared {
            early += unsolicited_window(fabric, me, peer, self).get();
            let link = fabric.link(fabric.gateway(me).region, fabric.gateway(peer).region);
            let repair = link.map(|link| self.fec(link, fabric.mtu()));
            early += repair.map_or(0, |repair| repair.tail_bytes());
            ahead += result_window(fabric, me, peer, self).get() + rounded;
        }
        let relayed = match relays {
            0 => 0,
            trees => {
                let kept: u64 = SizeClass::ALL.into_iter().map(SizeClass::reserve).sum();
                relay_bytes(fabric, me, self).get() + kept + trees * segment
            }
        };
        MemoryBound {
            partials: ByteCount::new(if several {
                of_partials(partials.get(), segment)
            } else {
                0
            }),
            early: ByteCount::new(early),
            ahead: ByteCount::new(ahead),
            relayed: ByteCount::new(relayed),
        }
    }
}

/// What operations of all classes take of memory for partials: each class at least a segment.
fn of_partials(all: u64, segment: u64) -> u64 {
    let longest = [(SizeClass::Small, SMALL_BYTES), (SizeClass::Medium, MEDIUM_BYTES)];
    let longest = longest.into_iter().chain([(SizeClass::Large, u64::MAX)]);
    longest.map(|(class, most)| class.partials(all).max(segment.min(most))).sum()
}

/// Bytes of partials of subtrees that a gateway holds for results that have not come: four times
/// what its region's ports carry until one comes from the far end of a tree, since it waits for
/// others there; at least sixteen segments.
pub fn relay_bytes(fabric: &Fabric, me: GatewayId, plan: &Plan) -> ByteCount {
    let partials = plan.trees.iter().filter(|tree| tree.direction.has_partials());
    let relays = partials.filter(|tree| tree.neighbours(me).len() > 1);
    let farthest = relays.map(|tree| tree.farthest(fabric, me)).max().unwrap_or(Span::ZERO);
    let gateways = fabric.region(fabric.gateway(me).region).gateways.clone().map(GatewayId);
    let ports = gateways.filter_map(|id| fabric.gateway(id).wan);
    let rate: f64 = ports.map(|wan| wan.egress.min(wan.ingress).bytes_per_second()).sum();
    let bytes = RELAY_ROUNDS * rate * farthest.as_secs_f64();
    ByteCount::new((bytes as u64).max(RELAY_SEGMENTS_MIN * plan.segment.get()))
}

/// Round trips to the far end of a tree for which a relay holds what it passed on,
const RELAY_ROUNDS: f64 = 4.0;
/// and segments at least.
const RELAY_SEGMENTS_MIN: u64 = 16;

impl Tree {
    /// The gateways that one exchanges with along it.
    pub fn neighbours(&self, of: GatewayId) -> Vec<GatewayId> {
        let other = |(one, other): (GatewayId, GatewayId)| {
            if one == of { Some(other) } else { (other == of).then_some(one) }
        };
        self.edges().filter_map(other).collect()
    }

    /// The round trip over links to the gateway that is farthest along it.
    fn farthest(&self, fabric: &Fabric, from: GatewayId) -> Span {
        let mut near: BTreeMap<GatewayId, Vec<GatewayId>> = BTreeMap::new();
        for (one, other) in self.edges() {
            near.entry(one).or_default().push(other);
            near.entry(other).or_default().push(one);
        }
        let region = |id: GatewayId| fabric.gateway(id).region;
        let mut way = BTreeMap::from([(from, Span::ZERO)]);
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            for &next in near.get(&at).into_iter().flatten() {
                let hop = fabric.link(region(at), region(next)).map_or(Span::ZERO, |link| link.rtt);
                let along = way[&at] + hop;
                // All others of a root set are next to the first of it that is reached.
                if let Entry::Vacant(place) = way.entry(next) {
                    place.insert(along);
                    open.push(next);
                }
            }
        }
        way.into_values().max().unwrap_or(Span::ZERO)
    }
}
