//! Trees by which the data of one gateway reach others with the fewest crossings.
//!
//! A block that one rank has, or that one rank gets, travels along the tree of that rank's gateway.
//! Every gateway derives these trees from the plan's edges and the fabric's regions alone, so that
//! all agree without a message.

use crate::ids::{GatewayId, RegionId};
use crate::mutant::{self, Mutant};
use crate::plan::plan_data::Plan;
use crate::plan::tree::{Tree, TreeDirection};
use crate::topology::Fabric;
use std::collections::{BTreeMap, BTreeSet};

impl Plan {
    /// Returns the tree of each gateway, in gateway order: rooted there, over edges of the plan.
    ///
    /// Each tree enters each region once, over as few links as the edges allow. Inside a region it
    /// goes on over the LAN.
    pub fn owner_trees(&self, fabric: &Fabric) -> Vec<Tree> {
        let mut near: BTreeMap<GatewayId, BTreeSet<GatewayId>> = BTreeMap::new();
        for (one, other) in self.trees.iter().flat_map(Tree::edges) {
            near.entry(one).or_default().insert(other);
            near.entry(other).or_default().insert(one);
        }
        fabric
            .gateway_ids()
            .map(|owner| OwnerTreeGrowth::new(owner, fabric, &near).grow())
            .collect()
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

/// A tree that grows from its root until it has all gateways.
struct OwnerTreeGrowth<'a> {
    fabric: &'a Fabric,
    near: &'a BTreeMap<GatewayId, BTreeSet<GatewayId>>,
    /// The gateways reached, in the order in which they were.
    reached: Vec<GatewayId>,
    parents: BTreeMap<GatewayId, GatewayId>,
    regions: BTreeSet<RegionId>,
}

impl<'a> OwnerTreeGrowth<'a> {
    /// Begins a tree at its root.
    fn new(
        owner: GatewayId,
        fabric: &'a Fabric,
        near: &'a BTreeMap<GatewayId, BTreeSet<GatewayId>>,
    ) -> Self {
        let regions = BTreeSet::from([fabric.gateway(owner).region]);
        Self { fabric, near, reached: vec![owner], parents: BTreeMap::new(), regions }
    }

    /// Grows the tree over all edges: inside a region first, then into the regions next to those
    /// that it has.
    fn grow(mut self) -> Tree {
        let owner = self.reached[0];
        self.spread(0);
        let (mut from, mut level) = (0, self.reached.len());
        while from < level {
            for index in from..level {
                self.enter_regions_next_to(self.reached[index]);
            }
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

    /// Enters the regions that are next to a gateway and not in the tree, and spreads there.
    fn enter_regions_next_to(&mut self, at: GatewayId) {
        for to in self.neighbours_of(at) {
            if self.regions.insert(self.fabric.gateway(to).region) {
                let first = self.reached.len();
                self.add(to, at);
                self.spread(first);
            }
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
        self.near.get(&at).into_iter().flatten().copied().collect()
    }

    /// Adds a gateway below another, unless the tree has it.
    fn add(&mut self, to: GatewayId, parent: GatewayId) {
        if !self.reached.contains(&to) {
            self.reached.push(to);
            self.parents.insert(to, parent);
        }
    }
}
