//! The bytes that each collective must send over the links between regions.

use crate::faults::judge::collective::{CollectiveId, Collectives};
use crate::faults::spec::layout::Layout;
use crate::faults::spec::place::{REGIONS, RegionPair};
use hier_collectives::descriptor::Pattern;
use hier_collectives::ids::RankId;
use std::collections::{BTreeMap, BTreeSet};

/// The bytes that were sent from each region to each other one.
pub type SentBytes = BTreeMap<(u8, u8), u64>;

/// The bytes that must cross links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CrossingBytes {
    /// Those from the first region to the second, and those on the way back, where there are two.
    ways: [u64; 2],
    /// Those over all links, at least and at most.
    least: u64,
    most: u64,
}

/// 4 KiB over each link: the bytes in which ranks exchange colors on the way to groups, in a run, at most.
const SPLITS_BYTES: u64 = 4 << 10;

impl CrossingBytes {
    /// Adds those of another collective.
    pub fn add(&mut self, more: Self) {
        self.ways = [0, 1].map(|way| self.ways[way] + more.ways[way]);
        self.least += more.least;
        self.most += more.most;
    }

    /// Returns in words where other bytes were sent. Over two regions each way counts by itself. Over
    /// more, plans choose the ways, so the sum counts.
    pub fn differences(&self, sent: SentBytes, layout: &Layout) -> Vec<String> {
        let slack = SPLITS_BYTES * layout.links.len() as u64;
        let check = |what: String, sent: u64, (least, most): (u64, u64)| {
            let text = format!("{sent} bytes were sent {what}, {least} to {most} had to be");
            (!(least..=most * 102 / 100 + slack).contains(&sent)).then_some(text)
        };
        if layout.regions.len() > 2 {
            let all = sent.values().sum();
            return check("over all links".to_owned(), all, (self.least, self.most))
                .into_iter()
                .collect();
        }
        let ways = [(0, 1), (1, 0)].into_iter().zip(self.ways);
        let each = ways.filter_map(|((from, to), must)| {
            let sent = sent.get(&(from, to)).copied().unwrap_or_default();
            check(format!("to {}", REGIONS[usize::from(to)]), sent, (must, must))
        });
        each.collect()
    }
}

impl Collectives {
    /// The bytes of a collective that must cross links.
    pub fn crossing(&self, tag: CollectiveId) -> CrossingBytes {
        let (shape, ranks) = (self.shape(tag), self.participants(tag));
        let region_of = |rank: &u32| self.layout().gateway_of(*rank).region;
        let mut counts: BTreeMap<u8, u64> = BTreeMap::new();
        ranks.iter().for_each(|rank| *counts.entry(region_of(rank)).or_default() += 1);
        if counts.len() < 2 {
            return CrossingBytes::default();
        }
        let (whole, block) = (shape.elements, shape.elements / ranks.len() as u64);
        let all: BTreeSet<u8> = (0..self.layout().regions.len() as u8).collect();
        // Only sends are passed on by gateways of others.
        let by = if self.is_send(tag) { all } else { counts.keys().copied().collect() };
        let regions = counts.len() as u64;
        let edges = regions - 1;
        let root = |root: RankId| region_of(&ranks[root.0 as usize]);
        // Blocks that one region has for another one take the shortest way, or a longer one of the plan.
        let apart = |pairs: &dyn Fn(u8, u8) -> u64| {
            let mut bytes = (0, 0);
            for from in counts.keys() {
                let hops = self.layout().hops(*from, &by);
                for to in counts.keys().filter(|to| *to != from) {
                    let blocks = pairs(*from, *to) * block;
                    bytes.0 += blocks * hops[to];
                    bytes.1 += blocks * edges.max(hops[to]);
                }
            }
            bytes
        };
        let (least, most) = match shape.pattern {
            Pattern::Barrier => (0, 0),
            // Regions exchange short buffers directly, each with each other one.
            Pattern::AllReduce if whole * shape.dtype.size() <= self.express_bytes(tag) => {
                (2 * edges * whole, edges * regions * whole)
            }
            Pattern::AllReduce => (2 * edges * whole, 2 * edges * whole),
            Pattern::Send { .. } => {
                let hops = self.layout().hops(region_of(&ranks[0]), &by)[&region_of(&ranks[1])];
                (hops * whole, hops * whole)
            }
            Pattern::Gather { to } => {
                apart(&|from, at| if at == root(to) { counts[&from] } else { 0 })
            }
            Pattern::Scatter { from } => {
                apart(&|at, to| if at == root(from) { counts[&to] } else { 0 })
            }
            Pattern::AllToAll => apart(&|from, to| counts[&from] * counts[&to]),
            _ => (edges * whole, edges * whole),
        };
        let ways = self.ways(tag, &counts).map(|elements| elements * shape.dtype.size());
        let [least, most] = [least, most].map(|elements| elements * shape.dtype.size());
        CrossingBytes { ways, least, most }
    }

    /// The elements that must cross the link from the first region to the second, and those on the way
    /// back, where there are two regions. `counts` has the ranks of each.
    fn ways(&self, tag: CollectiveId, counts: &BTreeMap<u8, u64>) -> [u64; 2] {
        let (shape, ranks) = (self.shape(tag), self.participants(tag));
        let RegionPair(east, west) = RegionPair::EAST_WEST;
        let [here, there] = [east, west].map(|region| counts.get(&region).copied().unwrap_or(0));
        let (whole, block) = (shape.elements, shape.elements / ranks.len() as u64);
        let one_way =
            |from_east: bool, elements| if from_east { [elements, 0] } else { [0, elements] };
        let is_east =
            |root: RankId| self.layout().gateway_of(ranks[root.0 as usize]).region == east;
        match shape.pattern {
            Pattern::Reduce { to } => one_way(!is_east(to), whole),
            Pattern::Broadcast { from } | Pattern::Send { from } => one_way(is_east(from), whole),
            Pattern::AllGather => [here * block, there * block],
            Pattern::Gather { to } if is_east(to) => [0, there * block],
            Pattern::Gather { .. } => [here * block, 0],
            Pattern::Scatter { from } if is_east(from) => [there * block, 0],
            Pattern::Scatter { .. } => [0, here * block],
            Pattern::ReduceScatter => [there * block, here * block],
            Pattern::AllToAll => [here * there * block; 2],
            _ => [whole, whole],
        }
    }
}
