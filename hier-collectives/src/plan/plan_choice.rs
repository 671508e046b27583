//! The choice among algorithms, by the forecast for a large buffer.
//!
//! [`super::planner`] calls it. It calls the makers of trees and compares their rates.

use super::analysis::pair_shares::PairShares;
use super::fabric_capacity::{FabricCapacity, PortDirection};
use super::plan_data::{Plan, PlanAlgorithm};
use super::plan_encoding::{plan_encoding, plan_encoding_bytes_max};
use super::segment_size::segment_size_of_fabric;
use super::trees::asymmetric;
use super::trees::direct_exchange::{TIE_FRACTION, direct_exchange_packing};
use super::trees::gateway_tree::assign_gateway_trees;
use super::trees::gateway_tree::{self, GatewayTreePair, SHARES_TOTAL};
use super::trees::packing::{self, Packing};
use super::trees::region_tree::{RegionTree, RootedRegionTree};
use crate::topology::{Fabric, WanPort};
use units::{rounded_decimal, rounded_decimal_percent};

/// 16 TiB: two plans are compared by their predicted times for a buffer of this length, and the
/// faster plan is taken. For so large a buffer, rates count and delays do not.
const LARGE_BUFFER_BYTES: u64 = 1 << 44;

/// 2 KiB of the message that carries a plan: kept free for the reason and the express tree, which
/// the planner adds later. Separate trees for partials and results that leave less are not used.
/// The size is chosen, with room to spare.
const LATER_ADDITIONS_BYTES: usize = 2048;

/// An algorithm, the reason for it, and its trees over regions with their rates.
struct Choice {
    algorithm: PlanAlgorithm,
    reason: String,
    trees: Vec<(RootedRegionTree, f64)>,
}

/// Makes the plan with the least time for large buffers, without an express tree.
pub(super) fn choose_large_plan(fabric: &Fabric) -> Plan {
    let segment = segment_size_of_fabric(fabric);
    let (regions, gateways) = (fabric.regions().len(), fabric.gateways().len());
    if regions == 1 {
        let reason = match gateways {
            1 => "one gateway serves every rank".to_owned(),
            _ => format!("one region: each of its {gateways} gateways reduces one share"),
        };
        let trees = gateway_tree::gateway_trees_of_one_region(fabric);
        return Plan::of_trees(PlanAlgorithm::Local, reason, segment, trees);
    }
    let capacity = FabricCapacity::of_fabric(fabric, PortDirection::Both);
    let choice = match regions {
        2 => choose_swap_plan(&capacity),
        _ => choose_plan_for_several_regions(fabric, &capacity),
    };
    let pairs =
        choice.trees.into_iter().map(|(rooted, rate)| (GatewayTreePair::common(rooted), rate));
    let trees = assign_gateway_trees(fabric, pairs.collect());
    let common = Plan::of_trees(choice.algorithm, choice.reason, segment, trees);
    let unequal = |wan: &WanPort| wan.egress != wan.ingress;
    if regions == 2 || !fabric.gateways().iter().filter_map(|g| g.wan.as_ref()).any(unequal) {
        return common;
    }
    choose_plan_of_separate_trees(fabric, common)
}

/// Returns a plan of separate trees for partials and results, where that is faster than `common` by
/// 0.5 % and fits one message.
///
/// Else returns `common`, with a reason that says why it was kept.
fn choose_plan_of_separate_trees(fabric: &Fabric, common: Plan) -> Plan {
    let trees = assign_gateway_trees(fabric, asymmetric::asymmetric_tree_pairs(fabric));
    let separate = Plan::of_trees(PlanAlgorithm::Relay, String::new(), common.segment, trees);
    let seconds = |plan: &Plan| {
        plan.forecast_all_reduce_seconds(fabric, LARGE_BUFFER_BYTES, &PairShares::new())
    };
    let (common_seconds, separate_seconds) = (seconds(&common), seconds(&separate));
    let gateways = fabric.gateways().len();
    let bytes = plan_encoding(&separate).len() + 8 * gateways + LATER_ADDITIONS_BYTES;
    let fits = bytes < plan_encoding_bytes_max(gateways);
    if !fits || separate_seconds > common_seconds * (1.0 - TIE_FRACTION) {
        let why = if fits { "would not be faster" } else { "would not fit one message" };
        let reason = format!(
            "; a port counts with its slower direction: separate trees for partials and results {why}"
        );
        return Plan { reason: common.reason + &reason, ..common };
    }
    let reason = format!(
        "ports have unequal rates in and out: partials take trees that fit the ingress rates and \
         results take trees that fit the egress rates, which is {} times as fast as common trees",
        rounded_decimal(common_seconds / separate_seconds)
    );
    Plan { reason, ..separate }
}

/// Returns the choice for two regions: both send their partial and both add.
fn choose_swap_plan(capacity: &FabricCapacity) -> Choice {
    let reason = "two regions: both send their partial once and both add, which takes the time \
                  of its bytes on the link and one one-way delay, the least possible"
        .to_owned();
    let trees = vec![(RootedRegionTree::all_roots(capacity), SHARES_TOTAL as f64)];
    Choice { algorithm: PlanAlgorithm::Swap, reason, trees }
}

/// Returns the choice for three regions and more: direct exchange, or relays where those are
/// faster.
fn choose_plan_for_several_regions(fabric: &Fabric, capacity: &FabricCapacity) -> Choice {
    let mut direct = None;
    if capacity.is_complete() {
        if let Some(packing) = direct_exchange_packing(capacity) {
            return choose_direct_plan(capacity, packing, capacity.rate_upper_bound());
        }
        let regions = capacity.region_count();
        let pool = (0..regions).map(|center| RegionTree::star(regions, center)).collect();
        direct = Some(packing::pack_pool(capacity, pool));
    }
    let relay = packing::pack_any_trees(capacity);
    match direct {
        Some(direct) if direct.rate >= relay.rate * (1.0 - TIE_FRACTION) => {
            choose_direct_plan(capacity, direct, relay.limit)
        }
        direct => choose_relay_plan(fabric, capacity, direct, relay),
    }
}

/// Returns the choice of direct exchange by the trees of `packing`; no trees exceed the rate
/// `limit`.
fn choose_direct_plan(capacity: &FabricCapacity, packing: Packing, limit: f64) -> Choice {
    let owners = packing.trees.len();
    let reason = format!(
        "every pair of the {} regions has a link: {owners} regions own shares that fit their \
         ports, and each byte crosses at most twice; {} of the highest possible rate",
        capacity.region_count(),
        rounded_decimal_percent(packing.rate / limit)
    );
    let rooted = |(tree, rate): (RegionTree, f64)| {
        let owner = tree.center().unwrap_or(0);
        (tree.rooted_at(owner, capacity), rate)
    };
    let trees = packing.trees.into_iter().map(rooted).collect();
    Choice { algorithm: PlanAlgorithm::Direct, reason, trees }
}

/// Returns the choice of the trees of `relay`, in which some regions relay for others.
///
/// `direct` is the slower direct exchange, if the links allow one.
fn choose_relay_plan(
    fabric: &Fabric,
    capacity: &FabricCapacity,
    direct: Option<Packing>,
    relay: Packing,
) -> Choice {
    let of_limit = rounded_decimal_percent(relay.rate / relay.limit);
    let trees: Vec<(RootedRegionTree, f64)> =
        relay.trees.iter().map(|(tree, rate)| (tree.rooted_at_center(capacity), *rate)).collect();
    if let [(tree, _)] = &relay.trees[..]
        && let Some(center) = tree.center()
    {
        let name = &fabric.regions()[center].name;
        let reason = format!(
            "{name} has a link to every other region and reduces for all; its port and links reach \
             {of_limit} of the highest possible rate"
        );
        return Choice { algorithm: PlanAlgorithm::Hub, reason, trees };
    }
    let cause = match direct {
        None => match capacity.missing_pairs() {
            1 => "one pair has no link".to_owned(),
            missing => format!("{missing} pairs have no link"),
        },
        Some(direct) => format!(
            "links are narrower than ports: direct exchange would take {} times as long",
            rounded_decimal(relay.rate / direct.rate)
        ),
    };
    let kind = if trees.len() == 1 { "one tree" } else { "weighted trees" };
    let reason = format!(
        "{cause}; {kind} with relays ({} in all) reach {of_limit} of the highest possible rate",
        trees.len()
    );
    Choice { algorithm: PlanAlgorithm::Relay, reason, trees }
}
