//! Baseline plans that ignore rates and regions, for comparison in tests and benches.
//!
//! Each takes the gateways of the fabric in order. Where every rank has a gateway of its own, they
//! are the flat algorithms over all ranks.

use crate::ids::GatewayId;
use crate::plan::plan_data::{Plan, PlanAlgorithm};
use crate::plan::segment_size::segment_size_of_fabric;
use crate::plan::tree::{Tree, TreeDirection};
use crate::topology::Fabric;

/// Makes the baseline plan of direct exchange: each gateway reduces an equal share and sends it to
/// all others.
pub fn even_baseline_plan(fabric: &Fabric) -> Plan {
    let trees = baseline_roots(fabric).map(|root| baseline_tree(fabric, root, |_| root)).collect();
    baseline_plan(
        fabric,
        PlanAlgorithm::Direct,
        "a baseline: direct exchange of equal shares",
        trees,
    )
}

/// Makes the baseline plan of a ring: each gateway owns an equal share, and every other gateway
/// adds to it in turn.
///
/// Results go the other way round, so that both directions of a link are used. Each gateway sends
/// as much as in a ring of one direction.
pub fn ring_baseline_plan(fabric: &Fabric) -> Plan {
    let all = baseline_gateway_count(fabric);
    let next = move |id: GatewayId| GatewayId((id.0 + 1) % all);
    let trees = baseline_roots(fabric).map(|root| baseline_tree(fabric, root, next)).collect();
    baseline_plan(fabric, PlanAlgorithm::Relay, "a baseline: a ring over all gateways", trees)
}

/// Makes the baseline plan of recursive halving and doubling, nearest first, over the largest power
/// of two of gateways.
///
/// Each further gateway gives its whole buffer to one of them and gets the whole result back.
pub fn halving_doubling_baseline_plan(fabric: &Fabric) -> Plan {
    let power = 1 << baseline_gateway_count(fabric).max(1).ilog2();
    let trees = baseline_roots(fabric).take(usize::from(power)).map(|root| {
        let parent = |id: GatewayId| {
            let differing = id.0 ^ root.0;
            match id.0 < power {
                true => GatewayId(id.0 ^ (differing & differing.wrapping_neg())),
                false => GatewayId(id.0 - power),
            }
        };
        baseline_tree(fabric, root, parent)
    });
    let trees = trees.collect();
    baseline_plan(fabric, PlanAlgorithm::Relay, "a baseline: recursive halving and doubling", trees)
}

/// Makes a plan of these trees, with the segment size of the fabric and no express tree.
fn baseline_plan(
    fabric: &Fabric,
    algorithm: PlanAlgorithm,
    reason: &str,
    trees: Vec<Tree>,
) -> Plan {
    let (reason, segment) = (reason.to_owned(), segment_size_of_fabric(fabric));
    Plan::of_trees(algorithm, reason, segment, trees)
}

/// Makes a tree of share 1 with one root, in which `parent` gives the parent of each other gateway.
fn baseline_tree(
    fabric: &Fabric,
    root: GatewayId,
    parent: impl Fn(GatewayId) -> GatewayId,
) -> Tree {
    let others = fabric.gateway_ids().filter(|id| *id != root);
    let parents = others.map(|id| (id, parent(id))).collect();
    Tree { share: 1, direction: TreeDirection::Both, roots: vec![root], parents }
}

/// Returns the root of each tree of a baseline plan: every gateway once.
fn baseline_roots(fabric: &Fabric) -> impl Iterator<Item = GatewayId> + use<> {
    fabric.gateway_ids()
}

/// Returns the number of gateways of the fabric.
fn baseline_gateway_count(fabric: &Fabric) -> u16 {
    u16::try_from(fabric.gateways().len()).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Operation;
    use crate::testing::{FabricBuilder, lossless_link, mbit, symmetric_port};
    use units::ByteCount;

    /// One rank in each region, with a gateway of its own.
    fn flat(ranks: usize) -> Fabric {
        let gateway = [(1, Some(symmetric_port(mbit(1000))))];
        let regions = (0..ranks).map(|index| format!("r{index:02}"));
        let builder =
            regions.fold(FabricBuilder::default(), |builder, name| builder.region(&name, gateway));
        builder.all_pairs(lossless_link(mbit(1000), 1)).build()
    }

    #[test]
    fn baselines_are_valid_and_send_the_known_volume() {
        for ranks in 2..20 {
            let fabric = flat(ranks);
            let size = 1 << 30;
            for (plan, even) in [
                (even_baseline_plan(&fabric), true),
                (ring_baseline_plan(&fabric), true),
                (halving_doubling_baseline_plan(&fabric), false),
            ] {
                let all = baseline_gateway_count(&fabric);
                assert_eq!(plan.prove(all), Ok(()), "{ranks} ranks: {}", plan.reason);
                let forecast = plan.forecast(&fabric, Operation::AllReduce, ByteCount::new(size));
                let outs = forecast.gateways.iter().map(|load| load.wan_out.get());
                let all: u64 = outs.clone().sum();
                assert_eq!(all, 2 * (ranks as u64 - 1) * size, "{ranks} ranks: {}", plan.reason);
                let each = 2.0 * (1.0 - 1.0 / ranks as f64) * size as f64;
                let alike = outs.clone().all(|out| (out as f64 / each - 1.0).abs() < 1e-6);
                assert_eq!(alike, even || ranks.is_power_of_two(), "{ranks}: {}", plan.reason);
            }
        }
    }

    #[test]
    fn halving_takes_one_hop_for_each_differing_bit() {
        let plan = halving_doubling_baseline_plan(&flat(8));
        for tree in &plan.trees {
            for start in (0..8).map(GatewayId) {
                let mut at = start;
                let mut hops = 0;
                while let Some(parent) = tree.parents.get(&at) {
                    (at, hops) = (*parent, hops + 1);
                }
                assert_eq!(hops, (start.0 ^ tree.roots[0].0).count_ones());
            }
        }
    }
}
