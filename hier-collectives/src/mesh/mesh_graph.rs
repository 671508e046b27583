//! The graph of connections between all gateways, as one gateway knows it.
//!
//! The table of reports makes it; routes, sessions and status read it.

use crate::ids::{GatewayId, RegionId};
use crate::topology::{Fabric, Link};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// The state of the connection between two gateways that the fabric connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeshConnectionState {
    /// Both ends can use it.
    Up,
    /// It is not up, but is expected to come up soon.
    Awaited,
    /// It is not up and is gone round: its path is silent, or nobody connected for too long.
    Down,
}

/// Two gateways, the lower number first.
pub type GatewayPair = (GatewayId, GatewayId);

/// The connections between all gateways of a fabric, with their states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshGraph {
    /// The gateways to which each gateway has a connection that is up, ascending, in gateway order.
    neighbours: Vec<Vec<GatewayId>>,
    /// Connections that are not up, but awaited.
    awaited: BTreeSet<GatewayPair>,
    /// Connections that are gone round.
    down: BTreeSet<GatewayPair>,
}

impl MeshGraph {
    /// Makes the graph of a fabric's connections. `state` tells the state of each, lower gateway
    /// first.
    pub fn new(
        fabric: &Fabric,
        state: impl Fn(GatewayId, GatewayId) -> MeshConnectionState,
    ) -> Self {
        // Each gateway gets its lower neighbours before its own turn, so the lists are ascending.
        let mut neighbours = vec![Vec::new(); fabric.gateways().len()];
        let (mut awaited, mut down) = (BTreeSet::new(), BTreeSet::new());
        for one in fabric.gateway_ids() {
            for other in fabric.gateway_ids().filter(|other| one < *other) {
                if !fabric.connects(one, other) {
                    continue;
                }
                match state(one, other) {
                    MeshConnectionState::Up => {
                        neighbours[usize::from(one.0)].push(other);
                        neighbours[usize::from(other.0)].push(one);
                    }
                    MeshConnectionState::Awaited => {
                        awaited.insert((one, other));
                    }
                    MeshConnectionState::Down => {
                        down.insert((one, other));
                    }
                }
            }
        }
        Self { neighbours, awaited, down }
    }

    /// Makes the graph in which every connection of the fabric has the same state.
    pub fn uniform(fabric: &Fabric, state: MeshConnectionState) -> Self {
        Self::new(fabric, |_, _| state)
    }

    /// Returns the graph of some gateways alone, ascending, which are numbered from 0 on in it.
    pub fn restricted_to(&self, gateways: &[GatewayId]) -> Self {
        let number = |id: &GatewayId| {
            let index = gateways.binary_search(id).ok()?;
            u16::try_from(index).ok().map(GatewayId)
        };
        let of_one = |id: &GatewayId| self.neighbours(*id).iter().filter_map(number).collect();
        let pair = |(one, other): &GatewayPair| Some((number(one)?, number(other)?));
        Self {
            neighbours: gateways.iter().map(of_one).collect(),
            awaited: self.awaited.iter().filter_map(pair).collect(),
            down: self.down.iter().filter_map(pair).collect(),
        }
    }

    /// Returns the number of gateways.
    pub fn gateway_count(&self) -> usize {
        self.neighbours.len()
    }

    /// Returns the gateways to which a gateway has a connection that is up, ascending.
    pub fn neighbours(&self, of: GatewayId) -> &[GatewayId] {
        self.neighbours.get(usize::from(of.0)).map_or(&[], Vec::as_slice)
    }

    /// Whether the connection between two gateways is up.
    pub fn is_up(&self, one: GatewayId, other: GatewayId) -> bool {
        self.neighbours(one).binary_search(&other).is_ok()
    }

    /// Whether the direct connection between two gateways is down, so that routes avoid it.
    pub fn is_down(&self, one: GatewayId, other: GatewayId) -> bool {
        self.down.contains(&(one.min(other), one.max(other)))
    }

    /// Returns the connections that are up here and not in a later graph, in order.
    pub fn pairs_lost_in(&self, later: &Self) -> BTreeSet<GatewayPair> {
        let of_one = |(one, others): (usize, &Vec<GatewayId>)| {
            let one = GatewayId(u16::try_from(one).unwrap_or(u16::MAX));
            let lost =
                others.iter().filter(move |other| one < **other && !later.is_up(one, **other));
            lost.map(move |other| (one, *other)).collect::<Vec<_>>()
        };
        self.neighbours.iter().enumerate().flat_map(of_one).collect()
    }

    /// Whether no connection is awaited, so that each is either used or gone round.
    pub fn is_settled(&self) -> bool {
        self.awaited.is_empty()
    }

    /// Whether every gateway has a connection to every other, so that none forwards messages.
    pub fn is_complete(&self) -> bool {
        let others = self.neighbours.len().saturating_sub(1);
        self.neighbours.iter().all(|of_one| of_one.len() == others)
    }

    /// Returns the connections that are gone round, in order.
    pub fn pairs_down(&self) -> impl Iterator<Item = GatewayPair> + '_ {
        self.down.iter().copied()
    }

    /// Returns the connections that are not up, but awaited, in order.
    pub fn pairs_awaited(&self) -> impl Iterator<Item = GatewayPair> + '_ {
        self.awaited.iter().copied()
    }

    /// Returns the connections of one gateway that are not up, in the order of their other ends.
    pub fn missing_neighbours(&self, of: GatewayId) -> Vec<GatewayId> {
        let missing = self.awaited.iter().chain(&self.down).filter_map(|(one, other)| {
            (*one == of).then_some(*other).or((*other == of).then_some(*one))
        });
        missing.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the lowest gateway that has connections to both of two gateways, which go round
    /// their own by way of it. `None` without such a gateway.
    pub fn relay_between(&self, one: GatewayId, other: GatewayId) -> Option<GatewayId> {
        self.neighbours(one).iter().copied().find(|relay| self.is_up(*relay, other))
    }

    /// Whether data may use a link: every connection between the ports of its regions is up. A plan
    /// divides a link among all of them.
    pub fn is_link_up(&self, fabric: &Fabric, link: &Link) -> bool {
        let gateways = |region: RegionId| fabric.region(region).gateways.clone().map(GatewayId);
        gateways(link.a).all(|one| {
            gateways(link.b).all(|other| !fabric.connects(one, other) || self.is_up(one, other))
        })
    }

    /// Returns the fabric with the links that are up, if data can go from each gateway to each.
    pub fn fabric_in_use<'f>(&self, fabric: &'f Fabric) -> Option<Cow<'f, Fabric>> {
        if self.awaited.is_empty() && self.down.is_empty() {
            return Some(Cow::Borrowed(fabric));
        }
        if self.is_region_divided(fabric) {
            return None;
        }
        let up = fabric.links().iter().filter(|link| self.is_link_up(fabric, link));
        let in_use = fabric.with_links(up.cloned().collect());
        in_use.without_witness().is_connected().then_some(Cow::Owned(in_use))
    }

    /// Returns the regions whose link to region `here` could be gone round if it were down: data
    /// could still go from each gateway to each.
    pub fn regions_with_way_round(&self, fabric: &Fabric, here: RegionId) -> BTreeSet<RegionId> {
        if self.is_region_divided(fabric) {
            return BTreeSet::new();
        }
        // A witness, whose region is the last, passes no data on.
        let ranked = fabric.ranked_region_count();
        let links = || fabric.links().iter().filter(|link| usize::from(link.b.0) < ranked);
        let up = links().filter(|link| self.is_link_up(fabric, link));
        let up: Vec<(RegionId, RegionId)> = up.map(|link| (link.a, link.b)).collect();
        let ours = links().map(|link| (link.a, link.b));
        let ours = ours.filter(|(a, b)| *a == here || *b == here);
        let gone_round = ours.filter(|ends| {
            let others = up.iter().copied().filter(|link| link != ends);
            mesh_graph_joins_regions(ranked, others)
        });
        gone_round.map(|(a, b)| if a == here { b } else { a }).collect()
    }

    /// Whether some connection between gateways of one region is not up.
    fn is_region_divided(&self, fabric: &Fabric) -> bool {
        let mut missing = self.awaited.iter().chain(&self.down);
        missing.any(|(one, other)| fabric.gateway(*one).region == fabric.gateway(*other).region)
    }
}

/// Whether links between these pairs of regions join all regions, of which there are `regions`.
fn mesh_graph_joins_regions(
    regions: usize,
    links: impl Iterator<Item = (RegionId, RegionId)>,
) -> bool {
    // Each region points towards a region that stands for all that are joined with it.
    let mut joined: Vec<usize> = (0..regions).collect();
    let mut parts = regions;
    for (a, b) in links {
        let [a, b] = [a, b].map(|region| {
            let mut at = usize::from(region.0);
            while joined[at] != at {
                at = joined[at];
            }
            at
        });
        if a != b {
            joined[a.max(b)] = a.min(b);
            parts -= 1;
        }
    }
    parts <= 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FabricBuilder, lossless_link, mbit, symmetric_port};
    use MeshConnectionState::{Awaited, Down, Up};

    /// Three regions, the second of which has two gateways with ports; all pairs are linked.
    fn fabric() -> Fabric {
        let wan = Some(symmetric_port(mbit(1)));
        let builder = FabricBuilder::default().region("a", [(1, wan)]);
        let builder = builder.region("b", [(1, wan), (1, wan)]).region("c", [(1, wan)]);
        builder.all_pairs(lossless_link(mbit(1), 2)).build()
    }

    /// The graph in which these connections are down, and all others up.
    fn without(fabric: &Fabric, down: &[(u16, u16)]) -> MeshGraph {
        let is_down = |one: GatewayId, other: GatewayId| down.contains(&(one.0, other.0));
        MeshGraph::new(fabric, |one, other| if is_down(one, other) { Down } else { Up })
    }

    #[test]
    fn a_link_needs_the_connections_of_all_its_ports() {
        let fabric = fabric();
        let graph = without(&fabric, &[(0, 2)]);
        let up: Vec<bool> =
            fabric.links().iter().map(|link| graph.is_link_up(&fabric, link)).collect();
        assert_eq!(up, [false, true, true]);
        assert!(
            graph.is_up(GatewayId(0), GatewayId(1)) && !graph.is_up(GatewayId(2), GatewayId(0))
        );
        assert_eq!(graph.relay_between(GatewayId(0), GatewayId(2)), Some(GatewayId(1)));
        assert_eq!(graph.missing_neighbours(GatewayId(2)), [GatewayId(0)]);
        assert!(graph.is_settled() && !graph.is_complete());
        assert!(MeshGraph::uniform(&fabric, Up).is_complete());
        assert!(!MeshGraph::uniform(&fabric, Awaited).is_settled());
    }

    #[test]
    fn data_go_round_links_where_others_join_all_regions() {
        let fabric = fabric();
        let [a, b, c] = [0, 1, 2].map(RegionId);
        let whole = without(&fabric, &[]);
        assert_eq!(whole.fabric_in_use(&fabric).as_deref(), Some(&fabric));
        assert_eq!(whole.regions_with_way_round(&fabric, a), BTreeSet::from([b, c]));
        let cut = without(&fabric, &[(0, 3)]);
        let links = cut.fabric_in_use(&fabric).expect("a path").links().len();
        assert_eq!(links, 2);
        assert_eq!(cut.regions_with_way_round(&fabric, a), BTreeSet::from([c]), "b alone joins it");
        let divided = without(&fabric, &[(1, 2)]);
        assert!(divided.regions_with_way_round(&fabric, a).is_empty());
        assert_eq!(without(&fabric, &[(0, 3), (1, 3)]).fabric_in_use(&fabric), None);
        assert_eq!(without(&fabric, &[(1, 2)]).fabric_in_use(&fabric), None, "inside a region");
    }
}
