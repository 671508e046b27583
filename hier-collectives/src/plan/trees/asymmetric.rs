//! Trees apart for partials and for results, where ports carry more one way than the other.
//!
//! What a tree of partials brings into a region is one partial for each of its edges there but the
//! one to its parent, and the result, which comes by the other tree: as much as it has edges,
//! wherever it is held. So partials are packed by what ports take in, results by what they send, and
//! any tree of the one packing goes with any of the other.

use super::direct::owners;
use super::gateway_tree::TreePair;
use super::packing;
use super::region_tree::RegionTree;
use crate::plan::capacity::{Capacity, PortDirection};
use crate::topology::Fabric;
use std::collections::BTreeMap;

/// Exchanges with their parts of a buffer.
pub(in crate::plan) fn tree_pairs(fabric: &Fabric) -> Vec<(TreePair, f64)> {
    let capacity = Capacity::of(fabric, PortDirection::Both);
    let mut partials = parts(fabric, PortDirection::Ingress);
    let mut results = parts(fabric, PortDirection::Egress);
    let mut pairs = Vec::new();
    // What is in both is one tree, which needs fewer hops.
    for (tree, part) in &mut partials {
        let Some(other) = results.get_mut(tree) else { continue };
        let both = part.min(*other);
        (*part, *other) = (*part - both, *other - both);
        pairs.push((TreePair::one(tree.rooted_at_center(&capacity)), both));
    }
    let left =
        |parts: BTreeMap<RegionTree, f64>| parts.into_iter().filter(|(_, part)| *part > LEAST);
    let mut results = left(results);
    let mut next = results.next();
    for (up, mut part) in left(partials) {
        while let Some((down, other)) = next.as_mut().filter(|_| part > LEAST) {
            let both = part.min(*other);
            let top =
                up.center().or(down.center()).unwrap_or(up.rooted_at_center(&capacity).roots[0]);
            let pair = TreePair {
                partials: up.rooted_at(top, &capacity),
                results: Some(down.rooted_at(top, &capacity)),
            };
            pairs.push((pair, both));
            (part, *other) = (part - both, *other - both);
            if *other <= LEAST {
                next = results.next();
            }
        }
    }
    pairs.retain(|(_, part)| *part > LEAST);
    pairs
}

/// Parts of a buffer that are not worth a tree.
const LEAST: f64 = 1e-6;

/// Trees that fit ports one way, and each one's part of a buffer.
fn parts(fabric: &Fabric, direction: PortDirection) -> BTreeMap<RegionTree, f64> {
    let capacity = Capacity::of(fabric, direction);
    let owners = Some(&capacity).filter(|capacity| capacity.is_complete()).and_then(owners);
    let packing = owners.unwrap_or_else(|| packing::pack(&capacity));
    packing.trees.into_iter().map(|(tree, rate)| (tree, rate / packing.rate)).collect()
}
