//! What a plan loads, and how long it takes.

use super::flows::Flows;
use super::pair_shares::PairShares;
use super::sizing::result_window;
use super::tree::{Plan, Tree, TreeDirection};
use crate::bound::{self, payload_rate};
use crate::ids::{GatewayId, RegionId};
use crate::operation::{Operation, Phases};
use crate::shard::{self, Part};
use crate::topology::{Fabric, Link};
use std::collections::BTreeMap;
use units::{BitRate, ByteCount, Span};

/// What a plan does with a buffer.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// From the last post to the last result.
    pub predicted: Span,
    /// The least time that any algorithm needs.
    pub bound: Span,
    /// Payload over each link, each direction by itself, by region numbers.
    pub links: Vec<LinkLoad>,
    /// Payload of each gateway, in gateway order.
    pub gateways: Vec<GatewayLoad>,
}

/// One direction of a link.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkLoad {
    /// From this region
    pub from: RegionId,
    /// to this one.
    pub to: RegionId,
    /// First-sent payload.
    pub bytes: ByteCount,
    /// How long the link alone takes for it.
    pub time: Span,
}

/// One gateway.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GatewayLoad {
    /// Payload out of its long-haul port.
    pub wan_out: ByteCount,
    /// Payload into its long-haul port.
    pub wan_in: ByteCount,
    /// Payload to gateways of its own region.
    pub lan_out: ByteCount,
    /// The most bytes of other gateways' partials that it holds at once.
    pub held: ByteCount,
}

impl Plan {
    /// What an operation on a buffer of `bytes` bytes loads, and how long it takes.
    pub fn forecast(&self, fabric: &Fabric, operation: Operation, bytes: ByteCount) -> Forecast {
        let plan = self.rooted_for(operation);
        let size = if operation.has_data() { bytes.get() } else { 0 };
        let parts = shard::parts(&plan, size);
        let flows = plan.flows(operation, &parts);
        // What pairs are held to fits the trees that share a buffer, held as an all-reduce does.
        let fits = !self.uses_express(size)
            && (operation.goes_up() && operation.comes_down() || !self.has_separate_trees());
        let rates = if fits { PairShares::new() } else { self.pair_shares(fabric) };
        Forecast {
            predicted: span(plan.time(fabric, operation, (&parts, &flows), &rates)),
            bound: bound::least_time(fabric, operation, ByteCount::new(size)),
            links: links(fabric, &flows),
            gateways: plan.gateways(fabric, &parts, &flows),
        }
    }

    /// The predicted time of an all-reduce alone, where pairs of gateways are held to `rates`.
    pub(super) fn seconds(&self, fabric: &Fabric, bytes: u64, rates: &PairShares) -> f64 {
        let parts = shard::parts(self, bytes);
        let flows = self.flows(Operation::AllReduce, &parts);
        self.time(fabric, Operation::AllReduce, (&parts, &flows), rates)
    }

    fn time(
        &self,
        fabric: &Fabric,
        operation: Operation,
        (parts, flows): (&[Part], &Flows),
        rates: &PairShares,
    ) -> f64 {
        let mut longest = 0.0f64;
        let mut before = 0.0;
        for (tree, part) in self.trees.iter().zip(parts).filter(|(_, part)| part.segments() > 0) {
            let phases = operation.along(tree);
            let follows = tree.direction == TreeDirection::Results && operation.goes_up();
            let alone = latency(fabric, (phases, follows), tree, part.segment_bytes());
            before = if follows { before + alone } else { alone };
            longest = longest.max(before);
        }
        busiest(fabric, flows, rates) + longest
    }

    fn gateways(&self, fabric: &Fabric, parts: &[Part], flows: &Flows) -> Vec<GatewayLoad> {
        let mut loads = vec![GatewayLoad::default(); fabric.gateways().len()];
        let more = |count: &mut ByteCount, bytes| *count = ByteCount::new(count.get() + bytes);
        for ((from, to), bytes) in flows {
            let (out, inward) = (usize::from(from.0), usize::from(to.0));
            if fabric.gateway(*from).region == fabric.gateway(*to).region {
                more(&mut loads[out].lan_out, *bytes);
            } else {
                more(&mut loads[out].wan_out, *bytes);
                more(&mut loads[inward].wan_in, *bytes);
            }
        }
        let mut waiting: BTreeMap<(GatewayId, GatewayId), u64> = BTreeMap::new();
        let partials =
            self.trees.iter().zip(parts).filter(|(tree, _)| tree.direction.has_partials());
        for (tree, part) in partials {
            let bytes = part.range.end - part.range.start;
            let mut hold = |holder: GatewayId, sender: GatewayId| {
                *waiting.entry((holder, sender)).or_default() += bytes;
            };
            tree.parents.iter().for_each(|(child, parent)| hold(*parent, *child));
            for one in &tree.roots {
                tree.roots
                    .iter()
                    .filter(|other| *other != one)
                    .for_each(|other| hold(*one, *other));
            }
        }
        for ((holder, sender), bytes) in waiting {
            let window = result_window(fabric, holder, sender, self).get();
            more(&mut loads[usize::from(holder.0)].held, window.min(bytes));
        }
        loads
    }
}

fn links(fabric: &Fabric, flows: &Flows) -> Vec<LinkLoad> {
    let mut bytes: BTreeMap<(RegionId, RegionId), u64> = BTreeMap::new();
    for link in fabric.links() {
        bytes.insert((link.a, link.b), 0);
        bytes.insert((link.b, link.a), 0);
    }
    for ((from, to), flow) in flows {
        let ends = (fabric.gateway(*from).region, fabric.gateway(*to).region);
        if let Some(bytes) = bytes.get_mut(&ends) {
            *bytes += flow;
        }
    }
    let mut rates = BTreeMap::new();
    for link in fabric.links() {
        let rate = carries(link, link.rate, fabric.mtu());
        rates.insert((link.a, link.b), rate);
        rates.insert((link.b, link.a), rate);
    }
    let load = |((from, to), bytes): (&(RegionId, RegionId), &u64)| LinkLoad {
        from: *from,
        to: *to,
        bytes: ByteCount::new(*bytes),
        time: span(*bytes as f64 / rates[&(*from, *to)]),
    };
    bytes.iter().map(load).collect()
}

/// Payload bytes per second that get through a link at a rate.
fn carries(link: &Link, rate: BitRate, mtu: u16) -> f64 {
    payload_rate(rate, mtu) * (1.0 - link.loss.as_f64())
}

/// The time for which the busiest link or port is full, or pair of gateways of those in `rates`.
fn busiest(fabric: &Fabric, flows: &Flows, rates: &PairShares) -> f64 {
    let mtu = fabric.mtu();
    let (mut outs, mut ins, mut links) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut longest = 0.0f64;
    for ((from, to), bytes) in flows {
        let ends = (fabric.gateway(*from).region, fabric.gateway(*to).region);
        let Some(link) = fabric.link(ends.0, ends.1) else { continue };
        *outs.entry(*from).or_insert(0u64) += bytes;
        *ins.entry(*to).or_insert(0u64) += bytes;
        links.entry(ends).or_insert((0u64, link)).0 += bytes;
        if let Some(rate) = rates.get(&(*from, *to)) {
            longest = longest.max(*bytes as f64 / carries(link, rate.rate_over(link.rate), mtu));
        }
    }
    let seconds = |bytes: u64, rate: BitRate| bytes as f64 / payload_rate(rate, mtu);
    let out =
        |(id, bytes): (&GatewayId, &u64)| Some(seconds(*bytes, fabric.gateway(*id).wan?.egress));
    let inward =
        |(id, bytes): (&GatewayId, &u64)| Some(seconds(*bytes, fabric.gateway(*id).wan?.ingress));
    let links = links.values().map(|(bytes, link)| *bytes as f64 / carries(link, link.rate, mtu));
    let ports = outs.iter().filter_map(out).chain(ins.iter().filter_map(inward));
    ports.chain(links).fold(longest, f64::max)
}

/// From the last post until the last result of a segment that meets no queue, in seconds:
/// delays, and at each relay the time until the segment is whole. Of the first phase's hops the
/// slowest is left out: its time is part of what fills the links. Results that follow partials of
/// another tree are no first phase.
fn latency(fabric: &Fabric, (phases, follows): (Phases, bool), tree: &Tree, segment: u64) -> f64 {
    let hops = tree.parents.iter().map(|(id, up)| (*id, hop(fabric, *id, *up, segment)));
    let hops: BTreeMap<GatewayId, (f64, f64)> = hops.collect();
    // The longest way below each member of the roots: as the first phase, and as a later one.
    let mut depths: BTreeMap<GatewayId, (f64, f64)> =
        tree.roots.iter().map(|id| (*id, (0.0, 0.0))).collect();
    for id in tree.parents.keys() {
        let (mut at, mut way, mut slowest) = (*id, 0.0, 0.0f64);
        while let Some(parent) = tree.parents.get(&at) {
            let (delay, whole) = hops[&at];
            (way, slowest) = (way + delay + whole, slowest.max(whole));
            at = *parent;
        }
        let depth = depths.entry(at).or_default();
        *depth = (depth.0.max(way - slowest), depth.1.max(way));
    }
    let mut last = 0.0f64;
    for (top, (first, later)) in &depths {
        let mut ready = if phases.up { *first } else { 0.0 };
        for (other, (theirs, _)) in depths.iter().filter(|(other, _)| *other != top) {
            let (delay, whole) = hop(fabric, *other, *top, segment);
            let whole = if *theirs > 0.0 { whole } else { 0.0 };
            ready = ready.max(theirs + delay + whole);
        }
        let down = match (phases.up || follows, phases.down) {
            (true, true) => *later,
            (false, true) => *first,
            (_, false) => 0.0,
        };
        last = last.max(ready + down);
    }
    last
}

/// A hop's delay, and the time of a whole segment on it; nothing inside a region.
fn hop(fabric: &Fabric, from: GatewayId, to: GatewayId, segment: u64) -> (f64, f64) {
    let (one, other) = (fabric.gateway(from), fabric.gateway(to));
    let Some(link) = fabric.link(one.region, other.region) else { return (0.0, 0.0) };
    let rates = [one.wan, other.wan].into_iter().flatten().map(|w| w.egress.min(w.ingress));
    let narrowest = rates.fold(link.rate, BitRate::min);
    let whole = segment as f64 / payload_rate(narrowest, fabric.mtu());
    (link.rtt.as_secs_f64() / 2.0, whole)
}

fn span(seconds: f64) -> Span {
    Span::from_ns((seconds * 1e9).round() as u64)
}
