//! The narrowest cut of a fabric, by maximum flow (max-flow min-cut theorem).

use super::port_bits::PortBits;
use crate::topology::Fabric;
use std::collections::VecDeque;
use units::BitRate;

/// Returns the rate of the narrowest cut between the regions of a fabric, in IP bytes; 0 for one
/// region.
///
/// All data that leave a group of regions pass its ports and the links to the other regions.
pub fn min_cut(fabric: &Fabric) -> BitRate {
    narrowest_min_cut(fabric, None, HubFlows { from_hub: true, to_hub: true })
}

/// The flows between the hub and the other regions that count.
#[derive(Debug, Clone, Copy)]
pub(super) struct HubFlows {
    /// Flows from the hub to another region.
    pub from_hub: bool,
    /// Flows from another region to the hub.
    pub to_hub: bool,
}

/// Returns the least maximum flow between region `hub`, or the first one, and another region, in
/// the directions of `flows`.
///
/// Every cut separates the hub from some region, so the least of these flows is the narrowest cut.
pub(super) fn narrowest_min_cut(fabric: &Fabric, hub: Option<usize>, flows: HubFlows) -> BitRate {
    let hub = hub.unwrap_or(0);
    let network = MinCutNetwork::of_fabric(fabric);
    let others = (0..fabric.regions().len()).filter(|region| *region != hub);
    let rates = others.flat_map(|other| {
        let out = flows.from_hub.then(|| network.clone().max_flow(hub, other));
        let inward = flows.to_hub.then(|| network.clone().max_flow(other, hub));
        out.into_iter().chain(inward)
    });
    BitRate::from_bits_per_second(rates.min().unwrap_or(0))
}

/// The flow network: three nodes for each region, its inside, its egress and its ingress.
#[derive(Debug, Clone)]
struct MinCutNetwork {
    /// Edges that leave each node.
    edges: Vec<Vec<usize>>,
    /// Head of each edge; edge `i ^ 1` is the reverse edge of edge `i`.
    to: Vec<usize>,
    /// Residual capacity of each edge, in bits per second.
    residual: Vec<u64>,
}

impl MinCutNetwork {
    /// Builds the flow network of a fabric: its capacities are the rates of ports and links.
    fn of_fabric(fabric: &Fabric) -> Self {
        let regions = fabric.regions().len();
        let mut network =
            Self { edges: vec![Vec::new(); 3 * regions], to: Vec::new(), residual: Vec::new() };
        for region in 0..regions {
            let PortBits { egress, ingress, .. } = PortBits::of_region(fabric, region);
            network.add_edge(3 * region, 3 * region + 1, egress);
            network.add_edge(3 * region + 2, 3 * region, ingress);
        }
        for link in fabric.links() {
            let (a, b) = (3 * usize::from(link.a.0), 3 * usize::from(link.b.0));
            network.add_edge(a + 1, b + 2, link.rate.bits_per_second());
            network.add_edge(b + 1, a + 2, link.rate.bits_per_second());
        }
        network
    }

    /// Adds an edge with a capacity in bits per second, and a reverse edge without capacity.
    fn add_edge(&mut self, from: usize, to: usize, capacity: u64) {
        for (from, to, capacity) in [(from, to, capacity), (to, from, 0)] {
            self.edges[from].push(self.to.len());
            self.to.push(to);
            self.residual.push(capacity);
        }
    }

    /// Returns the maximum flow from region `from` to region `to`, in bits per second, by Dinic's
    /// algorithm. Both the links and the ports of regions limit it.
    fn max_flow(mut self, from: usize, to: usize) -> u64 {
        let (source, sink) = (3 * from, 3 * to);
        let mut total = 0;
        loop {
            let levels = self.node_levels(source);
            if levels[sink] == usize::MAX {
                return total;
            }
            let mut next = vec![0; self.edges.len()];
            loop {
                let pushed = self.push_flow(source, sink, u64::MAX, &levels, &mut next);
                if pushed == 0 {
                    break;
                }
                total += pushed;
            }
        }
    }

    /// Returns the distance in edges of each node from `source`, over edges with residual capacity;
    /// `usize::MAX` for nodes that no such path reaches.
    fn node_levels(&self, source: usize) -> Vec<usize> {
        let mut levels = vec![usize::MAX; self.edges.len()];
        levels[source] = 0;
        let mut open = VecDeque::from([source]);
        while let Some(node) = open.pop_front() {
            for &edge in self.edges[node].iter().filter(|edge| self.residual[**edge] > 0) {
                let to = self.to[edge];
                if levels[to] == usize::MAX {
                    levels[to] = levels[node] + 1;
                    open.push_back(to);
                }
            }
        }
        levels
    }

    /// Pushes at most `most` bits per second from `node` to `sink`, along one path whose `levels`
    /// rise by 1. Returns the flow that was pushed; 0 if there is no such path. `next` holds the
    /// first edge of each node that is worth a try, and is advanced past edges that lead nowhere.
    fn push_flow(
        &mut self,
        node: usize,
        sink: usize,
        most: u64,
        levels: &[usize],
        next: &mut [usize],
    ) -> u64 {
        if node == sink {
            return most;
        }
        while let Some(&edge) = self.edges[node].get(next[node]) {
            let to = self.to[edge];
            if self.residual[edge] > 0 && levels[to] == levels[node] + 1 {
                let pushed = self.push_flow(to, sink, most.min(self.residual[edge]), levels, next);
                if pushed > 0 {
                    self.residual[edge] -= pushed;
                    self.residual[edge ^ 1] += pushed;
                    return pushed;
                }
            }
            next[node] += 1;
        }
        0
    }
}
