//! The narrowest cut of a fabric, by maximum flows.

use super::ports::port_bits;
use crate::topology::Fabric;
use std::collections::VecDeque;
use units::BitRate;

/// The rate of the narrowest cut between the regions, in IP bytes: whatever leaves a group of
/// regions passes their ports or the links to the others.
pub fn min_cut(fabric: &Fabric) -> BitRate {
    narrowest(fabric, None, (true, true))
}

/// The least maximum flow from region `hub` (the first, where none is given) to another, and
/// from another to it, as far as `from_hub` and `to_hub` ask for them. Every cut separates the
/// hub from some region.
pub(super) fn narrowest(
    fabric: &Fabric,
    hub: Option<usize>,
    (from_hub, to_hub): (bool, bool),
) -> BitRate {
    let hub = hub.unwrap_or(0);
    let network = Network::of(fabric);
    let others = (0..fabric.regions().len()).filter(|region| *region != hub);
    let flows = others.flat_map(|other| {
        let out = from_hub.then(|| network.clone().flow(hub, other));
        let inward = to_hub.then(|| network.clone().flow(other, hub));
        out.into_iter().chain(inward)
    });
    BitRate::from_bits_per_second(flows.min().unwrap_or(0))
}

/// Three nodes for each region: its inside, its port out, its port in.
#[derive(Debug, Clone)]
struct Network {
    /// Edges by node.
    edges: Vec<Vec<usize>>,
    /// Where each edge leads and what it still carries; edge `i ^ 1` is its way back.
    to: Vec<usize>,
    left: Vec<u64>,
}

impl Network {
    fn of(fabric: &Fabric) -> Self {
        let regions = fabric.regions().len();
        let mut network =
            Self { edges: vec![Vec::new(); 3 * regions], to: Vec::new(), left: Vec::new() };
        for region in 0..regions {
            let (out, inward, _) = port_bits(fabric, region);
            network.join(3 * region, 3 * region + 1, out);
            network.join(3 * region + 2, 3 * region, inward);
        }
        for link in fabric.links() {
            let (a, b) = (3 * usize::from(link.a.0), 3 * usize::from(link.b.0));
            network.join(a + 1, b + 2, link.rate.bits_per_second());
            network.join(b + 1, a + 2, link.rate.bits_per_second());
        }
        network
    }

    fn join(&mut self, from: usize, to: usize, carries: u64) {
        for (from, to, carries) in [(from, to, carries), (to, from, 0)] {
            self.edges[from].push(self.to.len());
            self.to.push(to);
            self.left.push(carries);
        }
    }

    /// The most that flows from one region's inside to another's (Dinic's algorithm).
    fn flow(mut self, from: usize, to: usize) -> u64 {
        let (source, sink) = (3 * from, 3 * to);
        let mut total = 0;
        loop {
            let levels = self.levels(source);
            if levels[sink] == usize::MAX {
                return total;
            }
            let mut next = vec![0; self.edges.len()];
            loop {
                let pushed = self.push(source, sink, u64::MAX, &levels, &mut next);
                if pushed == 0 {
                    break;
                }
                total += pushed;
            }
        }
    }

    fn levels(&self, source: usize) -> Vec<usize> {
        let mut levels = vec![usize::MAX; self.edges.len()];
        levels[source] = 0;
        let mut open = VecDeque::from([source]);
        while let Some(node) = open.pop_front() {
            for &edge in self.edges[node].iter().filter(|edge| self.left[**edge] > 0) {
                let to = self.to[edge];
                if levels[to] == usize::MAX {
                    levels[to] = levels[node] + 1;
                    open.push_back(to);
                }
            }
        }
        levels
    }

    /// Pushes along one path of rising levels, at most `most`.
    fn push(
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
            if self.left[edge] > 0 && levels[to] == levels[node] + 1 {
                let pushed = self.push(to, sink, most.min(self.left[edge]), levels, next);
                if pushed > 0 {
                    self.left[edge] -= pushed;
                    self.left[edge ^ 1] += pushed;
                    return pushed;
                }
            }
            next[node] += 1;
        }
        0
    }
}
