//! Spanning trees over regions, before each region's gateway is chosen.

use crate::plan::fabric_capacity::FabricCapacity;

/// An undirected spanning tree: its edges in ascending order, each with its lower region first.
///
/// Partials take one direction of an edge and results the other, so the root does not change the
/// load of a link.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RegionTree(Vec<(usize, usize)>);

/// A spanning tree with its root set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RootedRegionTree {
    /// The root set: the regions at the top, ascending.
    pub roots: Vec<usize>,
    /// Each region's parent; `None` for the root set.
    pub parents: Vec<Option<usize>>,
    /// Nanoseconds from the last post to the last result, for a byte that meets no queue.
    pub latency_ns: u64,
}

impl RegionTree {
    /// Makes the star of `regions` regions: every other region has an edge to `center`.
    pub fn star(regions: usize, center: usize) -> Self {
        let others = (0..regions).filter(|region| *region != center);
        Self::new(others.map(|other| (center, other)).collect())
    }

    /// Makes the tree with these edges between regions, in any order.
    pub fn new(edges: Vec<(usize, usize)>) -> Self {
        let mut edges: Vec<_> = edges.into_iter().map(|(a, b)| (a.min(b), a.max(b))).collect();
        edges.sort_unstable();
        Self(edges)
    }

    /// Returns the edges between regions, ascending, each with its lower region first.
    pub fn edges(&self) -> &[(usize, usize)] {
        &self.0
    }

    /// Counts the edges at each region.
    pub fn degrees(&self) -> Vec<u32> {
        let mut degrees = vec![0; self.0.len() + 1];
        for (a, b) in &self.0 {
            degrees[*a] += 1;
            degrees[*b] += 1;
        }
        degrees
    }

    /// Returns the region at which all edges end, if there is one.
    pub fn center(&self) -> Option<usize> {
        let all = self.0.len();
        self.degrees().iter().position(|degree| usize::try_from(*degree) == Ok(all))
    }

    /// Returns the tree with region `top` as its root.
    pub fn rooted_at(&self, top: usize, capacity: &FabricCapacity) -> RootedRegionTree {
        let (parents, depths) = self.parents_and_depths(top, capacity);
        let deepest = depths.into_iter().max().unwrap_or(0);
        RootedRegionTree { roots: vec![top], parents, latency_ns: 2 * deepest }
    }

    /// Returns the tree with the root set that has results soonest.
    ///
    /// The root is the region at the middle of the longest path. It is a root set of two regions
    /// where that saves a tenth of the latency.
    pub fn rooted_at_center(&self, capacity: &FabricCapacity) -> RootedRegionTree {
        let farthest = |from: usize| {
            let (parents, depths) = self.parents_and_depths(from, capacity);
            let end = (0..depths.len()).max_by_key(|region| depths[*region]).unwrap_or(from);
            (end, parents, depths)
        };
        let (one_end, ..) = farthest(0);
        let (mut at, parents, depths) = farthest(one_end);
        let length = depths[at];
        // Climbs from the other end until less than half of the path is left.
        while let Some(next) = parents[at].filter(|next| 2 * depths[*next] >= length) {
            at = next;
        }
        let middle = parents[at].filter(|next| depths[at] + depths[*next] > length).unwrap_or(at);
        let root = self.rooted_at(middle, capacity);
        let Some(other) = parents[at].filter(|_| 2 * depths[at] > length) else { return root };
        if root.latency_ns * 9 <= length * 10 {
            return root;
        }
        let mut swap = self.rooted_at(at, capacity);
        swap.parents[other] = None;
        swap.roots = vec![at.min(other), at.max(other)];
        swap.latency_ns = length;
        swap
    }

    /// Returns each region's parent in the tree rooted at `top`, which has none, and its delay from
    /// `top` in nanoseconds.
    fn parents_and_depths(
        &self,
        top: usize,
        capacity: &FabricCapacity,
    ) -> (Vec<Option<usize>>, Vec<u64>) {
        let regions = self.0.len() + 1;
        let mut next = vec![Vec::new(); regions];
        for (a, b) in &self.0 {
            next[*a].push(*b);
            next[*b].push(*a);
        }
        let (mut parents, mut depths) = (vec![None; regions], vec![0; regions]);
        let mut open = vec![top];
        while let Some(at) = open.pop() {
            let above = parents[at];
            for &child in next[at].iter().filter(|child| above != Some(**child)) {
                parents[child] = Some(at);
                depths[child] = depths[at] + capacity.delay_ns(at, child);
                open.push(child);
            }
        }
        (parents, depths)
    }
}

/// Grows a minimum spanning tree over regions from `root`, where an edge costs `price` (Prim's
/// algorithm).
///
/// `bias` is a price for each nanosecond of delay from the root. It keeps the tree shallow where
/// edges cost nearly the same.
pub(crate) fn grow_region_tree(
    capacity: &FabricCapacity,
    root: usize,
    price: impl Fn(usize, usize) -> f64,
    bias: f64,
) -> RegionTree {
    let regions = capacity.region_count();
    let mut inside = vec![false; regions];
    let mut depths = vec![0.0; regions];
    let mut nearest = vec![(f64::INFINITY, root); regions];
    let mut edges = Vec::with_capacity(regions);
    let mut last = root;
    inside[root] = true;
    for _ in 1..regions {
        for region in (0..regions).filter(|region| !inside[*region]) {
            if capacity.pair_rate(last, region) > 0.0 {
                let depth = depths[last] + capacity.delay_ns(last, region) as f64;
                let cost = price(last, region) + bias * depth;
                if cost < nearest[region].0 {
                    nearest[region] = (cost, last);
                }
            }
        }
        let outside = (0..regions).filter(|region| !inside[*region]);
        let next = outside.min_by(|a, b| nearest[*a].0.total_cmp(&nearest[*b].0));
        let Some(next) = next else { break };
        let from = nearest[next].1;
        depths[next] = depths[from] + capacity.delay_ns(from, next) as f64;
        edges.push((from, next));
        inside[next] = true;
        last = next;
    }
    RegionTree::new(edges)
}

impl RootedRegionTree {
    /// Makes the tree without parents: all regions are roots and exchange with each other.
    pub fn all_roots(capacity: &FabricCapacity) -> Self {
        let regions = capacity.region_count();
        let delays = capacity.all_pairs().map(|(a, b)| capacity.delay_ns(a, b));
        Self {
            roots: (0..regions).collect(),
            parents: vec![None; regions],
            latency_ns: delays.max().unwrap_or(0),
        }
    }

    /// Counts the regions with which a region exchanges data.
    pub fn degree(&self, region: usize) -> u64 {
        let children = self.parents.iter().filter(|parent| **parent == Some(region)).count();
        let above = if self.parents[region].is_some() { 1 } else { self.roots.len() - 1 };
        u64::try_from(children + above).unwrap_or(u64::MAX)
    }
}
