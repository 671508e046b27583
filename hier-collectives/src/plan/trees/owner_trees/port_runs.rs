//! Runs of ports: which gateway of each region serves which share of a region's blocks.

use crate::ids::{GatewayId, TreeIndex};
use crate::plan::plan_data::Plan;
use crate::plan::trees::gateway_tree::SHARES_TOTAL;
use crate::topology::{Fabric, Region};
use std::collections::BTreeSet;
use std::ops::Range;

/// 32 rails: the blocks of a region are divided into no more. Where the runs of all regions would
/// cut them into more, cuts are moved to the nearest of 32 equal parts, so that a port carries a
/// sixty-fourth of its region's blocks more or less. The number is chosen.
const RAILS_MAX: usize = 32;

/// A share of each region's blocks, and the gateways that it passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rail {
    /// The share, of [`SHARES_TOTAL`].
    pub shares: Range<u64>,
    /// The gateway of each region, in region order, by whose port the rail leaves and enters.
    pub serving: Vec<GatewayId>,
}

/// The rails into which the ports of all regions divide blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PortRuns {
    /// The rails, in the order of their shares.
    pub rails: Vec<Rail>,
}

impl PortRuns {
    /// Divides blocks among the ports of each region in proportion to what an all-reduce of the plan
    /// sends and receives over them, which follows the ports' rates.
    pub fn of_plan(plan: &Plan, fabric: &Fabric) -> Self {
        let loads = port_loads(plan, fabric);
        let runs: Vec<Vec<(u64, GatewayId)>> =
            fabric.regions().iter().map(|region| region_runs(region, &loads)).collect();
        let mut cuts: BTreeSet<u64> = runs.iter().flatten().map(|(start, _)| *start).collect();
        let most = rails_limit(fabric);
        if cuts.len() > most {
            let part = SHARES_TOTAL / most as u64;
            let moved = |cut: u64| (cut + part / 2) / part * part;
            cuts = cuts.into_iter().map(moved).filter(|cut| *cut < most as u64 * part).collect();
        }
        let starts: Vec<u64> = cuts.into_iter().collect();
        let ends = starts.iter().skip(1).copied().chain([SHARES_TOTAL]);
        let rail = |(start, end): (&u64, u64)| {
            // Cuts that were moved leave some rails in two runs: the middle decides.
            let middle = start + (end - start) / 2;
            let serving = |runs: &Vec<(u64, GatewayId)>| {
                runs[runs.partition_point(|(at, _)| *at <= middle).max(1) - 1].1
            };
            Rail { shares: *start..end, serving: runs.iter().map(serving).collect() }
        };
        Self { rails: starts.iter().zip(ends).map(rail).collect() }
    }
}

/// Returns the most rails of any plan: an all-to-all has a part for each rail of each pair of gateways,
/// and parts have numbers of [`TreeIndex`].
pub(super) fn rails_limit(fabric: &Fabric) -> usize {
    let pairs = fabric.gateways().len().pow(2);
    (usize::from(TreeIndex(u16::MAX).0) / pairs.max(1)).clamp(1, RAILS_MAX)
}

/// Returns the bytes of a nominal all-reduce that pass the port of each gateway, both ways.
fn port_loads(plan: &Plan, fabric: &Fabric) -> Vec<u64> {
    let mut loads = vec![0; fabric.gateways().len()];
    let region = |id: GatewayId| fabric.gateway(id).region;
    for ((from, to), bytes) in plan.nominal_flows(fabric) {
        if region(from) != region(to) {
            loads[usize::from(from.0)] += bytes;
            loads[usize::from(to.0)] += bytes;
        }
    }
    loads
}

/// Returns the first share that each gateway of a region serves, in order of shares. A region whose
/// ports carry nothing is served by its first gateway.
fn region_runs(region: &Region, loads: &[u64]) -> Vec<(u64, GatewayId)> {
    let load = |id: GatewayId| u128::from(loads[usize::from(id.0)]);
    let gateways = || region.gateways.clone().map(GatewayId);
    let all: u128 = gateways().map(load).sum();
    let mut before = 0u128;
    let mut runs = Vec::new();
    for id in gateways().filter(|id| load(*id) > 0) {
        let start = u128::from(SHARES_TOTAL) * before / all;
        runs.push((u64::try_from(start).unwrap_or(SHARES_TOTAL), id));
        before += load(id);
    }
    if runs.is_empty() {
        runs.extend(gateways().next().map(|first| (0, first)));
    }
    runs
}

/// Returns the shares of its region's blocks that the ranks of a gateway have, if all ranks have
/// alike.
pub(super) fn owner_run(fabric: &Fabric, owner: GatewayId) -> Range<u64> {
    let gateway = fabric.gateway(owner);
    let region = &fabric.region(gateway.region).ranks;
    let all = u64::from(region.end - region.start).max(1);
    let share = |rank: u32| SHARES_TOTAL * u64::from(rank - region.start) / all;
    share(gateway.ranks.start)..share(gateway.ranks.end)
}
