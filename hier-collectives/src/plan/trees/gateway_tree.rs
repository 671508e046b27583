//! Trees over gateways, made of trees over regions.

use super::region_tree::RootedRegionTree;
use crate::ids::GatewayId;
use crate::plan::fabric_capacity::{fabric_capacity_both_ways, fabric_capacity_region};
use crate::plan::tree::{Tree, TreeDirection};
use crate::topology::Fabric;
use std::collections::{BTreeMap, BTreeSet};

/// The trees over regions for a part of a buffer: a common tree, or one for partials and one for
/// results with the same root.
#[derive(Debug, Clone)]
pub(crate) struct GatewayTreePair {
    /// The tree for partials; without `results` for both.
    pub partials: RootedRegionTree,
    /// The separate tree for results.
    pub results: Option<RootedRegionTree>,
}

impl GatewayTreePair {
    /// Makes a pair that has one tree for both partials and results.
    pub fn common(rooted: RootedRegionTree) -> Self {
        Self { partials: rooted, results: None }
    }

    /// Counts the messages of a part of the buffer that a region carries, the larger of in and out.
    fn degree(&self, region: usize) -> u64 {
        let results = self.results.as_ref().map_or(0, |results| results.degree(region));
        self.partials.degree(region).max(results)
    }
}

/// 2^20 shares: the planner divides a buffer into so many and gives each tree a whole number of
/// them. So rounding changes a tree's part by less than a millionth of the buffer.
/// Tested by `symmetric_ports_are_planned_near_the_bound`.
pub(crate) const SHARES_TOTAL: u64 = 1 << 20;

/// Rounds `weights` to whole shares that add up to [`SHARES_TOTAL`], by largest remainder.
///
/// The first of equals gets the remainder.
pub(crate) fn whole_gateway_tree_shares(weights: &[f64]) -> Vec<u64> {
    let total: f64 = weights.iter().sum();
    let quotas: Vec<f64> =
        weights.iter().map(|weight| weight / total * SHARES_TOTAL as f64).collect();
    let mut shares: Vec<u64> = quotas.iter().map(|quota| *quota as u64).collect();
    let left = SHARES_TOTAL.saturating_sub(shares.iter().sum());
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|a, b| quotas[*b].fract().total_cmp(&quotas[*a].fract()).then(a.cmp(b)));
    let more = order.into_iter().cycle().take(usize::try_from(left).unwrap_or(0));
    more.for_each(|index| shares[index] += 1);
    shares
}

/// Turns trees over regions, with their shares, into trees over gateways.
///
/// Every gateway with a port serves a run of consecutive shares of its region, in proportion to its
/// port rate. A tree is cut where a gateway's run ends in some region. The region's other gateways
/// are children of the one that serves the share.
pub(crate) fn assign_gateway_trees_by_share(
    fabric: &Fabric,
    trees: &[(GatewayTreePair, u64)],
) -> Vec<Tree> {
    let runs: Vec<Vec<(u64, GatewayId)>> = (0..fabric.regions().len())
        .map(|region| gateway_tree_runs(fabric, region, trees))
        .collect();
    let mut cuts: BTreeSet<u64> = runs.iter().flatten().map(|(start, _)| *start).collect();
    let mut spread = Vec::new();
    let mut start = 0;
    for (GatewayTreePair { partials, results }, share) in trees {
        let end = start + share;
        cuts.extend([start, end]);
        let within: Vec<u64> = cuts.range(start..=end).copied().collect();
        for piece in within.windows(2) {
            let serving = |region: usize| {
                let before = runs[region].partition_point(|(at, _)| *at <= piece[0]);
                runs[region][before.max(1) - 1].1
            };
            let share = piece[1] - piece[0];
            let tree = |rooted, direction| {
                gateway_tree_of_regions(fabric, rooted, share, direction, serving)
            };
            match results {
                None => spread.push(tree(partials, TreeDirection::Both)),
                Some(results) => spread.extend([
                    tree(partials, TreeDirection::Partials),
                    tree(results, TreeDirection::Results),
                ]),
            }
        }
        start = end;
    }
    spread
}

/// Returns the express tree over `rooted`: in each region the gateway with the fastest port serves
/// it.
pub(crate) fn gateway_tree_on_fastest_ports(fabric: &Fabric, rooted: &RootedRegionTree) -> Tree {
    let fastest = |region: usize| {
        let ports = gateway_tree_ports(fabric, region);
        ports.iter().rev().max_by_key(|(_, rate)| *rate).map_or(GatewayId(0), |(id, _)| *id)
    };
    gateway_tree_of_regions(fabric, rooted, 0, TreeDirection::Both, fastest)
}

/// Returns the trees of a single region: every gateway owns an equal share.
pub(crate) fn gateway_trees_of_one_region(fabric: &Fabric) -> Vec<Tree> {
    let tree = |root: GatewayId| {
        let others = fabric.gateway_ids().filter(|id| *id != root);
        let parents = others.map(|id| (id, root)).collect();
        Tree { share: 1, direction: TreeDirection::Both, roots: vec![root], parents }
    };
    fabric.gateway_ids().map(tree).collect()
}

/// Returns a region's gateways with a port, each with the port's bits per second in its slower
/// direction.
fn gateway_tree_ports(fabric: &Fabric, region: usize) -> Vec<(GatewayId, u64)> {
    let gateways = fabric.region(fabric_capacity_region(region)).gateways.clone().map(GatewayId);
    let port = |id: GatewayId| {
        Some((id, fabric_capacity_both_ways(fabric.gateway(id).wan?).bits_per_second()))
    };
    gateways.filter_map(port).collect()
}

/// Divides the shares of a region among its gateways with a port. Each gateway serves a run of
/// consecutive shares.
///
/// Returns the first share that each gateway serves.
fn gateway_tree_runs(
    fabric: &Fabric,
    region: usize,
    trees: &[(GatewayTreePair, u64)],
) -> Vec<(u64, GatewayId)> {
    let ports = gateway_tree_ports(fabric, region);
    let all_ports: u128 = ports.iter().map(|(_, rate)| u128::from(*rate)).sum();
    let load = |(pair, share): &(GatewayTreePair, u64)| u128::from(pair.degree(region) * share);
    let all_load: u128 = trees.iter().map(load).sum();
    let mut runs = Vec::new();
    let (mut tree, mut start, mut loaded, mut before) = (0, 0u64, 0u128, 0u128);
    for (id, rate) in ports {
        // Skips the trees that the earlier gateways serve whole.
        let wanted = all_load * before / all_ports.max(1);
        while tree + 1 < trees.len() && loaded + load(&trees[tree]) <= wanted {
            loaded += load(&trees[tree]);
            start += trees[tree].1;
            tree += 1;
        }
        let degree = u128::from(trees[tree].0.degree(region).max(1));
        let offset = u64::try_from((wanted - loaded) / degree).unwrap_or(0);
        runs.push((start + offset.min(trees[tree].1), id));
        before += u128::from(rate);
    }
    runs
}

/// Turns a tree over regions into a tree over gateways; `serving` names the gateway that serves a
/// region.
fn gateway_tree_of_regions(
    fabric: &Fabric,
    rooted: &RootedRegionTree,
    share: u64,
    direction: TreeDirection,
    serving: impl Fn(usize) -> GatewayId,
) -> Tree {
    let mut parents = BTreeMap::new();
    for region in 0..fabric.regions().len() {
        let server = serving(region);
        let others = fabric.region(fabric_capacity_region(region)).gateways.clone().map(GatewayId);
        parents.extend(others.filter(|id| *id != server).map(|id| (id, server)));
        if let Some(parent) = rooted.parents[region] {
            parents.insert(server, serving(parent));
        }
    }
    let roots = rooted.roots.iter().map(|region| serving(*region)).collect();
    Tree { share, direction, roots, parents }
}

/// Turns trees over regions, with their rates, into trees over gateways, with whole shares.
pub(crate) fn assign_gateway_trees(
    fabric: &Fabric,
    trees: Vec<(GatewayTreePair, f64)>,
) -> Vec<Tree> {
    let weights: Vec<f64> = trees.iter().map(|(_, rate)| *rate).collect();
    let shares = whole_gateway_tree_shares(&weights);
    let trees = trees.into_iter().zip(shares).filter(|(_, share)| *share > 0);
    let trees: Vec<_> = trees.map(|((pair, _), share)| (pair, share)).collect();
    assign_gateway_trees_by_share(fabric, &trees)
}
