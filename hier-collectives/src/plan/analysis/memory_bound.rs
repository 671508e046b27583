//! Bound of the memory that a job takes at a gateway, whatever the size of its buffers.
//!
//! The daemon checks it against the configured memory, and `landbridge plan` prints it.

use crate::buffer_part::CUT_BYTES;
use crate::ids::GatewayId;
use crate::plan::plan_data::Plan;
use crate::plan::tree::Tree;
use crate::plan::trees::owner_trees::OwnerTrees;
use crate::plan::window_size::passed_on_window_size;
use crate::plan::window_size::unsolicited_window_size;
use crate::size_class::{MEDIUM_BYTES, SMALL_BYTES, SizeClass};
use crate::topology::Fabric;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use units::{ByteCount, Span};

/// 4 round trips to the far end of a tree: a relay may hold the subtrees' partials that its
/// region's ports carry in this time. The number is chosen: without queues the results are back
/// after one round trip.
/// Tested by `relays_below_a_slow_link_hold_one_window`.
const RELAY_ROUND_TRIPS: f64 = 4.0;

/// 16 segments: a relay may hold at least the bytes of 16 segments of subtrees' partials, however
/// short its paths are. Pipelining then works on short paths too.
const RELAY_SEGMENTS_MIN: u64 = 16;

/// The most bytes that a job takes at one gateway beside its ranks' own slots, by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryBound {
    /// Partials of the gateway's own ranks, where it serves several.
    pub partials: ByteCount,
    /// Segments that peers send before they are granted, and tails that FEC may have to restore.
    pub unsolicited: ByteCount,
    /// Peers' partials that wait for the partials of other peers.
    pub result_windows: ByteCount,
    /// Partials of subtrees that a relay sent up, until their results arrive.
    pub relayed: ByteCount,
}

impl MemoryBound {
    /// Returns the bytes of all windows: everything except the partials of own ranks.
    pub fn window_bytes(&self) -> ByteCount {
        ByteCount::new(self.total().get() - self.partials.get())
    }

    /// Returns the sum of the bytes for all purposes.
    pub fn total(&self) -> ByteCount {
        let all = [self.partials, self.unsolicited, self.result_windows, self.relayed];
        ByteCount::new(all.into_iter().map(ByteCount::get).sum())
    }
}

impl Plan {
    /// Bounds the memory of a job at gateway `me`, which has `partials` bytes for partials of its
    /// ranks. `owner_trees` are those of the plan.
    ///
    /// The bound holds for collectives of any operation and size, while peers keep to their windows
    /// and nothing fails. All trees and collectives share the windows; each tree may round its part
    /// up to a segment.
    pub fn memory_bound(
        &self,
        fabric: &Fabric,
        owner_trees: &OwnerTrees,
        me: GatewayId,
        partials: ByteCount,
    ) -> MemoryBound {
        let segment = self.segment.get().next_multiple_of(CUT_BYTES);
        let (mut shared, mut relays) = (BTreeMap::new(), 0);
        for tree in &self.trees {
            let near = tree.memory_bound_window_peers(me);
            // Results are placed at once.
            let rounded = if tree.direction.has_partials() { segment } else { 0 };
            relays += u64::from(near.len() > 1 && tree.direction.has_partials());
            near.into_iter().for_each(|peer| *shared.entry(peer).or_insert(0) += rounded);
        }
        // Operations on blocks take these trees instead, over the same edges.
        let (mut below, mut inner) = (BTreeMap::new(), 0);
        for tree in owner_trees.all() {
            let children = tree.role(me).children;
            inner += u64::from(!children.is_empty() && tree.parents.contains_key(&me));
            children.into_iter().for_each(|peer| *below.entry(peer).or_insert(0) += segment);
        }
        relays = relays.max(inner);
        for (peer, rounded) in below {
            let planned = shared.entry(peer).or_insert(0);
            *planned = rounded.max(*planned);
        }
        let several = fabric.gateway(me).ranks.len() > 1;
        let (mut unsolicited, mut result_windows) = (0, 0);
        for (peer, rounded) in shared {
            unsolicited += unsolicited_window_size(fabric, me, peer, self).get();
            let link = fabric.link(fabric.gateway(me).region, fabric.gateway(peer).region);
            let fec = link.map(|link| self.tail_fec(link, fabric.mtu()));
            unsolicited += fec.map_or(0, |fec| fec.tail_bytes());
            result_windows += passed_on_window_size(fabric, me, peer, self).get() + rounded;
        }
        let relayed = match relays {
            0 => 0,
            trees => {
                let kept: u64 = SizeClass::ALL.into_iter().map(SizeClass::reserved_bytes).sum();
                relay_memory_bound(fabric, me, self).get() + kept + trees * segment
            }
        };
        MemoryBound {
            partials: ByteCount::new(if several {
                partials_memory_bound(partials.get(), segment)
            } else {
                0
            }),
            unsolicited: ByteCount::new(unsolicited),
            result_windows: ByteCount::new(result_windows),
            relayed: ByteCount::new(relayed),
        }
    }
}

/// Bounds the bytes for partials of all size classes, which have `all` bytes: each class takes at
/// least a segment.
fn partials_memory_bound(all: u64, segment: u64) -> u64 {
    let longest = [(SizeClass::Small, SMALL_BYTES), (SizeClass::Medium, MEDIUM_BYTES)];
    let longest = longest.into_iter().chain([(SizeClass::Large, u64::MAX)]);
    longest.map(|(class, most)| class.partials_bytes(all).max(segment.min(most))).sum()
}

/// Returns the bytes of subtrees' partials that gateway `me` may hold while their results are
/// outstanding.
///
/// relay bytes = max(`RELAY_ROUND_TRIPS` x port rate of the region x round trip to the far end of a
/// tree, `RELAY_SEGMENTS_MIN` segments).
pub fn relay_memory_bound(fabric: &Fabric, me: GatewayId, plan: &Plan) -> ByteCount {
    let partials = plan.trees.iter().filter(|tree| tree.direction.has_partials());
    let relays = partials.filter(|tree| tree.memory_bound_window_peers(me).len() > 1);
    let farthest =
        relays.map(|tree| tree.memory_bound_relay_time(fabric, me)).max().unwrap_or(Span::ZERO);
    let gateways = fabric.region(fabric.gateway(me).region).gateways.clone().map(GatewayId);
    let ports = gateways.filter_map(|id| fabric.gateway(id).wan);
    let rate: f64 = ports.map(|wan| wan.egress.min(wan.ingress).bytes_per_second()).sum();
    let bytes = RELAY_ROUND_TRIPS * rate * farthest.as_secs_f64();
    ByteCount::new((bytes as u64).max(RELAY_SEGMENTS_MIN * plan.segment.get()))
}

impl Tree {
    /// Returns the gateways with which gateway `of` exchanges data along the tree.
    pub fn memory_bound_window_peers(&self, of: GatewayId) -> Vec<GatewayId> {
        let other = |(one, other): (GatewayId, GatewayId)| {
            if one == of { Some(other) } else { (other == of).then_some(one) }
        };
        self.edges().filter_map(other).collect()
    }

    /// Returns the longest round trip from gateway `from` over links to another gateway along the
    /// tree.
    fn memory_bound_relay_time(&self, fabric: &Fabric, from: GatewayId) -> Span {
        let mut near: BTreeMap<GatewayId, Vec<GatewayId>> = BTreeMap::new();
        for (one, other) in self.edges() {
            near.entry(one).or_default().push(other);
            near.entry(other).or_default().push(one);
        }
        let region = |id: GatewayId| fabric.gateway(id).region;
        let mut trips = BTreeMap::from([(from, Span::ZERO)]);
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            for &next in near.get(&at).into_iter().flatten() {
                let hop = fabric.link(region(at), region(next)).map_or(Span::ZERO, |link| link.rtt);
                let along = trips[&at] + hop;
                // The members of a root set are neighbours of its first member reached.
                if let Entry::Vacant(entry) = trips.entry(next) {
                    entry.insert(along);
                    open.push(next);
                }
            }
        }
        trips.into_values().max().unwrap_or(Span::ZERO)
    }
}
