//! The choice among algorithms.

use super::capacity::{Capacity, PortDirection};
use super::encoding::{bytes_max, plan_bytes};
use super::pair_shares::PairShares;
use super::sizing::segment_bytes;
use super::tree::{Algorithm, Plan, Tree};
use super::trees::asymmetric;
use super::trees::direct::{TIE, owners};
use super::trees::gateway_tree::{self, SHARES, TreePair};
use super::trees::packing::{self, Packing};
use super::trees::region_tree::{RegionTree, RootedTree};
use crate::topology::{Fabric, WanPort};
use units::ByteCount;

/// So large that distance does not count.
const LARGE: u64 = 1 << 44;

/// An algorithm, its reason, and trees over regions with their rates.
type Choice = (Algorithm, String, Vec<(RootedTree, f64)>);

/// The plan for large buffers.
pub(super) fn choose(fabric: &Fabric) -> Plan {
    let segment = segment_bytes(fabric);
    let (regions, gateways) = (fabric.regions().len(), fabric.gateways().len());
    if regions == 1 {
        let reason = match gateways {
            1 => "one gateway serves every rank".to_owned(),
            _ => format!("one region: each of its {gateways} gateways reduces a share"),
        };
        return plan((Algorithm::Local, reason), segment, gateway_tree::one_region(fabric));
    }
    let capacity = Capacity::of(fabric, PortDirection::Both);
    let (algorithm, reason, trees) = match regions {
        2 => swap(&capacity),
        _ => several(fabric, &capacity),
    };
    let trees = trees.into_iter().map(|(rooted, rate)| (TreePair::one(rooted), rate)).collect();
    let one = plan((algorithm, reason), segment, on_gateways(fabric, trees));
    let unequal = |wan: &WanPort| wan.egress != wan.ingress;
    if regions == 2 || !fabric.gateways().iter().filter_map(|g| g.wan.as_ref()).any(unequal) {
        return one;
    }
    faster(fabric, one)
}

/// Trees apart for partials and results, where they are faster than `one` for both.
fn faster(fabric: &Fabric, one: Plan) -> Plan {
    let trees = on_gateways(fabric, asymmetric::tree_pairs(fabric));
    let apart = plan((Algorithm::Relay, String::new()), one.segment, trees);
    let seconds = |plan: &Plan| plan.seconds(fabric, LARGE, &PairShares::new());
    let (with_one, with_two) = (seconds(&one), seconds(&apart));
    let gateways = fabric.gateways().len();
    // Reason and express tree come on top.
    let fits = plan_bytes(&apart).len() + 8 * gateways + 2048 < bytes_max(gateways);
    if !fits || with_two > with_one * (1.0 - TIE) {
        let why = if fits { "would not be faster" } else { "are too many for one message" };
        let reason = format!(
            "; a port with unequal directions counts with the lesser: trees apart for partials and \
             results {why}"
        );
        return Plan { reason: one.reason + &reason, ..one };
    }
    let reason = format!(
        "ports carry more one way than the other: partials take trees that fit what ports take in, \
         and results trees that fit what they send, which is {:.2} times as fast as trees for both",
        with_one / with_two
    );
    Plan { reason, ..apart }
}

fn on_gateways(fabric: &Fabric, trees: Vec<(TreePair, f64)>) -> Vec<Tree> {
    let weights: Vec<f64> = trees.iter().map(|(_, rate)| *rate).collect();
    let shares = gateway_tree::whole_shares(&weights);
    let trees = trees.into_iter().zip(shares).filter(|(_, share)| *share > 0);
    let trees: Vec<_> = trees.map(|((pair, _), share)| (pair, share)).collect();
    gateway_tree::spread(fabric, &trees)
}

fn plan((algorithm, reason): (Algorithm, String), segment: ByteCount, trees: Vec<Tree>) -> Plan {
    Plan { algorithm, reason, segment, express_bytes: ByteCount::default(), trees }
}

fn swap(capacity: &Capacity) -> Choice {
    let reason = "two regions: both send their partial once and both add, which takes S/B and one \
                  one-way delay, the least possible";
    (Algorithm::Swap, reason.to_owned(), vec![(RootedTree::everybody(capacity), SHARES as f64)])
}

fn several(fabric: &Fabric, capacity: &Capacity) -> Choice {
    let mut direct = None;
    if capacity.is_complete() {
        if let Some(packing) = owners(capacity) {
            return by_owners(capacity, packing, capacity.rate_limit());
        }
        let regions = capacity.regions();
        let pool = (0..regions).map(|center| RegionTree::star(regions, center)).collect();
        direct = Some(packing::pack_these(capacity, pool));
    }
    let relay = packing::pack(capacity);
    match direct {
        Some(direct) if direct.rate >= relay.rate * (1.0 - TIE) => {
            by_owners(capacity, direct, relay.limit)
        }
        direct => by_relays(fabric, capacity, direct, relay),
    }
}

fn by_owners(capacity: &Capacity, packing: Packing, limit: f64) -> Choice {
    let owners = packing.trees.len();
    let reason = format!(
        "every pair of the {} regions is linked: {owners} of them own shares that fit their \
         ports, and each byte crosses at most twice; {} of the rate that no trees exceed",
        capacity.regions(),
        percent(packing.rate / limit)
    );
    let held = |(tree, rate): (RegionTree, f64)| {
        let owner = tree.center().unwrap_or(0);
        (tree.rooted_at(owner, capacity), rate)
    };
    (Algorithm::Direct, reason, packing.trees.into_iter().map(held).collect())
}

fn by_relays(
    fabric: &Fabric,
    capacity: &Capacity,
    direct: Option<Packing>,
    relay: Packing,
) -> Choice {
    let of_limit = percent(relay.rate / relay.limit);
    let trees: Vec<(RootedTree, f64)> =
        relay.trees.iter().map(|(tree, rate)| (tree.rooted_at_center(capacity), *rate)).collect();
    if let [(tree, _)] = &relay.trees[..]
        && let Some(center) = tree.center()
    {
        let name = &fabric.regions()[center].name;
        let reason = format!(
            "{name} is linked to all others and reduces for them, which its port and links carry; \
             {of_limit} of the rate that no trees exceed"
        );
        return (Algorithm::Hub, reason, trees);
    }
    let why = match direct {
        None => match capacity.missing_pairs() {
            1 => "one pair has no link".to_owned(),
            missing => format!("{missing} pairs have no link"),
        },
        Some(direct) => format!(
            "links are narrower than ports: direct exchange would take {:.2} times as long",
            relay.rate / direct.rate
        ),
    };
    let several = if trees.len() == 1 { "one tree" } else { "weighted trees" };
    let reason = format!(
        "{why}; {several} with relays ({} in all) reach {of_limit} of the rate that no trees \
         exceed",
        trees.len()
    );
    (Algorithm::Relay, reason, trees)
}

fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}
