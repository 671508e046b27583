//! Separate trees for partials and for results, where ports have unequal rates in and out.
//!
//! A tree of partials brings one partial into a region for each edge to a child. The result comes
//! in over the other tree. So a region's ingress carries as many messages as the tree has edges
//! there, wherever its root is. Partials are therefore packed by ingress and results by egress, and
//! any tree of one packing fits any tree of the other.

use super::direct_exchange::direct_exchange_packing;
use super::gateway_tree::GatewayTreePair;
use super::packing;
use super::region_tree::RegionTree;
use crate::plan::fabric_capacity::{FabricCapacity, PortDirection};
use crate::topology::Fabric;
use std::collections::BTreeMap;

/// 1e-6 of a buffer: a part that is no larger gets no tree of its own, and the other trees take its
/// bytes. All trees together have 2^20 shares, so that a smaller part is about one share or none.
const BUFFER_PART_MIN: f64 = 1e-6;

/// Makes pairs of trees for ports with unequal rates in and out, each with its fraction of a
/// buffer.
pub(crate) fn asymmetric_tree_pairs(fabric: &Fabric) -> Vec<(GatewayTreePair, f64)> {
    let capacity = FabricCapacity::of_fabric(fabric, PortDirection::Both);
    let mut partials = asymmetric_tree_fractions(fabric, PortDirection::Ingress);
    let mut results = asymmetric_tree_fractions(fabric, PortDirection::Egress);
    let mut pairs = Vec::new();
    // A tree of both packings serves both directions, which needs fewer hops.
    for (tree, part) in &mut partials {
        let Some(other) = results.get_mut(tree) else { continue };
        let both = part.min(*other);
        (*part, *other) = (*part - both, *other - both);
        pairs.push((GatewayTreePair::common(tree.rooted_at_center(&capacity)), both));
    }
    let left = |parts: BTreeMap<RegionTree, f64>| {
        parts.into_iter().filter(|(_, part)| *part > BUFFER_PART_MIN)
    };
    let mut results = left(results);
    let mut next = results.next();
    for (up, mut part) in left(partials) {
        while let Some((down, other)) = next.as_mut().filter(|_| part > BUFFER_PART_MIN) {
            let both = part.min(*other);
            let top =
                up.center().or(down.center()).unwrap_or(up.rooted_at_center(&capacity).roots[0]);
            let pair = GatewayTreePair {
                partials: up.rooted_at(top, &capacity),
                results: Some(down.rooted_at(top, &capacity)),
            };
            pairs.push((pair, both));
            (part, *other) = (part - both, *other - both);
            if *other <= BUFFER_PART_MIN {
                next = results.next();
            }
        }
    }
    pairs.retain(|(_, part)| *part > BUFFER_PART_MIN);
    pairs
}

/// Packs trees by one direction of the ports; returns them with their fractions of a buffer.
fn asymmetric_tree_fractions(
    fabric: &Fabric,
    direction: PortDirection,
) -> BTreeMap<RegionTree, f64> {
    let capacity = FabricCapacity::of_fabric(fabric, direction);
    let owners =
        Some(&capacity).filter(|capacity| capacity.is_complete()).and_then(direct_exchange_packing);
    let packing = owners.unwrap_or_else(|| packing::pack_any_trees(&capacity));
    packing.trees.into_iter().map(|(tree, rate)| (tree, rate / packing.rate)).collect()
}
