//! Routes of control messages: over a direct connection, or through gateways that forward them.
//!
//! Data take the edges of trees, which are connections. Control messages go between any two
//! gateways, also between those without a link. Every gateway counts the same hops, and each hop is
//! nearer to the receiver, so that no message comes back. The session and the engine use them.

use crate::ids::GatewayId;
use crate::topology::Fabric;
use std::collections::VecDeque;
use units::Span;

/// The routes from one gateway to all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routes {
    me: GatewayId,
    /// The next hop to each gateway, in gateway order; to `me` it is `me`.
    next: Vec<GatewayId>,
    /// Whether some pair of gateways has no direct connection.
    partial: bool,
}

impl Routes {
    /// Finds the routes from gateway `me` with the fewest hops; of equal routes the one over the
    /// lowest neighbour.
    pub fn from_gateway(fabric: &Fabric, me: GatewayId) -> Self {
        let neighbours = connected_gateways(fabric, me);
        let mut next = Vec::with_capacity(fabric.gateways().len());
        for to in fabric.gateway_ids() {
            if to == me || neighbours.contains(&to) {
                next.push(to);
                continue;
            }
            next.push(nearest_next_hop(&neighbours, &hop_counts_to(fabric, to)).unwrap_or(to));
        }
        let mut all = fabric.gateway_ids();
        let partial = all.any(|one| fabric.gateway_ids().any(|other| !fabric.connects(one, other)));
        Self { me, next, partial }
    }

    /// Returns the gateway to which a message for `to` is sent next: `to` itself over a direct
    /// connection.
    pub fn next_hop(&self, to: GatewayId) -> GatewayId {
        self.next.get(usize::from(to.0)).copied().unwrap_or(to)
    }

    /// Whether this gateway has a direct connection to `other`.
    pub fn is_direct(&self, other: GatewayId) -> bool {
        self.next_hop(other) == other
    }

    /// Returns the gateways to which messages go by way of `neighbour`, and `neighbour` before
    /// them.
    pub fn reached_through(&self, neighbour: GatewayId) -> impl Iterator<Item = GatewayId> {
        let behind = (0..).map(GatewayId).zip(&self.next).filter_map(move |(to, next)| {
            (*next == neighbour && to != neighbour && to != self.me).then_some(to)
        });
        std::iter::once(neighbour).chain(behind)
    }

    /// Whether some pair of gateways of the fabric has no direct connection.
    pub fn is_partial(&self) -> bool {
        self.partial
    }
}

/// Returns the one-way delay of each gateway's messages to `me` over the links of the route, in
/// gateway order.
pub fn route_delays_to(fabric: &Fabric, me: GatewayId) -> Vec<Span> {
    let hops = hop_counts_to(fabric, me);
    let mut nearest_first: Vec<GatewayId> = fabric.gateway_ids().filter(|id| *id != me).collect();
    nearest_first.sort_by_key(|id| hops[usize::from(id.0)]);
    let mut delays = vec![Span::ZERO; hops.len()];
    for from in nearest_first {
        let next = nearest_next_hop(&connected_gateways(fabric, from), &hops).unwrap_or(me);
        let regions = [from, next].map(|id| fabric.gateway(id).region);
        let link = fabric.link(regions[0], regions[1]);
        let one_way = link.map_or(Span::ZERO, |link| Span::from_ns(link.rtt.ns() / 2));
        delays[usize::from(from.0)] = one_way + delays[usize::from(next.0)];
    }
    delays
}

/// Returns the gateways with a direct connection to gateway `of`, ascending.
fn connected_gateways(fabric: &Fabric, of: GatewayId) -> Vec<GatewayId> {
    fabric.gateway_ids().filter(|id| *id != of && fabric.connects(of, *id)).collect()
}

/// Returns the neighbour with the least number in `hops`, which are in gateway order; of equals the
/// first.
fn nearest_next_hop(neighbours: &[GatewayId], hops: &[usize]) -> Option<GatewayId> {
    neighbours.iter().min_by_key(|id| hops[usize::from(id.0)]).copied()
}

/// Counts the hops of each gateway to gateway `to`, in gateway order; `usize::MAX` where no route
/// leads.
fn hop_counts_to(fabric: &Fabric, to: GatewayId) -> Vec<usize> {
    let mut hops = vec![usize::MAX; fabric.gateways().len()];
    hops[usize::from(to.0)] = 0;
    let mut open = VecDeque::from([to]);
    while let Some(at) = open.pop_front() {
        for other in fabric.gateway_ids().filter(|other| fabric.connects(at, *other)) {
            if hops[usize::from(other.0)] == usize::MAX {
                hops[usize::from(other.0)] = hops[usize::from(at.0)] + 1;
                open.push_back(other);
            }
        }
    }
    hops
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FabricBuilder, lossless_link, mbit, symmetric_port};
    use proptest::prelude::*;

    /// A region for each count of gateways. A tree's edges, and those in `more`, have links.
    fn fabric(gateways: &[u32], ports: &[u32], edges: &[usize], more: u64) -> Fabric {
        let wan = Some(symmetric_port(mbit(1)));
        let mut builder = FabricBuilder::default();
        for (index, count) in gateways.iter().enumerate() {
            let ports = ports[index].clamp(1, *count);
            let gateways = (0..*count).map(|gateway| (1, wan.filter(|_| gateway < ports)));
            builder = builder.region(&format!("r{index}"), gateways);
        }
        for (one, parent) in edges.iter().enumerate().take(gateways.len()).skip(1) {
            for other in 0..one {
                let is_tree = parent % one == other;
                if is_tree || more >> (one * 8 + other) & 3 == 3 {
                    let rtt_ms = 2 + 2 * one as u64 + 20 * other as u64;
                    let state = lossless_link(mbit(1), rtt_ms);
                    builder = builder.link(&format!("r{one}"), &format!("r{other}"), state);
                }
            }
        }
        builder.build()
    }

    proptest! {
        #[test]
        fn every_message_arrives_over_connections_without_a_loop(
            gateways in proptest::collection::vec(1u32..4, 1..7),
            ports in proptest::collection::vec(1u32..4, 7),
            edges in proptest::collection::vec(0usize..100, 7),
            more: u64,
        ) {
            let fabric = fabric(&gateways, &ports, &edges, more);
            let routes: Vec<Routes> =
                fabric.gateway_ids().map(|me| Routes::from_gateway(&fabric, me)).collect();
            for from in fabric.gateway_ids() {
                for to in fabric.gateway_ids().filter(|to| *to != from) {
                    let mut way = vec![from];
                    while *way.last().expect("a start") != to {
                        let at = *way.last().expect("a start");
                        let next = routes[usize::from(at.0)].next_hop(to);
                        prop_assert!(fabric.connects(at, next), "{way:?}, then {next}");
                        prop_assert!(!way.contains(&next), "{way:?}, then {next}");
                        way.push(next);
                    }
                    let region = |id: GatewayId| fabric.gateway(id).region;
                    let links = way
                        .windows(2)
                        .filter_map(|hop| fabric.link(region(hop[0]), region(hop[1])));
                    let delay = links.map(|link| link.rtt.ns() / 2).sum();
                    let delays = route_delays_to(&fabric, to);
                    prop_assert_eq!(delays[usize::from(from.0)], Span::from_ns(delay), "{:?}", way);
                    let mine = &routes[usize::from(from.0)];
                    prop_assert!(mine.reached_through(way[1]).any(|other| other == to));
                    prop_assert_eq!(mine.is_direct(to), fabric.connects(from, to));
                    prop_assert!(mine.is_direct(to) || mine.is_partial());
                }
            }
        }
    }
}
