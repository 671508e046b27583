//! The choice among algorithms, by the forecast for a large buffer.
//!
//! [`super::planner`] calls it. It calls the makers of trees and compares their rates.

use super::analysis::pair_shares::PairShares;
use super::capacity::{Capacity, PortDirection};
use super::encoding::{bytes_max, plan_bytes};
use super::sizing::segment_bytes;
use super::tree::{Algorithm, Plan, Tree};
use super::trees::asymmetric;
use super::trees::direct::{TIE, owners};
use super::trees::gateway_tree::{self, SHARES, TreePair};
use super::trees::packing::{self, Packing};
use super::trees::region_tree::{RegionTree, RootedTree};
use crate::topology::{Fabric, WanPort};
use units::ByteCount;

/// 16 TiB: a buffer so large that delays do not count.
const LARGE_BYTES: u64 = 1 << 44;

/// 2 KiB of a message are kept for the reason and the express tree, which are added later.
const LATER_BYTES: usize = 2048;

/// An algorithm, the reason for it, and its trees over regions with their rates.
struct Choice {
    algorithm: Algorithm,
    reason: String,
    trees: Vec<(RootedTree, f64)>,
}

/// Chooses the plan for large buffers.
pub(super) fn choose(fabric: &Fabric) -> Plan {
    let segment = segment_bytes(fabric);
    let (regions, gateways) = (fabric.regions().len(), fabric.gateways().len());
    if regions == 1 {
        let reason = match gateways {
            1 => "one gateway serves every rank".to_owned(),
            _ => format!("one region: each of its {gateways} gateways reduces one share"),
        };
        let trees = gateway_tree::one_region(fabric);
        return plan(Algorithm::Local, reason, segment, trees);
    }
    let capacity = Capacity::of(fabric, PortDirection::Both);
    let choice = match regions {
        2 => swap(&capacity),
        _ => for_several_regions(fabric, &capacity),
    };
    let pairs = choice.trees.into_iter().map(|(rooted, rate)| (TreePair::common(rooted), rate));
    let trees = on_gateways(fabric, pairs.collect());
    let common = plan(choice.algorithm, choice.reason, segment, trees);
    let unequal = |wan: &WanPort| wan.egress != wan.ingress;
    if regions == 2 || !fabric.gateways().iter().filter_map(|g| g.wan.as_ref()).any(unequal) {
        return common;
    }
    with_separate_trees(fabric, common)
}

/// Replaces the trees of `common` by separate trees for partials and results, where those are
/// faster.
fn with_separate_trees(fabric: &Fabric, common: Plan) -> Plan {
    let trees = on_gateways(fabric, asymmetric::tree_pairs(fabric));
    let separate = plan(Algorithm::Relay, String::new(), common.segment, trees);
    let seconds = |plan: &Plan| plan.seconds(fabric, LARGE_BYTES, &PairShares::new());
    let (common_seconds, separate_seconds) = (seconds(&common), seconds(&separate));
    let gateways = fabric.gateways().len();
    let bytes = plan_bytes(&separate).len() + 8 * gateways + LATER_BYTES;
    let fits = bytes < bytes_max(gateways);
    if !fits || separate_seconds > common_seconds * (1.0 - TIE) {
        let why = if fits { "would not be faster" } else { "would not fit one message" };
        let reason = format!(
            "; a port counts with its slower direction: separate trees for partials and results {why}"
        );
        return Plan { reason: common.reason + &reason, ..common };
    }
    let reason = format!(
        "ports have unequal rates in and out: partials take trees that fit the ingress rates and \
         results take trees that fit the egress rates, which is {:.2} times as fast as common trees",
        common_seconds / separate_seconds
    );
    Plan { reason, ..separate }
}

/// Trees over gateways for trees over regions with their rates.
fn on_gateways(fabric: &Fabric, trees: Vec<(TreePair, f64)>) -> Vec<Tree> {
    let weights: Vec<f64> = trees.iter().map(|(_, rate)| *rate).collect();
    let shares = gateway_tree::whole_shares(&weights);
    let trees = trees.into_iter().zip(shares).filter(|(_, share)| *share > 0);
    let trees: Vec<_> = trees.map(|((pair, _), share)| (pair, share)).collect();
    gateway_tree::spread(fabric, &trees)
}

/// A plan without an express tree.
fn plan(algorithm: Algorithm, reason: String, segment: ByteCount, trees: Vec<Tree>) -> Plan {
    Plan { algorithm, reason, segment, express_bytes: ByteCount::default(), trees }
}

/// The choice for two regions.
fn swap(capacity: &Capacity) -> Choice {
    let reason = "two regions: both send their partial once and both add, which takes S/B and one \
                  one-way delay, the least possible"
        .to_owned();
    let trees = vec![(RootedTree::all_roots(capacity), SHARES as f64)];
    Choice { algorithm: Algorithm::Swap, reason, trees }
}

/// The choice for three regions and more: direct exchange, or relays where those are faster.
fn for_several_regions(fabric: &Fabric, capacity: &Capacity) -> Choice {
    let mut direct = None;
    if capacity.is_complete() {
        if let Some(packing) = owners(capacity) {
            return direct_exchange(capacity, packing, capacity.rate_limit());
        }
        let regions = capacity.regions();
        let pool = (0..regions).map(|center| RegionTree::star(regions, center)).collect();
        direct = Some(packing::pack_these(capacity, pool));
    }
    let relay = packing::pack(capacity);
    match direct {
        Some(direct) if direct.rate >= relay.rate * (1.0 - TIE) => {
            direct_exchange(capacity, direct, relay.limit)
        }
        direct => relays(fabric, capacity, direct, relay),
    }
}

/// The choice of direct exchange, in which no trees exceed the rate `limit`.
fn direct_exchange(capacity: &Capacity, packing: Packing, limit: f64) -> Choice {
    let owners = packing.trees.len();
    let reason = format!(
        "every pair of the {} regions has a link: {owners} regions own shares that fit their \
         ports, and each byte crosses at most twice; {} of the highest possible rate",
        capacity.regions(),
        percent(packing.rate / limit)
    );
    let rooted = |(tree, rate): (RegionTree, f64)| {
        let owner = tree.center().unwrap_or(0);
        (tree.rooted_at(owner, capacity), rate)
    };
    let trees = packing.trees.into_iter().map(rooted).collect();
    Choice { algorithm: Algorithm::Direct, reason, trees }
}

/// The choice of trees with relays; `direct` is the direct exchange that they beat, if there is one.
fn relays(fabric: &Fabric, capacity: &Capacity, direct: Option<Packing>, relay: Packing) -> Choice {
    let of_limit = percent(relay.rate / relay.limit);
    let trees: Vec<(RootedTree, f64)> =
        relay.trees.iter().map(|(tree, rate)| (tree.rooted_at_center(capacity), *rate)).collect();
    if let [(tree, _)] = &relay.trees[..]
        && let Some(center) = tree.center()
    {
        let name = &fabric.regions()[center].name;
        let reason = format!(
            "{name} has a link to every other region and reduces for all; its port and links reach \
             {of_limit} of the highest possible rate"
        );
        return Choice { algorithm: Algorithm::Hub, reason, trees };
    }
    let cause = match direct {
        None => match capacity.missing_pairs() {
            1 => "one pair has no link".to_owned(),
            missing => format!("{missing} pairs have no link"),
        },
        Some(direct) => format!(
            "links are narrower than ports: direct exchange would take {:.2} times as long",
            relay.rate / direct.rate
        ),
    };
    let kind = if trees.len() == 1 { "one tree" } else { "weighted trees" };
    let reason = format!(
        "{cause}; {kind} with relays ({} in all) reach {of_limit} of the highest possible rate",
        trees.len()
    );
    Choice { algorithm: Algorithm::Relay, reason, trees }
}

/// A fraction as a percentage.
fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}
