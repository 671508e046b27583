//! Trees by which the data of one gateway reach others with the fewest crossings.
//!
//! A block that one rank has, or that one rank gets, travels along the tree of that rank's gateway.
//! Every gateway derives these trees from the plan, and from the fabric's regions and ranks alone, so
//! that all agree without a message.

use crate::ids::{GatewayId, RegionId};
use crate::mutant::{self, Mutant};
use crate::plan::analysis::pair_shares::SMALL_PAIR_SHARE_DIVISOR;
use crate::plan::analysis::payload_flows::PayloadFlows;
use crate::plan::plan_data::Plan;
use crate::plan::tree::{Tree, TreeDirection};
use crate::topology::Fabric;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

impl Plan {
    /// Returns the tree of each gateway, in gateway order: rooted there, over edges of the plan.
    ///
    /// Each tree enters each region once, over as few links as the edges allow. Inside a region it
    /// goes on over the LAN. Trees take turns at the pairs of gateways between two regions, in
    /// proportion to what an all-reduce sends over each, since a pair's rate follows that.
    pub fn owner_trees(&self, fabric: &Fabric) -> Vec<Tree> {
        let mut pairs = OwnerTreePairs::new(self);
        let owners = fabric.gateway_ids();
        owners.map(|owner| OwnerTreeGrowth::new(owner, fabric, &mut pairs).grow()).collect()
    }
}

impl Tree {
    /// Returns the tree without the branches that lead to none of these gateways.
    pub fn pruned_owner_tree(&self, wanted: impl IntoIterator<Item = GatewayId>) -> Self {
        if mutant::is_mutant_active(Mutant::KeepBranches) {
            return self.clone();
        }
        let mut parents = BTreeMap::new();
        for mut at in wanted {
            while let Some(parent) = self.parents.get(&at) {
                if parents.insert(at, *parent).is_some() {
                    break;
                }
                at = *parent;
            }
        }
        Self { roots: self.roots.clone(), parents, ..*self }
    }

    /// Whether a gateway lies on the way from the root set down to another, ends included.
    pub fn owner_tree_leads_through(&self, gateway: GatewayId, to: GatewayId) -> bool {
        let mut at = to;
        loop {
            match self.parents.get(&at) {
                _ if at == gateway => return true,
                Some(parent) => at = *parent,
                None => return false,
            }
        }
    }
}

/// The pairs of gateways that trees grow over, and how full those grown so far make each.
struct OwnerTreePairs {
    /// The gateways at the other ends of each gateway's edges.
    near: BTreeMap<GatewayId, BTreeSet<GatewayId>>,
    /// Bytes that an all-reduce of a nominal buffer sends over each pair.
    flows: PayloadFlows,
    /// Ranks whose blocks the trees send over each pair.
    loads: BTreeMap<(GatewayId, GatewayId), u64>,
}

impl OwnerTreePairs {
    /// Finds the pairs that the trees of a plan join.
    fn new(plan: &Plan) -> Self {
        let mut near: BTreeMap<GatewayId, BTreeSet<GatewayId>> = BTreeMap::new();
        for (one, other) in plan.trees.iter().flat_map(Tree::edges) {
            near.entry(one).or_default().insert(other);
            near.entry(other).or_default().insert(one);
        }
        Self { near, flows: plan.nominal_flows(), loads: BTreeMap::new() }
    }

    /// Returns what an all-reduce sends over a pair both ways, and at least 1.
    ///
    /// Blocks take a pair one way, and partials of blocks the other way. A pair with little flow one
    /// way counts by the way back, as its share of the ports does.
    fn least_flow(&self, (one, other): (GatewayId, GatewayId)) -> u64 {
        let flow = |pair| self.flows.get(&pair).copied().unwrap_or(0);
        let (there, back) = (flow((one, other)), flow((other, one)));
        there.min(back).max(there.max(back) / SMALL_PAIR_SHARE_DIVISOR).max(1)
    }

    /// Returns the time of a pair with blocks of `more` ranks added, in unknown units.
    fn time_of_pair(&self, pair: (GatewayId, GatewayId), more: u64) -> u128 {
        /// 2^64: far above every flow, so that times stay apart after division.
        const SCALE: u128 = 1 << 64;
        let load = self.loads.get(&pair).copied().unwrap_or(0) + more;
        u128::from(load) * SCALE / u128::from(self.least_flow(pair))
    }
}

/// A tree that grows from its root until it has all gateways.
struct OwnerTreeGrowth<'a> {
    fabric: &'a Fabric,
    pairs: &'a mut OwnerTreePairs,
    /// The gateways reached, in the order in which they were.
    reached: Vec<GatewayId>,
    parents: BTreeMap<GatewayId, GatewayId>,
    regions: BTreeSet<RegionId>,
}

impl<'a> OwnerTreeGrowth<'a> {
    /// Begins a tree at its root.
    fn new(owner: GatewayId, fabric: &'a Fabric, pairs: &'a mut OwnerTreePairs) -> Self {
        let regions = BTreeSet::from([fabric.gateway(owner).region]);
        Self { fabric, pairs, reached: vec![owner], parents: BTreeMap::new(), regions }
    }

    /// Grows the tree over all edges: inside a region first, then into the regions next to those
    /// that it has.
    fn grow(mut self) -> Tree {
        let owner = self.reached[0];
        self.spread(0);
        let (mut from, mut level) = (0, self.reached.len());
        while from < level {
            self.enter_regions_next_to(from..level);
            (from, level) = (level, self.reached.len());
        }
        // Edges inside a region need not join its gateways, as in a ring over all of them.
        let mut next = 0;
        while let Some(at) = self.reached.get(next).copied() {
            self.neighbours_of(at).into_iter().for_each(|to| self.add(to, at));
            next += 1;
        }
        let direction = TreeDirection::Both;
        Tree { share: 1, direction, roots: vec![owner], parents: self.parents }
    }

    /// Enters the regions that are next to some of the reached gateways and not in the tree, each
    /// over the pair that is done soonest, and spreads there.
    fn enter_regions_next_to(&mut self, level: Range<usize>) {
        let ranks = self.fabric.gateway(self.reached[0]).ranks.len() as u64;
        let mut entries: BTreeMap<RegionId, (u128, GatewayId, GatewayId)> = BTreeMap::new();
        for at in &self.reached[level] {
            for to in self.neighbours_of(*at) {
                let region = self.fabric.gateway(to).region;
                if !self.regions.contains(&region) {
                    let time = self.pairs.time_of_pair((*at, to), ranks);
                    // The first of equal pairs: gateways are reached from the root on.
                    let entry = entries.entry(region).or_insert((time, *at, to));
                    if time < entry.0 {
                        *entry = (time, *at, to);
                    }
                }
            }
        }
        for (region, (_, at, to)) in entries {
            *self.pairs.loads.entry((at, to)).or_insert(0) += ranks;
            self.regions.insert(region);
            let first = self.reached.len();
            self.add(to, at);
            self.spread(first);
        }
    }

    /// Adds all gateways that edges inside a region lead to, beginning at the gateway that was
    /// added as number `next`.
    fn spread(&mut self, mut next: usize) {
        while let Some(at) = self.reached.get(next).copied() {
            let region = self.fabric.gateway(at).region;
            for to in self.neighbours_of(at) {
                if self.fabric.gateway(to).region == region {
                    self.add(to, at);
                }
            }
            next += 1;
        }
    }

    /// Returns the gateways at the other ends of a gateway's edges.
    fn neighbours_of(&self, at: GatewayId) -> Vec<GatewayId> {
        self.pairs.near.get(&at).into_iter().flatten().copied().collect()
    }

    /// Adds a gateway below another, unless the tree has it.
    fn add(&mut self, to: GatewayId, parent: GatewayId) {
        if !self.reached.contains(&to) {
            self.reached.push(to);
            self.parents.insert(to, parent);
        }
    }
}
