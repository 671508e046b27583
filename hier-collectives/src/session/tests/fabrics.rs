//! Small fabrics, trees and plans for tests.

use crate::ids::*;
use crate::mesh::*;
use crate::plan::*;
use crate::topology::*;
use std::sync::Arc;
use units::*;

/// The segment size of test plans, in bytes.
pub(super) const SEGMENT_BYTES: u64 = 128;

pub(super) fn fabric(ranks: &[u32]) -> Arc<Fabric> {
    fabric_with(ranks, BitRate::from_bits_per_second(1_000_000), Fraction::default())
}

/// Regions with links of this rate and loss between all of them.
pub(super) fn fabric_with(ranks: &[u32], rate: BitRate, loss: Fraction) -> Arc<Fabric> {
    let pairs =
        (0..ranks.len()).flat_map(|one| (one + 1..ranks.len()).map(move |other| (one, other)));
    fabric_of(ranks, pairs.collect(), rate, loss)
}

/// Three regions of one rank, the second of which is between the others.
pub(super) fn line_of_three() -> Arc<Fabric> {
    let rate = BitRate::from_bits_per_second(1_000_000);
    fabric_of(&[1; 3], vec![(0, 1), (1, 2)], rate, Fraction::default())
}

/// The fabric of two ranks that send to each other over so many links in a line, two or more.
pub(super) fn relayed_pair(links: u16) -> Arc<Fabric> {
    let rate = BitRate::from_bits_per_second(1_000_000);
    let regions = usize::from(links) + 1;
    let pairs = (1..regions).map(|at| (at - 1, at)).collect();
    let whole = fabric_of(&vec![1; regions], pairs, rate, Fraction::default());
    let ends = [RankId(0), RankId(u32::from(links))];
    Arc::new(GroupFabric::of_send(&whole, &ends).expect("a line").fabric)
}

fn fabric_of(
    ranks: &[u32],
    pairs: Vec<(usize, usize)>,
    rate: BitRate,
    loss: Fraction,
) -> Arc<Fabric> {
    let port = BitRate::from_bits_per_second(1_000_000);
    let wan = Some(WanPort { egress: port, ingress: port });
    let name = |index: usize| format!("r{index}");
    let region = |(index, ranks): (usize, &u32)| FabricRegionSpec {
        name: name(index),
        speeds: vec![1.0; *ranks as usize],
        gateways: vec![FabricGatewaySpec::new(format!("g{index}"), *ranks, wan)],
    };
    let link = |(one, other)| {
        let between = (name(one), name(other));
        FabricLinkSpec { between, rate, rtt: Span::from_ms(2), loss }
    };
    let links = pairs.into_iter().map(link).collect();
    let regions = ranks.iter().enumerate().map(region).collect();
    Arc::new(Fabric::new("test", 1500, regions, links).expect("valid"))
}

/// The graph in which all connections of a fabric have this state.
pub(super) fn connections(fabric: &Fabric, state: MeshConnectionState) -> Arc<MeshGraph> {
    Arc::new(MeshGraph::uniform(fabric, state))
}

/// Two gateways, the lower number first.
pub(super) fn pair_of(one: GatewayId, other: GatewayId) -> GatewayPair {
    (one.min(other), one.max(other))
}

pub(super) fn tree(share: u64, roots: &[u16], parents: &[(u16, u16)]) -> Tree {
    Tree {
        share,
        direction: TreeDirection::Both,
        roots: roots.iter().copied().map(GatewayId).collect(),
        parents: parents.iter().map(|(a, b)| (GatewayId(*a), GatewayId(*b))).collect(),
    }
}

pub(super) fn plan_of(trees: Vec<Tree>) -> Plan {
    Plan {
        algorithm: PlanAlgorithm::Swap,
        reason: String::new(),
        segment: ByteCount::new(SEGMENT_BYTES),
        express_bytes: ByteCount::default(),
        trees,
        block_trees: vec![],
        block_bytes_min: ByteCount::default(),
    }
}

pub(super) fn shapes() -> Vec<(usize, Vec<Tree>)> {
    vec![
        (1, vec![tree(1, &[0], &[])]),
        (2, vec![tree(1, &[0, 1], &[])]),
        (2, vec![tree(1, &[1], &[(0, 1)])]),
        (3, vec![tree(1, &[0, 1, 2], &[])]),
        (3, vec![tree(3, &[0], &[(1, 0), (2, 0)]), tree(2, &[2], &[(0, 2), (1, 2)])]),
        (4, vec![tree(1, &[0], &[(1, 0), (2, 1), (3, 1)]), tree(1, &[2, 3], &[(0, 2), (1, 2)])]),
        (2, apart(1, 0, [&[(1, 0)], &[(1, 0)]]).to_vec()),
        (4, {
            // Gateway 1 sends its partial up to 2, and the result down to 2.
            let [up, down] = apart(3, 0, [&[(1, 2), (2, 0), (3, 2)], &[(1, 0), (2, 1), (3, 1)]]);
            let [too, also] = apart(2, 3, [&[(0, 3), (1, 0), (2, 0)], &[(0, 2), (1, 2), (2, 3)]]);
            vec![up, down, tree(1, &[1, 2], &[(0, 1), (3, 1)]), too, also]
        }),
    ]
}

/// A tree for partials and one for results, held at the same gateway.
pub(super) fn apart(share: u64, root: u16, [up, down]: [&[(u16, u16)]; 2]) -> [Tree; 2] {
    [
        Tree { direction: TreeDirection::Partials, ..tree(share, &[root], up) },
        Tree { direction: TreeDirection::Results, ..tree(share, &[root], down) },
    ]
}
