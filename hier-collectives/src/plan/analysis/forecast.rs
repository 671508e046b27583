//! Forecast of a plan: its load on links and ports, and its time for one buffer.
//!
//! The choice of a plan compares forecasts, and `landbridge plan` prints them.

use super::pair_shares::PairShares;
use super::payload_flows::{PayloadFlows, payload_flows};
use crate::bound::{self, payload_rate};
use crate::descriptor::{Descriptor, KnownCounts, Pattern};
use crate::ids::{GatewayId, RegionId};
use crate::operation::{Operation, OperationPhases};
use crate::parts::{BlockRanks, OperationPart, OperationPartSource, operation_parts_of_buffer};
use crate::plan::plan_data::Plan;
use crate::plan::tree::Tree;
use crate::plan::trees::owner_trees::OwnerTrees;
use crate::plan::window_size::result_window_size;
use crate::topology::{Fabric, Link};
use std::collections::BTreeMap;
use units::{BitRate, ByteCount, Span};

/// The forecast of one operation on one buffer.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// Time from the last post to the last result.
    pub predicted: Span,
    /// The lower bound T*: the least time that any algorithm needs.
    pub bound: Span,
    /// Load of each direction of each link, by region numbers.
    pub links: Vec<LinkLoad>,
    /// Load of each gateway, in gateway order.
    pub gateways: Vec<GatewayLoad>,
}

/// The load of one direction of a link.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkLoad {
    /// The sending region.
    pub from: RegionId,
    /// The receiving region.
    pub to: RegionId,
    /// First-sent payload bytes.
    pub bytes: ByteCount,
    /// Time in which the link alone carries the payload.
    pub time: Span,
}

/// The load of one gateway.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GatewayLoad {
    /// Payload bytes out of the long-haul port.
    pub wan_out: ByteCount,
    /// Payload bytes into the long-haul port.
    pub wan_in: ByteCount,
    /// Payload bytes to gateways of the same region.
    pub lan_out: ByteCount,
    /// The most bytes of other gateways' partials that are held at once.
    pub held: ByteCount,
}

/// One tree as an operation uses it.
#[derive(Debug, Clone, Copy)]
struct TreeForecast<'a> {
    tree: &'a Tree,
    phases: OperationPhases,
    /// Whether the results wait for the partials of the tree before.
    follows_partials: bool,
    segment_bytes: u64,
}

impl Plan {
    /// Forecasts `operation` on a buffer of `bytes` bytes. In operations on blocks it is the buffer
    /// of all blocks, which are all alike; in an all-to-all it is that of one rank.
    pub fn forecast(&self, fabric: &Fabric, operation: Operation, bytes: ByteCount) -> Forecast {
        let size = if operation.has_data() { bytes.get() } else { 0 };
        let owner_trees = if operation.uses_owner_trees() {
            self.owner_trees(fabric)
        } else {
            OwnerTrees::default()
        };
        let rerooted = self.rerooted_for(fabric, operation);
        let parts = rerooted.forecast_parts(fabric, &owner_trees, operation, size);
        let flows = payload_flows(&parts);
        // While an operation is under way, pair shares fit what it sends. Small ones and sends take what
        // others leave.
        let fits = !self.uses_express(size) && !matches!(operation, Operation::Send { .. });
        let shares = if fits { PairShares::new() } else { self.pair_shares(fabric) };
        Forecast {
            predicted: forecast_span_from_seconds(forecast_seconds(
                fabric, &parts, &flows, &shares,
            )),
            bound: bound::operation_lower_bound(fabric, operation, ByteCount::new(size)),
            links: forecast_link_loads(fabric, &flows),
            gateways: self.forecast_gateway_loads(fabric, &parts, &flows),
        }
    }

    /// Returns the parts of an operation on a buffer of `bytes` bytes with even blocks. The plan is
    /// rerooted for the operation.
    /// `owner_trees` are those of the plan where the operation has blocks.
    pub fn forecast_parts<'a>(
        &'a self,
        fabric: &'a Fabric,
        owner_trees: &'a OwnerTrees,
        operation: Operation,
        bytes: u64,
    ) -> Vec<OperationPart<'a>> {
        if !operation.uses_owner_trees() {
            return operation_parts_of_buffer(
                self,
                operation,
                bytes,
                BlockRanks::All,
                BlockRanks::All,
            );
        }
        let descriptor = Descriptor::of_bytes(Pattern::of_operation(operation, fabric), bytes);
        let counts = KnownCounts::default();
        let (descriptor, counts) = (&descriptor, &counts);
        OperationPartSource { plan: self, owner_trees, fabric, descriptor, counts, only: None }
            .parts()
    }

    /// Predicts the seconds of an all-reduce of `bytes` bytes, where pairs of gateways are limited
    /// to `shares`.
    pub(crate) fn forecast_all_reduce_seconds(
        &self,
        fabric: &Fabric,
        bytes: u64,
        shares: &PairShares,
    ) -> f64 {
        let parts = operation_parts_of_buffer(
            self,
            Operation::AllReduce,
            bytes,
            BlockRanks::All,
            BlockRanks::All,
        );
        forecast_seconds(fabric, &parts, &payload_flows(&parts), shares)
    }

    /// Returns the load of each gateway, in gateway order: payload bytes out and in, and bytes of
    /// partials held. From each sender it holds at most one result window.
    fn forecast_gateway_loads(
        &self,
        fabric: &Fabric,
        parts: &[OperationPart<'_>],
        flows: &PayloadFlows,
    ) -> Vec<GatewayLoad> {
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
        for part in parts.iter().filter(|part| part.phases.up) {
            let (tree, bytes) = (&part.tree, part.bytes());
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
            let window = result_window_size(fabric, holder, sender, self).get();
            more(&mut loads[usize::from(holder.0)].held, window.min(bytes));
        }
        loads
    }
}

/// Predicts the seconds of an operation: the longest load time plus the longest latency of a part.
fn forecast_seconds(
    fabric: &Fabric,
    parts: &[OperationPart<'_>],
    flows: &PayloadFlows,
    shares: &PairShares,
) -> f64 {
    let mut longest = 0.0f64;
    let mut partials_latency = 0.0;
    for part in parts {
        let Some(segment_bytes) = part.longest_segment() else { continue };
        let OperationPart { ref tree, phases, follows: follows_partials, .. } = *part;
        let alone =
            TreeForecast { tree, phases, follows_partials, segment_bytes }.latency_seconds(fabric);
        partials_latency = if follows_partials { partials_latency + alone } else { alone };
        longest = longest.max(partials_latency);
    }
    forecast_longest_load_seconds(fabric, flows, shares) + longest
}

/// Returns the load of each direction of each link: its payload bytes, and the time that they take
/// on it after losses.
fn forecast_link_loads(fabric: &Fabric, flows: &PayloadFlows) -> Vec<LinkLoad> {
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
        let rate = forecast_delivered_rate(link, link.rate, fabric.mtu());
        rates.insert((link.a, link.b), rate);
        rates.insert((link.b, link.a), rate);
    }
    let load = |((from, to), bytes): (&(RegionId, RegionId), &u64)| LinkLoad {
        from: *from,
        to: *to,
        bytes: ByteCount::new(*bytes),
        time: forecast_span_from_seconds(*bytes as f64 / rates[&(*from, *to)]),
    };
    bytes.iter().map(load).collect()
}

/// Returns the payload bytes per second that arrive over `link` at `rate`, after losses.
fn forecast_delivered_rate(link: &Link, rate: BitRate, mtu: u16) -> f64 {
    payload_rate(rate, mtu) * (1.0 - link.loss.as_f64())
}

/// Returns the seconds for which the busiest link, port, or pair of those in `shares` is full.
fn forecast_longest_load_seconds(
    fabric: &Fabric,
    flows: &PayloadFlows,
    shares: &PairShares,
) -> f64 {
    let mtu = fabric.mtu();
    let (mut outs, mut ins, mut links) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut longest = 0.0f64;
    for ((from, to), bytes) in flows {
        let ends = (fabric.gateway(*from).region, fabric.gateway(*to).region);
        let Some(link) = fabric.link(ends.0, ends.1) else { continue };
        *outs.entry(*from).or_insert(0u64) += bytes;
        *ins.entry(*to).or_insert(0u64) += bytes;
        links.entry(ends).or_insert((0u64, link)).0 += bytes;
        if let Some(share) = shares.get(&(*from, *to)) {
            longest = longest.max(
                *bytes as f64 / forecast_delivered_rate(link, share.rate_over(link.rate), mtu),
            );
        }
    }
    let seconds = |bytes: u64, rate: BitRate| bytes as f64 / payload_rate(rate, mtu);
    let out =
        |(id, bytes): (&GatewayId, &u64)| Some(seconds(*bytes, fabric.gateway(*id).wan?.egress));
    let inward =
        |(id, bytes): (&GatewayId, &u64)| Some(seconds(*bytes, fabric.gateway(*id).wan?.ingress));
    let links = links
        .values()
        .map(|(bytes, link)| *bytes as f64 / forecast_delivered_rate(link, link.rate, mtu));
    let ports = outs.iter().filter_map(out).chain(ins.iter().filter_map(inward));
    ports.chain(links).fold(longest, f64::max)
}

impl TreeForecast<'_> {
    /// Returns the seconds from the last post to the last result of a segment that meets no queue.
    ///
    /// latency = sum of delays + time at each relay until the segment is whole. The slowest hop of
    /// the first phase is left out, since its time is part of the load. Results that follow the
    /// partials of another tree are not a first phase.
    fn latency_seconds(&self, fabric: &Fabric) -> f64 {
        let Self { tree, phases, follows_partials, segment_bytes } = *self;
        let hops = tree
            .parents
            .iter()
            .map(|(id, up)| (*id, forecast_hop_seconds(fabric, *id, *up, segment_bytes)));
        let hops: BTreeMap<GatewayId, (f64, f64)> = hops.collect();
        // Seconds of the longest path below each root: as the first phase, and as a later one.
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
                let (delay, whole) = forecast_hop_seconds(fabric, *other, *top, segment_bytes);
                let whole = if *theirs > 0.0 { whole } else { 0.0 };
                ready = ready.max(theirs + delay + whole);
            }
            let down = match (phases.up || follows_partials, phases.down) {
                (true, true) => *later,
                (false, true) => *first,
                (_, false) => 0.0,
            };
            last = last.max(ready + down);
        }
        last
    }
}

/// Returns the seconds of a hop: its one-way delay, and the time of a whole segment on it. Both are
/// 0 inside a region.
fn forecast_hop_seconds(
    fabric: &Fabric,
    from: GatewayId,
    to: GatewayId,
    segment_bytes: u64,
) -> (f64, f64) {
    let (one, other) = (fabric.gateway(from), fabric.gateway(to));
    let Some(link) = fabric.link(one.region, other.region) else { return (0.0, 0.0) };
    let rates = [one.wan, other.wan].into_iter().flatten().map(|w| w.egress.min(w.ingress));
    let narrowest = rates.fold(link.rate, BitRate::min);
    let whole = segment_bytes as f64 / payload_rate(narrowest, fabric.mtu());
    (link.rtt.as_secs_f64() / 2.0, whole)
}

/// Converts seconds to a [`Span`], rounded to the nearest nanosecond.
fn forecast_span_from_seconds(seconds: f64) -> Span {
    Span::from_ns((seconds * 1e9).round() as u64)
}
