//! Growth of one tree: over regions first, and then inside each.

use crate::ids::{GatewayId, RegionId};
use crate::plan::plan_data::Plan;
use crate::plan::tree::{Tree, TreeDirection};
use crate::topology::Fabric;
use std::collections::{BTreeMap, BTreeSet};

/// 4: a pair of regions over which an all-reduce sends little one way counts with a quarter of what it
/// sends the other way, since blocks and their partials take both. The factor is chosen.
const LEAST_FLOW_DIVISOR: u64 = 4;

/// The edges that trees grow over, and how full those grown so far make each pair of regions.
pub(super) struct OwnerTreePairs {
    /// The gateways at the other ends of each gateway's edges inside its region.
    near: BTreeMap<GatewayId, BTreeSet<GatewayId>>,
    /// Bytes that an all-reduce of a nominal buffer sends from each region to each other one that it
    /// has an edge to.
    flows: BTreeMap<(RegionId, RegionId), u64>,
    /// Blocks that the trees send from each region to each other one, in shares of a region's blocks
    /// times its ranks.
    loads: BTreeMap<(RegionId, RegionId), u128>,
}

impl OwnerTreePairs {
    /// Finds the pairs that the trees of a plan join.
    pub fn new(plan: &Plan, fabric: &Fabric) -> Self {
        let region = |id: GatewayId| fabric.gateway(id).region;
        let mut near: BTreeMap<GatewayId, BTreeSet<GatewayId>> = BTreeMap::new();
        let mut flows = BTreeMap::new();
        for (one, other) in plan.trees.iter().flat_map(Tree::edges) {
            if region(one) == region(other) {
                near.entry(one).or_default().insert(other);
                near.entry(other).or_default().insert(one);
            } else {
                flows.entry((region(one), region(other))).or_insert(0);
                flows.entry((region(other), region(one))).or_insert(0);
            }
        }
        for ((from, to), bytes) in plan.nominal_flows(fabric) {
            if let Some(flow) = flows.get_mut(&(region(from), region(to))) {
                *flow += bytes;
            }
        }
        Self { near, flows, loads: BTreeMap::new() }
    }

    /// Grows the tree of `owner` for a rail, of which its ranks have `blocks` shares. `serving` are
    /// the gateways that the rail passes, by region.
    pub fn grow_tree(
        &mut self,
        fabric: &Fabric,
        owner: GatewayId,
        serving: &[GatewayId],
        blocks: u64,
    ) -> Tree {
        let own = fabric.gateway(owner).region;
        let ranks = &fabric.region(own).ranks;
        let load = u128::from(blocks) * u128::from(ranks.end - ranks.start);
        let regions = self.grow_regions(own, load);
        self.tree_over(fabric, owner, serving, regions)
    }

    /// Makes the tree of `owner` that enters these regions, each from the one beside it.
    pub fn tree_over(
        &self,
        fabric: &Fabric,
        owner: GatewayId,
        serving: &[GatewayId],
        regions: impl IntoIterator<Item = (RegionId, RegionId)>,
    ) -> Tree {
        let serving_in = |region: RegionId| serving[usize::from(region.0)];
        let mut parents = BTreeMap::new();
        self.spread((owner, serving_in(fabric.gateway(owner).region)), fabric, &mut parents);
        for (region, from) in regions {
            parents.insert(serving_in(region), serving_in(from));
            self.spread((serving_in(region), serving_in(region)), fabric, &mut parents);
        }
        Tree { share: 1, direction: TreeDirection::Both, roots: vec![owner], parents }
    }

    /// Adds the gateways of a region below `top`, where the tree enters or begins: those that an edge
    /// of the plan joins to it, and the others below the one that serves the rail.
    fn spread(
        &self,
        (top, serving): (GatewayId, GatewayId),
        fabric: &Fabric,
        parents: &mut BTreeMap<GatewayId, GatewayId>,
    ) {
        let region = fabric.region(fabric.gateway(top).region);
        for id in region.gateways.clone().map(GatewayId).filter(|id| *id != top) {
            let is_near = self.near.get(&top).is_some_and(|near| near.contains(&id));
            parents.insert(id, if is_near || id == serving { top } else { serving });
        }
    }

    /// Enters the regions next to those that the tree has, level by level, each from the region from
    /// which it has its blocks soonest. Returns each region and the one before it, in that order.
    fn grow_regions(&mut self, own: RegionId, load: u128) -> Vec<(RegionId, RegionId)> {
        let mut reached = BTreeSet::from([own]);
        let mut level = vec![own];
        let mut grown = Vec::new();
        while !level.is_empty() {
            let mut entries: BTreeMap<RegionId, (u128, RegionId)> = BTreeMap::new();
            for from in level {
                for to in self.neighbours_of(from).filter(|to| !reached.contains(to)) {
                    let time = self.time_of_pair((from, to), load);
                    // The first of equal regions: they are in the order of their entry.
                    let entry = entries.entry(to).or_insert((time, from));
                    if time < entry.0 {
                        *entry = (time, from);
                    }
                }
            }
            for (to, (_, from)) in &entries {
                *self.loads.entry((*from, *to)).or_insert(0) += load;
                grown.push((*to, *from));
            }
            reached.extend(entries.keys());
            level = entries.into_keys().collect();
        }
        grown
    }

    /// Returns the regions to which the plan has edges from one.
    fn neighbours_of(&self, from: RegionId) -> impl Iterator<Item = RegionId> {
        let pairs = self.flows.range((from, RegionId(0))..=(from, RegionId(u16::MAX)));
        pairs.map(|((_, to), _)| *to)
    }

    /// Returns what an all-reduce sends over a pair of regions both ways, and at least 1.
    ///
    /// A pair with little flow one way counts by the way back.
    fn least_flow(&self, (one, other): (RegionId, RegionId)) -> u64 {
        let flow = |pair| self.flows.get(&pair).copied().unwrap_or(0);
        let (there, back) = (flow((one, other)), flow((other, one)));
        there.min(back).max(there.max(back) / LEAST_FLOW_DIVISOR).max(1)
    }

    /// Returns the time of a pair with `more` blocks added, in unknown units.
    fn time_of_pair(&self, pair: (RegionId, RegionId), more: u128) -> u128 {
        /// 2^64: far above every flow, so that times stay apart after division.
        const SCALE: u128 = 1 << 64;
        let load = self.loads.get(&pair).copied().unwrap_or(0) + more;
        load.saturating_mul(SCALE) / u128::from(self.least_flow(pair))
    }
}
