//! Baseline plans that ignore rates and regions, for comparison in tests and benches.
//!
//! Each takes the gateways of the fabric in order. Where every rank has a gateway of its own, they
//! are the flat algorithms over all ranks.

use crate::ids::GatewayId;
use crate::plan::sizing::segment_bytes;
use crate::plan::tree::{Algorithm, Plan, Tree, TreeDirection};
use crate::topology::Fabric;
use units::ByteCount;

/// Direct exchange of equal shares: each gateway reduces its share and sends it to all others.
pub fn even(fabric: &Fabric) -> Plan {
    let trees = roots(fabric).map(|root| tree(fabric, root, |_| root)).collect();
    plan(fabric, Algorithm::Direct, "a baseline: direct exchange of equal shares", trees)
}

/// A ring: each gateway owns an equal share, and every other gateway adds to it in turn.
///
/// Results go the other way round, so that both directions of a link are used. Each gateway sends
/// as much as in a ring of one direction.
pub fn ring(fabric: &Fabric) -> Plan {
    let all = gateways(fabric);
    let next = move |id: GatewayId| GatewayId((id.0 + 1) % all);
    let trees = roots(fabric).map(|root| tree(fabric, root, next)).collect();
    plan(fabric, Algorithm::Relay, "a baseline: a ring over all gateways", trees)
}

/// Recursive halving and doubling, nearest first, over the largest power of two of gateways.
///
/// Each further gateway gives its whole buffer to one of them and gets the whole result back.
pub fn halving_doubling(fabric: &Fabric) -> Plan {
    let power = 1 << gateways(fabric).max(1).ilog2();
    let trees = roots(fabric).take(usize::from(power)).map(|root| {
        let parent = |id: GatewayId| {
            let differing = id.0 ^ root.0;
            match id.0 < power {
                true => GatewayId(id.0 ^ (differing & differing.wrapping_neg())),
                false => GatewayId(id.0 - power),
            }
        };
        tree(fabric, root, parent)
    });
    let trees = trees.collect();
    plan(fabric, Algorithm::Relay, "a baseline: recursive halving and doubling", trees)
}

fn plan(fabric: &Fabric, algorithm: Algorithm, reason: &str, trees: Vec<Tree>) -> Plan {
    let (reason, segment) = (reason.to_owned(), segment_bytes(fabric));
    Plan { algorithm, reason, segment, express_bytes: ByteCount::default(), trees }
}

fn tree(fabric: &Fabric, root: GatewayId, parent: impl Fn(GatewayId) -> GatewayId) -> Tree {
    let others = fabric.gateway_ids().filter(|id| *id != root);
    let parents = others.map(|id| (id, parent(id))).collect();
    Tree { share: 1, direction: TreeDirection::Both, roots: vec![root], parents }
}

fn roots(fabric: &Fabric) -> impl Iterator<Item = GatewayId> + use<> {
    fabric.gateway_ids()
}

fn gateways(fabric: &Fabric) -> u16 {
    u16::try_from(fabric.gateways().len()).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Operation;
    use crate::testing::{FabricBuilder, mbit, path, port};

    /// One rank in each region, with a gateway of its own.
    fn flat(ranks: usize) -> Fabric {
        let gateway = [(1, Some(port(mbit(1000))))];
        let regions = (0..ranks).map(|index| format!("r{index:02}"));
        let builder =
            regions.fold(FabricBuilder::default(), |builder, name| builder.region(&name, gateway));
        builder.all_pairs(path(mbit(1000), 1)).build()
    }

    #[test]
    fn baselines_are_valid_and_send_the_known_volume() {
        for ranks in 2..20 {
            let fabric = flat(ranks);
            let size = 1 << 30;
            for (plan, even) in
                [(even(&fabric), true), (ring(&fabric), true), (halving_doubling(&fabric), false)]
            {
                let all = gateways(&fabric);
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
        let plan = halving_doubling(&flat(8));
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
