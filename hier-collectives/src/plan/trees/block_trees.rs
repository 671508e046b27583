//! Trees of blocks: how the blocks of one region that all ranks get reach the other regions.
//!
//! A region with most of the ranks has most of the blocks. If it sent them to each other region
//! itself, its port would be full while others are not. So a part of them takes a tree on which
//! another region sends them on:
//!
//! ```text
//! a part of the blocks of a:   a --> b    a --> c
//! another part:                a --> b --> c
//! ```
//!
//! The parts with the highest rate are a linear program with a variable for each tree of each region.
//! Its trees are those with one region that sends on, and for narrow links those with one branch that
//! goes round. A reduce-scatter takes the trees upwards, with the same loads.

use super::packing::{DEPTH_RATE_LOSS_MAX, PRICED_CONSTRAINTS_MAX, solve_packing_program};
use crate::plan::fabric_capacity::{FabricCapacity, PortDirection, fabric_capacity_region};
use crate::plan::plan_data::{BlockTree, Plan};
use crate::plan::plan_encoding::plan_encoding;
use crate::plan::plan_limits::BLOCK_TREES_OF_REGION_MAX;
use crate::plan::tree::Tree;
use crate::plan::trees::direct_exchange::TIE_FRACTION;
use crate::plan::trees::gateway_tree::whole_gateway_tree_shares;
use crate::topology::Fabric;
use microlp::{ComparisonOp, OptimizationDirection, Problem, Variable};
use std::collections::{BTreeMap, BTreeSet};
use units::ByteCount;

/// 8 regions: as many may send on the blocks of one region, those whose ports have most to spare. The
/// number is chosen.
const RELAYS_OF_REGION_MAX: usize = 8;

/// 0.01 of a region's blocks: a tree with fewer is left out. The fraction is chosen.
const LEAST_TREE_FRACTION: f64 = 0.01;

/// Adds trees of blocks to a plan where they raise the rate of all blocks by 0.5 %, if the plan then has
/// at most `most` bytes on the wire.
pub(in crate::plan) fn add_block_trees(fabric: &Fabric, plan: &mut Plan, most: usize) {
    let trees = BlockFlows::of_plan(fabric, plan).and_then(|flows| flows.best_trees());
    let divided = trees.map(|(block_trees, least)| {
        let block_bytes_min = ByteCount::new(least);
        Plan { block_trees, block_bytes_min, ..plan.clone() }
    });
    if let Some(divided) = divided.filter(|divided| plan_encoding(divided).len() <= most) {
        *plan = divided;
    }
}

/// The ports and pairs that blocks of all regions load.
struct BlockFlows {
    capacity: FabricCapacity,
    /// The fraction of all blocks that each region has.
    blocks: Vec<f64>,
    /// The regions next to each region, by the edges of the plan.
    near: Vec<BTreeSet<usize>>,
    /// The rate of all blocks that ports allow whatever the trees, in payload bytes per second.
    limit: f64,
}

/// The loads of ports and pairs, over what each can carry.
struct BlockLoads {
    /// Loads of each region's ports, one way.
    ports: Vec<f64>,
    /// Loads from each region to each other one to which it sends.
    pairs: BTreeMap<(usize, usize), f64>,
}

/// A tree for blocks of one region.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct RegionBlockTree {
    root: usize,
    /// The parent of each other region.
    parents: BTreeMap<usize, usize>,
}

impl BlockFlows {
    /// Finds what blocks may load; `None` with fewer than three regions, where no other region can send
    /// on, or with regions that the plan does not join.
    fn of_plan(fabric: &Fabric, plan: &Plan) -> Option<Self> {
        let regions = fabric.regions().len();
        if regions < 3 {
            return None;
        }
        let capacity = FabricCapacity::of_fabric(fabric, PortDirection::Both);
        let region = |id| usize::from(fabric.gateway(id).region.0);
        let mut near = vec![BTreeSet::new(); regions];
        for (one, other) in plan.trees.iter().flat_map(Tree::edges) {
            let (one, other) = (region(one), region(other));
            if capacity.pair_rate(one, other) > 0.0 {
                near[one].insert(other);
                near[other].insert(one);
            }
        }
        let world = f64::from(fabric.world_size().max(1));
        let ranks = fabric.regions().iter().map(|region| region.ranks.end - region.ranks.start);
        let blocks: Vec<f64> = ranks.map(|ranks| f64::from(ranks) / world).collect();
        let all: f64 = capacity.ports.iter().sum();
        let ports = capacity.ports.iter().zip(&blocks);
        let own = ports.map(|(port, own)| port / own.max(1.0 - own));
        let limit = own.fold(all / (regions as f64 - 1.0), f64::min);
        let flows = Self { capacity, blocks, near, limit };
        let is_joined = |root| flows.tree(root, root).parents.len() == regions - 1;
        (limit > 0.0 && (0..regions).all(is_joined)).then_some(flows)
    }

    /// Returns the tree on which region `relay` sends the blocks of `root` on: from `root` to `relay`,
    /// from there to all regions next to it, and then level by level. With `root` itself in place of a
    /// relay, it sends to all that are next to it.
    fn tree(&self, root: usize, relay: usize) -> RegionBlockTree {
        let mut parents = BTreeMap::new();
        if relay != root {
            parents.insert(relay, root);
        }
        let mut open = vec![relay, root];
        let mut at = 0;
        while let Some(&from) = open.get(at) {
            at += 1;
            for &to in &self.near[from] {
                if to != root && !parents.contains_key(&to) {
                    parents.insert(to, from);
                    open.push(to);
                }
            }
        }
        RegionBlockTree { root, parents }
    }

    /// Returns the trees from which the program chooses, the direct one of each region first. Only
    /// regions whose direct tree has part in an overload have others.
    fn pool(&self, loads: &BlockLoads) -> Vec<RegionBlockTree> {
        let mut pool = Vec::new();
        for root in (0..self.near.len()).filter(|root| self.blocks[*root] > 0.0) {
            let direct = self.tree(root, root);
            let mut others = BTreeSet::new();
            if direct.parents.iter().any(|(to, from)| loads.is_overloaded(*from, *to)) {
                let mut relays: Vec<usize> = self.near[root].iter().copied().collect();
                relays.sort_by(|one, other| loads.ports[*one].total_cmp(&loads.ports[*other]));
                relays.truncate(RELAYS_OF_REGION_MAX);
                for relay in relays {
                    others.insert(self.tree(root, relay));
                    // One branch that goes round a narrow link.
                    let ends = direct.parents.iter().filter(|(to, from)| {
                        **from == root && loads.is_pair_overloaded(root, **to)
                    });
                    for (to, _) in ends.filter(|(to, _)| self.near[relay].contains(to)) {
                        let mut round = direct.clone();
                        if round.parents.get(&relay) == Some(&root) && *to != relay {
                            round.parents.insert(*to, relay);
                            others.insert(round);
                        }
                    }
                }
            }
            others.remove(&direct);
            pool.push(direct);
            pool.extend(others);
        }
        pool
    }

    /// Returns the trees with the highest rate, by region and then by delay, and the bytes of all blocks
    /// from which on they are faster than direct ones; `None` where each region
    /// does best with its direct tree, or the program would be too large.
    fn best_trees(&self) -> Option<(Vec<BlockTree>, u64)> {
        let loads = self.direct_loads();
        if loads.fullest() <= 1.0 + TIE_FRACTION {
            return None;
        }
        let constraints = 2 * self.near.len() + 2 * self.capacity.narrow_pairs().len();
        if constraints > PRICED_CONSTRAINTS_MAX {
            return None;
        }
        let pool = self.pool(&loads);
        let (rate, weights) = self.tree_weights(&pool)?;
        if rate * loads.fullest() <= 1.0 + TIE_FRACTION {
            return None;
        }
        let (mut trees, mut longest) = (Vec::new(), 0);
        for root in 0..self.near.len() {
            let of_root = pool.iter().zip(&weights).filter(|(tree, _)| tree.root == root);
            let mut chosen: Vec<(&RegionBlockTree, f64)> = of_root.map(|(t, w)| (t, *w)).collect();
            let all: f64 = chosen.iter().map(|(_, weight)| weight).sum();
            chosen.retain(|(_, weight)| *weight > LEAST_TREE_FRACTION * all);
            chosen.sort_by(|(_, one), (_, other)| other.total_cmp(one));
            chosen.truncate(BLOCK_TREES_OF_REGION_MAX);
            chosen.sort_by_key(|(tree, _)| self.delay_ns(tree));
            longest = chosen.iter().map(|(tree, _)| self.delay_ns(tree)).fold(longest, u64::max);
            let weights: Vec<f64> = chosen.iter().map(|(_, weight)| *weight).collect();
            let shares = whole_gateway_tree_shares(&weights);
            trees
                .extend(chosen.iter().zip(shares).map(|((tree, _), share)| tree.with_share(share)));
        }
        let regions = (0..self.near.len()).filter(|root| self.blocks[*root] > 0.0);
        let direct = regions.map(|root| self.delay_ns(&self.tree(root, root))).max().unwrap_or(0);
        let delay_seconds = longest.saturating_sub(direct) as f64 / 1e9;
        let saved_seconds_each_byte = (loads.fullest() - 1.0 / rate) / self.limit;
        Some((trees, (delay_seconds / saved_seconds_each_byte) as u64))
    }

    /// Returns the loads of all direct trees at the rate limit.
    fn direct_loads(&self) -> BlockLoads {
        let regions = self.near.len();
        let mut loads = BlockLoads { ports: vec![0.0; regions], pairs: BTreeMap::new() };
        for (root, blocks) in self.blocks.iter().enumerate() {
            for (to, from) in self.tree(root, root).parents {
                let sent = blocks * self.limit;
                loads.ports[from] += sent / self.capacity.ports[from];
                let pair = sent / self.capacity.pair_rate(from, to);
                *loads.pairs.entry((from, to)).or_insert(0.0) += pair;
            }
        }
        loads
    }

    /// Returns the highest rate of all blocks, as a part of the limit, and the weights of trees at which
    /// they have it with little delay; `None` where the solver fails.
    fn tree_weights(&self, pool: &[RegionBlockTree]) -> Option<(f64, Vec<f64>)> {
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        let delays: Vec<u64> = pool.iter().map(|tree| self.delay_ns(tree)).collect();
        let longest = delays.iter().copied().max().unwrap_or(0).max(1) as f64;
        let mut add = |gain: f64, most: f64| problem.add_var(gain, (0.0, most));
        let rate = add(1.0, 1.0);
        let loss = |delay: &u64| -DEPTH_RATE_LOSS_MAX * (*delay as f64 / longest);
        let weights: Vec<Variable> =
            delays.iter().map(|delay| add(loss(delay), f64::INFINITY)).collect();
        let with_trees = |load: &dyn Fn(&RegionBlockTree) -> usize| -> Vec<(Variable, f64)> {
            let loads = weights.iter().zip(pool).map(|(weight, tree)| (*weight, load(tree) as f64));
            loads.filter(|(_, load)| *load > 0.0).collect()
        };
        for (root, blocks) in self.blocks.iter().enumerate().filter(|(_, blocks)| **blocks > 0.0) {
            let mut all = with_trees(&|tree| usize::from(tree.root == root));
            all.push((rate, -blocks));
            problem.add_constraint(all, ComparisonOp::Eq, 0.0);
        }
        for (region, port) in self.capacity.ports.iter().enumerate() {
            let sent = with_trees(&|tree| tree.children_of(region));
            problem.add_constraint(sent, ComparisonOp::Le, port / self.limit);
        }
        let narrow = self.capacity.narrow_pairs().into_iter();
        for (from, to) in narrow.flat_map(|(one, other)| [(one, other), (other, one)]) {
            let sent = with_trees(&|tree| usize::from(tree.parents.get(&to) == Some(&from)));
            let pair = self.capacity.pair_rate(from, to) / self.limit;
            problem.add_constraint(sent, ComparisonOp::Le, pair);
        }
        let solution = solve_packing_program(&problem)?;
        let values = weights.iter().map(|weight| solution.var_value(*weight).max(0.0)).collect();
        Some((solution.var_value(rate), values))
    }

    /// Returns the delay from the root to the last region, in nanoseconds.
    fn delay_ns(&self, tree: &RegionBlockTree) -> u64 {
        let delay = |region: &usize| {
            let (mut at, mut delay) = (*region, 0);
            while let Some(parent) = tree.parents.get(&at) {
                delay += self.capacity.delay_ns(*parent, at);
                at = *parent;
            }
            delay
        };
        tree.parents.keys().map(delay).max().unwrap_or(0)
    }
}

impl BlockLoads {
    /// Returns the load of the fullest port or pair.
    fn fullest(&self) -> f64 {
        self.ports.iter().chain(self.pairs.values()).copied().fold(0.0, f64::max)
    }

    /// Whether the port of a region, or its pair with another one, has more than it can carry.
    fn is_overloaded(&self, from: usize, to: usize) -> bool {
        self.ports[from] > 1.0 || self.is_pair_overloaded(from, to)
    }

    /// Whether a pair of regions has more than it can carry, in one of its directions.
    fn is_pair_overloaded(&self, one: usize, other: usize) -> bool {
        let load = |pair| self.pairs.get(&pair).copied().unwrap_or(0.0);
        load((one, other)).max(load((other, one))) > 1.0
    }
}

impl RegionBlockTree {
    /// Counts the regions to which a region sends.
    fn children_of(&self, region: usize) -> usize {
        self.parents.values().filter(|parent| **parent == region).count()
    }

    /// Returns the tree for this share of its root's blocks.
    fn with_share(&self, share: u64) -> BlockTree {
        let share = u32::try_from(share).unwrap_or(u32::MAX);
        let region = |index: &usize| fabric_capacity_region(*index);
        let parents = self.parents.iter().map(|(child, parent)| (region(child), region(parent)));
        BlockTree { root: region(&self.root), share, parents: parents.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RegionId;
    use crate::plan::make_plan;
    use crate::testing::{FabricBuilder, lossless_link, mbit, symmetric_port};

    /// Returns the trees of blocks for regions with these numbers of ranks and ports in Mbit/s, all
    /// pairs linked with `link` Mbit/s: root, thousandths of its blocks, and the regions that send.
    fn found(regions: &[(u32, u64)], link: u64) -> Vec<(u16, u64, Vec<u16>)> {
        let mut builder = FabricBuilder::default();
        for (number, (ranks, port)) in regions.iter().enumerate() {
            let gateway = (*ranks, Some(symmetric_port(mbit(*port))));
            builder = builder.region(&format!("r{number}"), [gateway]);
        }
        let fabric = builder.all_pairs(lossless_link(mbit(link), 60)).build();
        let plan = make_plan(&fabric).expect("a plan");
        let of_tree = |tree: &BlockTree| {
            let senders: BTreeSet<u16> = tree.parents.values().map(|region| region.0).collect();
            let thousandths = (u64::from(tree.share) * 1000).div_ceil(1 << 20);
            (tree.root.0, thousandths, senders.into_iter().collect())
        };
        plan.block_trees.iter().map(of_tree).collect()
    }

    /// With ranks 2, 4 and 6 the last region gives a third of its blocks to the second, so that both
    /// send ten blocks, as many as the first region gets.
    #[test]
    fn a_part_of_the_largest_regions_blocks_is_relayed() {
        let trees = found(&[(2, 100), (4, 100), (6, 100)], 100);
        let expected =
            [(0, 1000, vec![0]), (1, 1000, vec![1]), (2, 667, vec![2]), (2, 334, vec![1, 2])];
        assert_eq!(trees, expected);
    }

    #[test]
    fn regions_that_do_best_alone_have_no_trees_of_blocks() {
        assert_eq!(found(&[(4, 100), (4, 100), (4, 100)], 100), []);
        // The first port gets no blocks sooner, whoever sends them.
        assert_eq!(found(&[(4, 100), (4, 200), (4, 200)], 200), []);
        assert_eq!(found(&[(1, 100), (9, 100)], 100), [], "nobody else can send on");
    }

    /// A link that is narrower than both ports is gone round.
    #[test]
    fn blocks_go_round_a_narrow_link() {
        let (wide, narrow) = (lossless_link(mbit(1000), 60), lossless_link(mbit(20), 60));
        let mut builder = FabricBuilder::default();
        for name in ["r0", "r1", "r2"] {
            builder = builder.region(name, [(1, Some(symmetric_port(mbit(100))))]);
        }
        builder = builder.link("r0", "r1", narrow).link("r0", "r2", wide);
        let fabric = builder.link("r1", "r2", wide).build();
        let plan = make_plan(&fabric).expect("a plan");
        let is_round = |tree: &&BlockTree| {
            let parent = |of| tree.parents.get(&RegionId(of));
            parent(0) != Some(&RegionId(1)) && parent(1) != Some(&RegionId(0))
        };
        let round = plan.block_trees.iter().filter(is_round).filter(|tree| tree.root.0 < 2);
        let shares: u64 = round.map(|tree| u64::from(tree.share)).sum();
        // With three sevenths of both regions' blocks the link takes as long as the last port.
        let thousandths = (shares * 1000) >> 20;
        assert!((850..=860).contains(&thousandths), "{thousandths}: {:?}", plan.block_trees);
    }
}
