//! The list of parts of each operation.

use super::block::{Block, BlockRanks};
use crate::buffer_part::{BufferPart, divide_into_buffer_parts};
use crate::descriptor::{AgreedCounts, Descriptor, KnownCounts, Pattern};
use crate::ids::{GatewayId, RankId};
use crate::operation::{Operation, OperationPhases};
use crate::plan::{OwnerTrees, OwnerWays, Plan, Tree};
use crate::topology::Fabric;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

/// One part of an operation: a tree and the blocks that travel along it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationPart<'a> {
    /// The tree, without gateways that have nothing to do with the part.
    pub tree: Cow<'a, Tree>,
    /// Whether partials go up, and whether results come down.
    pub phases: OperationPhases,
    /// Whether the root's results are those of the part before this one.
    pub follows: bool,
    /// The blocks, in the order in which they travel.
    pub blocks: Vec<Block>,
}

/// The facts from which the parts of one operation follow.
#[derive(Debug, Clone, Copy)]
pub struct OperationPartSource<'a, 'b> {
    /// The plan that the operation follows, rerooted for it.
    pub plan: &'a Plan,
    /// The trees of each gateway: [`Plan::owner_trees`].
    pub owner_trees: &'a OwnerTrees,
    /// The fabric.
    pub fabric: &'a Fabric,
    /// The operation, as ranks posted it.
    pub descriptor: &'b Descriptor,
    /// Its counts.
    pub counts: &'b KnownCounts,
    /// Some gateway, whose parts alone are needed; other parts then have no blocks.
    pub only: Option<GatewayId>,
}

/// Returns the parts of an operation on a whole buffer of `bytes` bytes: one for each tree of the
/// plan, which is rerooted for the operation.
pub fn operation_parts_of_buffer<'a>(
    plan: &'a Plan,
    operation: Operation,
    bytes: u64,
    contributors: BlockRanks,
    receivers: BlockRanks,
) -> Vec<OperationPart<'a>> {
    let part = |(tree, part): (&'a Tree, BufferPart)| {
        let phases = operation.phases_along(tree);
        let follows = phases.down && !phases.up && operation.has_up_phase();
        let part = if phases.up || phases.down { part } else { part.without_bytes() };
        let result_start = part.range.start;
        let blocks = vec![Block { part, result_start, contributors, receivers }];
        OperationPart { tree: Cow::Borrowed(tree), phases, follows, blocks }
    };
    plan.trees.iter().zip(divide_into_buffer_parts(plan, bytes)).map(part).collect()
}

impl OperationPart<'_> {
    /// Returns the bytes that travel along each edge of the tree in each phase.
    pub fn bytes(&self) -> u64 {
        self.blocks.iter().map(Block::bytes).sum()
    }

    /// Returns the length of the longest segment; `None` where nothing travels, not even a segment
    /// of no bytes.
    pub fn longest_segment(&self) -> Option<u64> {
        let parts = self.blocks.iter().map(|block| &block.part);
        parts.filter(|part| part.segment_count() > 0).map(BufferPart::segment_bytes).max()
    }

    /// Returns a part that has nothing to carry.
    fn empty(owner: &Tree) -> Self {
        let tree = Cow::Owned(owner.pruned_owner_tree([]));
        Self {
            tree,
            phases: OperationPhases { up: false, down: false },
            follows: false,
            blocks: vec![],
        }
    }
}

impl<'a> OperationPartSource<'a, '_> {
    /// Returns the parts of the operation, in one order on all gateways.
    ///
    /// An operation on a whole buffer has one part for each tree of the plan. An operation on blocks
    /// has one part for each tree of each gateway. An all-to-all has one for each rail of each pair of
    /// gateways.
    pub fn parts(&self) -> Vec<OperationPart<'a>> {
        let gateway = |rank| self.fabric.gateway_of(rank).unwrap_or_default();
        match self.descriptor.pattern {
            Pattern::AllReduce => {
                self.whole_buffer(Operation::AllReduce, BlockRanks::All, BlockRanks::All)
            }
            Pattern::Barrier => {
                self.whole_buffer(Operation::Barrier, BlockRanks::All, BlockRanks::All)
            }
            Pattern::Reduce { to } => {
                let operation = Operation::Reduce { to: gateway(to) };
                self.whole_buffer(operation, BlockRanks::All, BlockRanks::One(to))
            }
            Pattern::Broadcast { from } => {
                let operation = Operation::Broadcast { from: gateway(from) };
                self.whole_buffer(operation, BlockRanks::One(from), BlockRanks::All)
            }
            Pattern::AllGather => self.by_gateway(|of| self.gathered(of, BlockRanks::All)),
            Pattern::Gather { to } => self.by_gateway(|of| self.gathered(of, BlockRanks::One(to))),
            Pattern::ReduceScatter => self.by_gateway(|of| self.scattered(of, BlockRanks::All)),
            Pattern::Scatter { from } => {
                self.by_gateway(|of| self.scattered(of, BlockRanks::One(from)))
            }
            Pattern::AllToAll => self.exchanged(),
            Pattern::Send { from } => vec![self.sent(from)],
        }
    }

    /// Returns the parts of an operation on a whole buffer: one for each tree of the plan.
    fn whole_buffer(
        &self,
        operation: Operation,
        contributors: BlockRanks,
        receivers: BlockRanks,
    ) -> Vec<OperationPart<'a>> {
        let bytes = self.descriptor.bytes();
        operation_parts_of_buffer(self.plan, operation, bytes, contributors, receivers)
    }

    /// Returns the parts of each gateway in turn.
    fn by_gateway(
        &self,
        parts: impl Fn(GatewayId) -> Vec<OperationPart<'a>>,
    ) -> Vec<OperationPart<'a>> {
        self.fabric.gateway_ids().flat_map(parts).collect()
    }

    /// Returns the parts with the blocks that the ranks of one gateway have, for `receivers`.
    fn gathered(&self, owner: GatewayId, receivers: BlockRanks) -> Vec<OperationPart<'a>> {
        let offsets = self.rank_offsets();
        let block = |rank: u32| {
            let [start, end] = [rank, rank + 1].map(|at| offsets[at as usize]);
            self.block(0..end - start, start, BlockRanks::One(RankId(rank)), receivers)
        };
        let blocks = self.fabric.gateway(owner).ranks.clone().filter_map(block).collect();
        let ways = match receivers {
            BlockRanks::All => self.ways_of_all(owner),
            BlockRanks::One(_) => self.owner_trees.rail_ways(owner),
        };
        self.moved(ways, &self.run(owner, &offsets), receivers, blocks)
    }

    /// Returns the parts with the blocks that the ranks of one gateway get, from `contributors`:
    /// reduced where all ranks contribute, else moved from the one.
    fn scattered(&self, receiver: GatewayId, contributors: BlockRanks) -> Vec<OperationPart<'a>> {
        let offsets = self.rank_offsets();
        let block = |rank: u32| {
            let [start, end] = [rank, rank + 1].map(|at| offsets[at as usize]);
            self.block(start..end, 0, contributors, BlockRanks::One(RankId(rank)))
        };
        let blocks: Vec<Block> =
            self.fabric.gateway(receiver).ranks.clone().filter_map(block).collect();
        match contributors {
            BlockRanks::All => {
                let part = |(tree, blocks): (&'a Tree, Vec<Block>)| OperationPart {
                    tree: Cow::Borrowed(tree),
                    phases: OperationPhases { up: true, down: false },
                    follows: false,
                    blocks,
                };
                let ways = self.ways_of_all(receiver);
                let divided = ways.divide(&self.run(receiver, &offsets), blocks);
                ways.trees.iter().zip(divided).map(part).collect()
            }
            BlockRanks::One(from) => {
                let owner = self.fabric.gateway_of(from).unwrap_or_default();
                let first = blocks.first().map_or(contributors, |block| block.receivers);
                // No other rank's blocks take the ports of the region.
                let ways = self.owner_trees.rail_ways(owner);
                self.moved(ways, &OwnerTrees::ALL_SHARES, first, blocks)
            }
        }
    }

    /// Returns the shares of its region's blocks that the ranks of a gateway have or get, with the first
    /// byte of each rank's block.
    fn run(&self, owner: GatewayId, offsets: &[u64]) -> Range<u64> {
        let bytes = |ranks: &Range<u32>| offsets[ranks.start as usize]..offsets[ranks.end as usize];
        let gateway = self.fabric.gateway(owner);
        let region = self.fabric.region(gateway.region);
        OwnerTrees::run_of_bytes(&bytes(&gateway.ranks), &bytes(&region.ranks))
    }

    /// Returns the parts of each pair of gateways, by sender and then by receiver: the blocks from the
    /// ranks of the one to those of the other.
    fn exchanged(&self) -> Vec<OperationPart<'a>> {
        let ranks = || 0..self.fabric.world_size();
        let count = |from, to| self.bytes_between(RankId(from), RankId(to));
        let mut columns: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        let mut parts = Vec::new();
        for owner in self.fabric.gateway_ids() {
            let mut rows: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
            for receiver in self.fabric.gateway_ids() {
                if self.only.is_some_and(|only| !self.leads_through(owner, only, receiver)) {
                    parts.extend(self.owner_trees.of(owner).iter().map(OperationPart::empty));
                    continue;
                }
                let mut blocks = Vec::new();
                for from in self.fabric.gateway(owner).ranks.clone() {
                    let row = || operation_part_offsets(ranks().map(|to| count(from, to)));
                    let row = rows.entry(from).or_insert_with(row);
                    for to in self.fabric.gateway(receiver).ranks.clone() {
                        let column = || operation_part_offsets(ranks().map(|from| count(from, to)));
                        let column = columns.entry(to).or_insert_with(column);
                        let start = row[to as usize];
                        let bytes = start..start + count(from, to);
                        let ends = [from, to].map(|rank| BlockRanks::One(RankId(rank)));
                        blocks.extend(self.block(bytes, column[from as usize], ends[0], ends[1]));
                    }
                }
                if blocks.is_empty() {
                    blocks.extend(self.empty_block_for_relay(owner, receiver));
                }
                let first = blocks.first().map_or(BlockRanks::All, |block| block.receivers);
                let ways = self.owner_trees.rail_ways(owner);
                parts.extend(self.moved(ways, &self.owner_trees.run(owner), first, blocks));
            }
        }
        parts
    }

    /// Whether blocks from the ranks of one gateway to those of another may pass a gateway.
    fn leads_through(&self, owner: GatewayId, gateway: GatewayId, receiver: GatewayId) -> bool {
        let mut trees = self.owner_trees.own(owner);
        trees.any(|tree| tree.owner_tree_leads_through(gateway, receiver))
    }

    /// Returns the part that moves the whole buffer of one of two ranks to the other. An empty buffer
    /// has a segment too, so that the sender hears of its receiver.
    fn sent(&self, from: RankId) -> OperationPart<'a> {
        let to = self.descriptor.pattern.receiver().unwrap_or_default();
        let part = BufferPart::of_block(0..self.descriptor.bytes(), self.plan).announced();
        let [contributors, receivers] = [from, to].map(BlockRanks::One);
        let block = Block { part, result_start: 0, contributors, receivers };
        let owner = self.fabric.gateway_of(from).unwrap_or_default();
        let own = self.owner_trees.own(owner).next();
        let tree = own.unwrap_or(&self.owner_trees.of(owner)[0]);
        self.moved_along(tree, receivers, vec![block])
    }

    /// Returns a block without bytes, for a gateway that waits for the counts of the owner's ranks
    /// since it passes their blocks on; none for other gateways. The owner keeps the collective,
    /// and repeats its counts, until the block has its receipt.
    fn empty_block_for_relay(&self, owner: GatewayId, receiver: GatewayId) -> Option<Block> {
        let passes_on = |tree: &Tree| tree.parents.values().any(|parent| *parent == receiver);
        let waits = owner != receiver
            && self.descriptor.counts == AgreedCounts::ByPair
            && self.owner_trees.own(owner).any(passes_on);
        let first = |id| {
            self.fabric.gateway(id).ranks.clone().next().map(|rank| BlockRanks::One(RankId(rank)))
        };
        let (contributors, receivers) = (first(owner)?, first(receiver)?);
        let part = BufferPart::of_block(0..0, self.plan).announced();
        waits.then_some(Block { part, result_start: 0, contributors, receivers })
    }

    /// Returns the parts that move blocks along these trees to the gateways of `receivers`. The blocks
    /// are those of the shares `run` of their region's.
    fn moved(
        &self,
        ways: OwnerWays<'a>,
        run: &Range<u64>,
        receivers: BlockRanks,
        blocks: Vec<Block>,
    ) -> Vec<OperationPart<'a>> {
        let part = |(tree, blocks)| self.moved_along(tree, receivers, blocks);
        ways.trees.iter().zip(ways.divide(run, blocks)).map(part).collect()
    }

    /// Returns the trees for blocks of a gateway that all ranks get, or to which all contribute. Trees of
    /// blocks fit blocks that are all alike.
    fn ways_of_all(&self, owner: GatewayId) -> OwnerWays<'a> {
        match self.descriptor.counts {
            AgreedCounts::Even => self.owner_trees.ways_of_all(owner, self.descriptor.bytes()),
            _ => self.owner_trees.rail_ways(owner),
        }
    }

    /// Returns the part that moves blocks along a tree to the gateways of `receivers`.
    fn moved_along(
        &self,
        tree: &'a Tree,
        receivers: BlockRanks,
        blocks: Vec<Block>,
    ) -> OperationPart<'a> {
        if blocks.is_empty() {
            return OperationPart::empty(tree);
        }
        let tree = match receivers {
            BlockRanks::All => Cow::Borrowed(tree),
            BlockRanks::One(rank) => {
                Cow::Owned(tree.pruned_owner_tree(self.fabric.gateway_of(rank)))
            }
        };
        OperationPart {
            tree,
            phases: OperationPhases { up: false, down: true },
            follows: false,
            blocks,
        }
    }

    /// Returns a block of these bytes of each contribution; none without bytes.
    fn block(
        &self,
        contribution: Range<u64>,
        result_start: u64,
        contributors: BlockRanks,
        receivers: BlockRanks,
    ) -> Option<Block> {
        let part = BufferPart::of_block(contribution, self.plan);
        (part.segment_count() > 0).then_some(Block { part, result_start, contributors, receivers })
    }

    /// Returns the first byte of each rank's block in a buffer of all blocks, and last the length of
    /// the buffer.
    fn rank_offsets(&self) -> Vec<u64> {
        let ranks = self.fabric.world_size();
        let size = self.descriptor.dtype.size();
        let even = self.descriptor.elements / u64::from(ranks).max(1);
        let listed = self.counts.by_rank();
        let count =
            |rank: u32| listed.map_or(even, |list| list.get(rank as usize).copied().unwrap_or(0));
        operation_part_offsets((0..ranks).map(|rank| count(rank).saturating_mul(size)))
    }

    /// Returns the bytes from one rank to another in an all-to-all. A count that this gateway does
    /// not know is of a block that does not pass it.
    fn bytes_between(&self, from: RankId, to: RankId) -> u64 {
        let ranks = u64::from(self.fabric.world_size()).max(1);
        let count = match self.descriptor.counts {
            AgreedCounts::ByPair => self.counts.between(from, to).unwrap_or(0),
            _ => self.descriptor.elements / ranks,
        };
        count.saturating_mul(self.descriptor.dtype.size())
    }
}

/// Returns the start of each of several consecutive ranges of these lengths, and the end of the
/// last.
fn operation_part_offsets(lengths: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut end = 0u64;
    let ends = lengths.map(|length| {
        end = end.saturating_add(length);
        end
    });
    std::iter::once(0).chain(ends).collect()
}
