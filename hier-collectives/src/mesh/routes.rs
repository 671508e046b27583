//! Routes of control messages: over a direct connection, or through gateways that forward them.
//!
//! Data take the edges of trees, which are connections. Control messages go between any two
//! gateways, also between those without a connection. Gateways that know the same graph count the
//! same hops, and each hop is nearer to the receiver. While graphs differ, a message may miss its
//! way; the gateway that drops it says so in its next report. The session and the engine use them.

use super::mesh_graph::MeshGraph;
use crate::ids::GatewayId;
use crate::topology::Fabric;
use std::collections::BTreeSet;
use units::Span;

/// The routes from one gateway to all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routes {
    /// The first hop of the route to each gateway and the number of hops, in gateway order; `None`
    /// where no route leads.
    routes: Vec<Option<Route>>,
}

/// A route to one gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Route {
    next: GatewayId,
    hops: u16,
}

impl Routes {
    /// Makes the routes of a gateway that reaches no other.
    pub fn none() -> Self {
        Self { routes: Vec::new() }
    }

    /// Finds the routes from gateway `me` with the fewest hops; of equal routes the one over the
    /// lowest neighbour.
    pub fn from_gateway(graph: &MeshGraph, me: GatewayId) -> Self {
        let mut routes: Vec<Option<Route>> = vec![None; graph.gateway_count()];
        let mut level = BTreeSet::from([me]);
        let mut hops = 0;
        while !level.is_empty() {
            hops += 1;
            let mut further = BTreeSet::new();
            for at in level {
                for to in graph.neighbours(at).iter().copied().filter(|to| *to != me) {
                    let first = routes[usize::from(at.0)].map_or(to, |route| route.next);
                    match &mut routes[usize::from(to.0)] {
                        Some(route) if route.hops == hops => route.next = route.next.min(first),
                        Some(_) => {}
                        none => {
                            *none = Some(Route { next: first, hops });
                            further.insert(to);
                        }
                    }
                }
            }
            level = further;
        }
        Self { routes }
    }

    /// Returns the gateway to which a message for `to` is sent next: `to` itself over a direct
    /// connection, `None` where no route leads.
    pub fn next_hop(&self, to: GatewayId) -> Option<GatewayId> {
        Some(self.route(to)?.next)
    }

    /// Returns the number of hops to a gateway; `None` where no route leads.
    pub fn hops(&self, to: GatewayId) -> Option<u16> {
        Some(self.route(to)?.hops)
    }

    /// Whether a route leads to a gateway.
    pub fn reaches(&self, to: GatewayId) -> bool {
        self.route(to).is_some()
    }

    /// Whether this gateway has a direct connection to `other`.
    pub fn is_direct(&self, other: GatewayId) -> bool {
        self.next_hop(other) == Some(other)
    }

    /// Returns the route to a gateway, if one leads there.
    fn route(&self, to: GatewayId) -> Option<Route> {
        self.routes.get(usize::from(to.0)).copied().flatten()
    }
}

/// Returns the one-way delay of each gateway's messages to `me` over the links of the route, in
/// gateway order; zero where no route leads.
pub fn route_delays_to(fabric: &Fabric, graph: &MeshGraph, me: GatewayId) -> Vec<Span> {
    let routes = Routes::from_gateway(graph, me);
    let hops = |id: GatewayId| if id == me { Some(0) } else { routes.hops(id) };
    let mut nearest_first: Vec<GatewayId> = fabric.gateway_ids().filter(|id| *id != me).collect();
    nearest_first.sort_by_key(|id| hops(*id));
    let mut delays = vec![Span::ZERO; graph.gateway_count()];
    for from in nearest_first {
        let Some(distance) = hops(from) else { continue };
        let mut neighbours = graph.neighbours(from).iter().copied();
        let Some(next) = neighbours.find(|id| hops(*id).is_some_and(|hops| hops < distance)) else {
            continue;
        };
        let regions = [from, next].map(|id| fabric.gateway(id).region);
        let link = fabric.link(regions[0], regions[1]);
        let one_way = link.map_or(Span::ZERO, |link| Span::from_ns(link.rtt.ns() / 2));
        delays[usize::from(from.0)] = one_way + delays[usize::from(next.0)];
    }
    delays
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::MeshConnectionState;
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
            let graph = MeshGraph::uniform(&fabric, MeshConnectionState::Up);
            let routes: Vec<Routes> =
                fabric.gateway_ids().map(|me| Routes::from_gateway(&graph, me)).collect();
            for from in fabric.gateway_ids() {
                for to in fabric.gateway_ids().filter(|to| *to != from) {
                    let mut way = vec![from];
                    while *way.last().expect("a start") != to {
                        let at = *way.last().expect("a start");
                        let next = routes[usize::from(at.0)].next_hop(to).expect("a route");
                        prop_assert!(fabric.connects(at, next), "{way:?}, then {next}");
                        prop_assert!(!way.contains(&next), "{way:?}, then {next}");
                        way.push(next);
                    }
                    let region = |id: GatewayId| fabric.gateway(id).region;
                    let links = way
                        .windows(2)
                        .filter_map(|hop| fabric.link(region(hop[0]), region(hop[1])));
                    let delay = links.map(|link| link.rtt.ns() / 2).sum();
                    let delays = route_delays_to(&fabric, &graph, to);
                    prop_assert_eq!(delays[usize::from(from.0)], Span::from_ns(delay), "{:?}", way);
                    let mine = &routes[usize::from(from.0)];
                    prop_assert_eq!(mine.hops(to).map(usize::from), Some(way.len() - 1));
                    prop_assert_eq!(mine.is_direct(to), fabric.connects(from, to));
                    prop_assert!(mine.is_direct(to) || !graph.is_complete());
                }
            }
        }
    }

    #[test]
    fn no_route_leads_over_connections_that_are_down() {
        let fabric = fabric(&[1, 1, 1], &[1, 1, 1], &[0, 0, 0], u64::MAX);
        let [a, b, c] = [0, 1, 2].map(GatewayId);
        let without = |down: &[GatewayId]| {
            let graph = MeshGraph::new(&fabric, |_, other| {
                if down.contains(&other) {
                    MeshConnectionState::Down
                } else {
                    MeshConnectionState::Up
                }
            });
            (Routes::from_gateway(&graph, a), route_delays_to(&fabric, &graph, a))
        };
        let (routes, _) = without(&[]);
        assert_eq!(routes.next_hop(c), Some(c));
        let (routes, delays) = without(&[c]);
        assert_eq!((routes.next_hop(c), routes.next_hop(b)), (None, Some(b)));
        assert_eq!(delays[2], Span::ZERO);
        assert!(!routes.reaches(GatewayId(9)) && !routes.reaches(a));
    }
}
