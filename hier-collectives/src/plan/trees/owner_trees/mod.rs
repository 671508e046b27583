//! Trees by which the data of one gateway reach others with the fewest crossings.
//!
//! A block that one rank has, or that one rank gets, travels along the trees of that rank's gateway.
//! Behind several gateways the blocks of a region are divided among its ports, as a buffer is:
//!
//! ```text
//! blocks of a region    |  ranks of gateway 0  |  ranks of gateway 1  |
//! runs of its ports     |    port of 0    |         port of 1         |
//! runs of another's     |      port of 0       |      port of 1       |
//! rails                 |       0         |  1 |          2           |
//! ```
//!
//! A rail leaves a region by one port and enters each other region by one port. So each port
//! carries its part of every operation, and each gateway has one tree for each rail.
//! Every gateway derives these trees from the plan, and from the fabric's regions and ranks alone, so
//! that all agree without a message.

mod growth;
mod port_runs;

use super::gateway_tree::SHARES_TOTAL;
use crate::ids::GatewayId;
use crate::mutant::{self, Mutant};
use crate::parts::Block;
use crate::plan::plan_data::Plan;
use crate::plan::plan_limits::BLOCK_TREES_OF_REGION_MAX;
use crate::plan::tree::Tree;
use crate::size_class::MEDIUM_BYTES;
use crate::topology::Fabric;
use growth::OwnerTreePairs;
use port_runs::{PortRuns, Rail, owner_run, rails_limit};
use std::collections::BTreeMap;
use std::ops::Range;

/// The trees of all gateways of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnerTrees {
    /// The ends of the rails, ascending, in shares of a region's blocks.
    ends: Vec<u64>,
    /// The shares of its region's blocks that the ranks of each gateway have.
    runs: Vec<Range<u64>>,
    /// The trees of each gateway, one for each rail.
    trees: Vec<Vec<Tree>>,
    /// The trees of each gateway for large blocks of all ranks; none where those of the rails serve.
    divided: Vec<DividedRails>,
    /// The least bytes of all blocks together that these serve.
    divided_from: u64,
}

/// The trees of one gateway where each rail is divided among several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct DividedRails {
    /// The ends of the parts, ascending, in shares of a region's blocks.
    ends: Vec<u64>,
    trees: Vec<Tree>,
}

/// The trees among which blocks of one gateway are divided.
#[derive(Debug, Clone, Copy)]
pub struct OwnerWays<'a> {
    /// The ends of the parts, ascending, in shares of a region's blocks.
    ends: &'a [u64],
    /// The tree of each part.
    pub trees: &'a [Tree],
}

impl Plan {
    /// Returns the trees of each gateway: rooted there, over pairs of gateways that serve the same
    /// rail in regions which the plan joins.
    ///
    /// Each tree enters each region once, over as few links as the plan's edges allow. Inside a region
    /// it goes on over the LAN. Of several ways with equally many links, trees take turns in
    /// proportion to what an all-reduce sends over each. Where the plan has trees of blocks, blocks that
    /// all ranks get are divided among those.
    pub fn owner_trees(&self, fabric: &Fabric) -> OwnerTrees {
        let ports = PortRuns::of_plan(self, fabric);
        let mut pairs = OwnerTreePairs::new(self, fabric);
        let runs: Vec<Range<u64>> =
            fabric.gateway_ids().map(|owner| owner_run(fabric, owner)).collect();
        let of_owner = |owner: GatewayId| {
            let run = &runs[usize::from(owner.0)];
            let tree = |rail: &Rail| {
                let blocks = owner_run_overlap(run, &rail.shares);
                pairs.grow_tree(fabric, owner, &rail.serving, blocks)
            };
            ports.rails.iter().map(tree).collect()
        };
        let trees = fabric.gateway_ids().map(of_owner).collect();
        let ends = ports.rails.iter().map(|rail| rail.shares.end).collect();
        let divided = match self.block_trees[..] {
            [] => vec![],
            _ => {
                let divided =
                    |owner| DividedRails::of_owner(self, fabric, owner, (&ports.rails, &pairs));
                fabric.gateway_ids().map(divided).collect()
            }
        };
        let divided_from = self.block_bytes_min.get().max(MEDIUM_BYTES + 1);
        OwnerTrees { ends, runs, trees, divided, divided_from }
    }
}

impl DividedRails {
    /// Divides each rail among the trees of blocks of the owner's region, by their shares.
    fn of_owner(
        plan: &Plan,
        fabric: &Fabric,
        owner: GatewayId,
        (rails, pairs): (&[Rail], &OwnerTreePairs),
    ) -> Self {
        let own = fabric.gateway(owner).region;
        let of_region = || plan.block_trees.iter().filter(|tree| tree.root == own);
        let all: u64 = of_region().map(|tree| u64::from(tree.share)).sum();
        let mut divided = Self::default();
        for Rail { shares, serving } in rails {
            let mut before = 0;
            for tree in of_region() {
                before += u64::from(tree.share);
                let part = (shares.end - shares.start) * before / all.max(1);
                divided.ends.push(shares.start + part);
                let regions = tree.parents.iter().map(|(to, from)| (*to, *from));
                divided.trees.push(pairs.tree_over(fabric, owner, serving, regions));
            }
        }
        divided
    }
}

/// Returns the number of shares that two ranges have in common.
fn owner_run_overlap(one: &Range<u64>, other: &Range<u64>) -> u64 {
    one.end.min(other.end).saturating_sub(one.start.max(other.start))
}

impl OwnerTrees {
    /// The shares of all blocks of a region.
    pub const ALL_SHARES: Range<u64> = 0..SHARES_TOTAL;

    /// Returns the number of trees of each gateway.
    pub fn rails(&self) -> usize {
        self.ends.len()
    }

    /// Returns the most parts that an operation on blocks can have in any plan for this fabric: one for
    /// each rail of each pair of gateways, or for each tree of each rail of each gateway.
    pub fn parts_limit(fabric: &Fabric) -> usize {
        let gateways = fabric.gateways().len();
        rails_limit(fabric) * gateways * gateways.max(BLOCK_TREES_OF_REGION_MAX)
    }

    /// Returns the trees of a gateway, one for each rail.
    pub fn of(&self, owner: GatewayId) -> &[Tree] {
        &self.trees[usize::from(owner.0)]
    }

    /// Returns the trees of all gateways.
    pub fn all(&self) -> impl Iterator<Item = &Tree> {
        self.trees.iter().flatten().chain(self.divided.iter().flat_map(|divided| &divided.trees))
    }

    /// Returns the trees of a gateway for blocks that some ranks get, or of few bytes: one for each rail.
    pub fn rail_ways(&self, owner: GatewayId) -> OwnerWays<'_> {
        OwnerWays { ends: &self.ends, trees: self.of(owner) }
    }

    /// Returns the trees of a gateway for blocks of which all ranks together have or get `bytes` bytes.
    /// Blocks of few bytes take the trees with the least delay.
    pub fn ways_of_all(&self, owner: GatewayId, bytes: u64) -> OwnerWays<'_> {
        match self.divided.get(usize::from(owner.0)) {
            Some(DividedRails { ends, trees })
                if bytes >= self.divided_from && !trees.is_empty() =>
            {
                OwnerWays { ends, trees }
            }
            _ => self.rail_ways(owner),
        }
    }

    /// Returns the number of trees for blocks of all ranks, of all gateways together.
    pub fn ways_of_all_count(&self) -> usize {
        self.divided.iter().map(|divided| divided.trees.len().max(self.rails())).sum()
    }

    /// Returns the trees that blocks of a gateway's ranks take where all ranks have alike.
    pub fn own(&self, owner: GatewayId) -> impl Iterator<Item = &Tree> {
        let run = &self.runs[usize::from(owner.0)];
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let rails = starts.zip(&self.ends).map(|(start, end)| start..*end);
        let trees = self.of(owner).iter().zip(rails);
        trees.filter_map(|(tree, rail)| (owner_run_overlap(run, &rail) > 0).then_some(tree))
    }

    /// Returns the shares of its region's blocks that a gateway's ranks have where all ranks have alike.
    pub fn run(&self, owner: GatewayId) -> Range<u64> {
        self.runs[usize::from(owner.0)].clone()
    }

    /// Returns the shares of `all` bytes that `part` of them have; all shares without bytes.
    pub fn run_of_bytes(part: &Range<u64>, all: &Range<u64>) -> Range<u64> {
        let bytes = u128::from(all.end.saturating_sub(all.start));
        if bytes == 0 {
            return Self::ALL_SHARES;
        }
        let share = |at: u64| {
            let before = u128::from(at.saturating_sub(all.start));
            u64::try_from(u128::from(SHARES_TOTAL) * before / bytes).unwrap_or(SHARES_TOTAL)
        };
        share(part.start)..share(part.end)
    }
}

impl OwnerWays<'_> {
    /// Divides blocks among the trees; they are those of the shares `run` of all blocks. Blocks are cut
    /// between two segments only, so that a block of one segment stays whole.
    pub fn divide(&self, run: &Range<u64>, blocks: Vec<Block>) -> Vec<Vec<Block>> {
        let bytes: u64 = blocks.iter().map(Block::bytes).sum();
        let shares = u128::from((run.end - run.start).max(1));
        let end_of = |share: &u64| {
            let within = (*share).clamp(run.start, run.end) - run.start;
            u64::try_from(u128::from(bytes) * u128::from(within) / shares).unwrap_or(bytes)
        };
        let ends: Vec<u64> = self.ends.iter().map(end_of).collect();
        let first = self.ends.iter().position(|end| *end > run.start).unwrap_or(0);
        let mut divided = vec![Vec::new(); self.trees.len()];
        let mut start = 0;
        for block in blocks {
            let length = block.bytes();
            if length == 0 {
                divided[first].push(block);
                continue;
            }
            let mut before = 0;
            for (end, part) in ends.iter().zip(&mut divided) {
                let cut = block.part.nearest_cut(end.saturating_sub(start).min(length));
                if cut > before {
                    part.push(block.between(before, cut));
                    before = cut;
                }
            }
            start += length;
        }
        divided
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer_part::BufferPart;
    use crate::ids::RankId;
    use crate::parts::BlockRanks;
    use crate::plan::make_plan;
    use crate::testing::{FabricBuilder, SplitMix64, lossless_link, mbit, symmetric_port};

    /// Returns two regions, of gateways with these ports in Mbit/s.
    fn fabric(east: &[u64], west: &[u64]) -> Fabric {
        let gateways = |ports: &[u64]| -> Vec<_> {
            ports.iter().map(|port| (1, Some(symmetric_port(mbit(*port))))).collect()
        };
        let builder = FabricBuilder::default().region("east", gateways(east));
        builder.region("west", gateways(west)).all_pairs(lossless_link(mbit(1000), 60)).build()
    }

    #[test]
    fn rails_end_where_a_run_of_ports_ends() {
        let fabric = fabric(&[500, 500], &[300, 100]);
        let trees = make_plan(&fabric).expect("a plan").owner_trees(&fabric);
        let of_thousand = |end: &u64| (1000 * end).div_ceil(SHARES_TOTAL);
        assert_eq!(trees.ends.iter().map(of_thousand).collect::<Vec<_>>(), [500, 750, 1000]);
        // Over the second rail the first gateway sends by the port of the second.
        let parents = |rail: usize| trees.of(GatewayId(0))[rail].parents.clone();
        let way = |pairs: [(u16, u16); 3]| {
            pairs.map(|(to, from)| (GatewayId(to), GatewayId(from))).into_iter().collect()
        };
        assert_eq!(parents(0), way([(1, 0), (2, 0), (3, 2)]));
        assert_eq!(parents(1), way([(1, 0), (2, 1), (3, 2)]));
        assert_eq!(parents(2), way([(1, 0), (2, 3), (3, 1)]));
        let own: Vec<_> = trees.own(GatewayId(0)).collect();
        assert_eq!(own, [&trees.of(GatewayId(0))[0]]);
    }

    /// 40 gateways in each of two regions have 40 runs, and an all-to-all numbers for 10 rails.
    #[test]
    fn rails_are_as_few_as_parts_have_numbers() {
        let many = fabric(&[100; 40], &[100; 40]);
        let trees = make_plan(&many).expect("a plan").owner_trees(&many);
        assert_eq!((trees.rails(), OwnerTrees::parts_limit(&many)), (10, 64_000));
        assert_eq!(trees.ends.last(), Some(&SHARES_TOTAL));
        let few = fabric(&[100; 3], &[100; 2]);
        assert_eq!(make_plan(&few).expect("a plan").owner_trees(&few).rails(), 4);
    }

    /// All bytes go by some rail, in order, cut between segments alone, and each rail gets its part
    /// within half a segment at each end.
    #[test]
    fn blocks_are_divided_by_the_shares_of_rails() {
        for seed in 0..300 {
            let mut dice = SplitMix64(seed);
            let mut ports = || [dice.range(1, 9) * 100, dice.range(1, 9) * 100];
            let fabric = fabric(&ports(), &ports());
            let plan = make_plan(&fabric).expect("a plan");
            let trees = plan.owner_trees(&fabric);
            let (whole, one) = (0..SHARES_TOTAL, BlockRanks::One(RankId(0)));
            let run = if dice.chance(50) { whole } else { trees.run(GatewayId(1)) };
            let mut start = 0;
            let lengths: Vec<u64> = (0..3).map(|_| dice.range(0, 9_000_000) * 8).collect();
            let block = |length: &u64| {
                let part = BufferPart::of_block(start..start + length, &plan);
                start += length;
                let result_start = part.range.start + 64;
                Block { part, result_start, contributors: one, receivers: one }
            };
            let blocks: Vec<Block> = lengths.iter().map(block).collect();
            let divided = trees.rail_ways(GatewayId(0)).divide(&run, blocks.clone());
            let segment = plan.segment.get();
            let mut bytes = 0;
            for (end, rail) in trees.ends.iter().zip(&divided) {
                bytes += rail.iter().map(Block::bytes).sum::<u64>();
                let within = (*end).clamp(run.start, run.end) - run.start;
                let due = u128::from(start) * u128::from(within) / u128::from(run.end - run.start);
                let off = i128::from(bytes) - due as i128;
                assert!(off.unsigned_abs() <= u128::from(segment), "seed {seed}: {off} bytes off");
            }
            for block in blocks.iter().filter(|block| block.bytes() > 0) {
                let Range { start, end } = block.part.range;
                let mut next = start;
                let of_block = |part: &&Block| (start..end).contains(&part.part.range.start);
                for part in divided.iter().flatten().filter(of_block) {
                    assert_eq!(part.part.range.start, next, "seed {seed}");
                    assert_eq!(part.result_start - next, 64, "seed {seed}");
                    assert!((next - start).is_multiple_of(segment), "seed {seed}");
                    next = part.part.range.end;
                }
                assert_eq!(next, end, "seed {seed}");
            }
        }
    }
}
