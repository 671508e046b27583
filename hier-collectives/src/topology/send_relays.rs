//! The gateways that pass on what two ranks send to each other, where theirs have no connection.
//!
//! Every gateway chooses the same ones without a message: by names, ports, links and ranks, on which the
//! identity of the fabric makes all agree. Rates may differ between fabric files, so they have no say.

use super::fabric::Fabric;
use crate::ids::{GatewayId, RankId, RegionId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Returns the gateways that pass on what two ranks, in ascending order, send to each other.
/// They are one gateway with a port of each region on a way over the fewest links. The region of
/// a rank adds none if that rank's own gateway has a port.
///
/// Pairs of ranks take turns at ways of equal length, and at the gateways of a region.
pub(super) fn send_relays(whole: &Fabric, ranks: &[RankId]) -> BTreeSet<GatewayId> {
    let turn = ranks.iter().map(|rank| rank.0 as usize).sum();
    let ends: Vec<GatewayId> = ranks.iter().filter_map(|rank| whole.gateway_of(*rank)).collect();
    let [from, to] = ends[..] else { return BTreeSet::new() };
    let region_of = |id: GatewayId| whole.gateway(id).region;
    let has_port = |id: &GatewayId| whole.gateway(*id).wan.is_some();
    let way = send_relay_regions(whole, region_of(from), region_of(to), turn);
    let relay = |region: RegionId| {
        if ends.iter().any(|end| region_of(*end) == region && has_port(end)) {
            return None;
        }
        let gateways = whole.region(region).gateways.clone().map(GatewayId);
        let ports: Vec<GatewayId> = gateways.filter(has_port).collect();
        ports.get(turn % ports.len().max(1)).copied()
    };
    way.into_iter().filter_map(relay).collect()
}

/// Returns the regions on a way over the fewest links from one region to another, both included.
/// If there is no way, returns the last region alone. `turn` chooses among ways of equal length.
fn send_relay_regions(whole: &Fabric, from: RegionId, to: RegionId, turn: usize) -> Vec<RegionId> {
    let mut before = BTreeMap::from([(from, from)]);
    let mut open = VecDeque::from([from]);
    while let Some(at) = open.pop_front().filter(|at| *at != to) {
        let links = whole.links().iter();
        let mut next: Vec<RegionId> = links.filter_map(|link| link.other_end(at)).collect();
        let first = turn % next.len().max(1);
        next.rotate_left(first);
        for region in next {
            before.entry(region).or_insert_with(|| {
                open.push_back(region);
                at
            });
        }
    }
    let mut way = vec![to];
    let mut at = to;
    while let Some(previous) = before.get(&at).filter(|previous| **previous != at) {
        way.push(*previous);
        at = *previous;
    }
    way
}
