//! Trees rerooted for an operation: a reduction ends, and a broadcast begins, at one gateway.

use super::plan_data::Plan;
use super::root_shares::root_shares;
use super::tree::Tree;
use crate::ids::GatewayId;
use crate::operation::Operation;
use crate::topology::Fabric;
use std::borrow::Cow;
use std::collections::BTreeMap;

impl Plan {
    /// Returns the plan with its trees rooted as `operation` needs them: at its root, if it has
    /// one. Their shares then fit the loads of that operation.
    pub fn rerooted_for(&self, fabric: &Fabric, operation: Operation) -> Cow<'_, Self> {
        let Some(root) = operation.root() else { return Cow::Borrowed(self) };
        Cow::Owned(self.rerooted_at(root, &self.rerooted_shares(fabric, operation)))
    }

    /// Returns the shares of the trees for `operation`: those of the plan if it has no root.
    pub fn rerooted_shares(&self, fabric: &Fabric, operation: Operation) -> Vec<u64> {
        match operation.root() {
            None => self.trees.iter().map(|tree| tree.share).collect(),
            Some(root) => {
                let trees: Vec<Tree> =
                    self.trees.iter().map(|tree| tree.rerooted_at(root)).collect();
                root_shares(self, &trees, fabric, operation)
            }
        }
    }

    /// Returns the plan with its trees rooted at `root`, with these shares.
    pub fn rerooted_at(&self, root: GatewayId, shares: &[u64]) -> Self {
        let rerooted =
            |(tree, share): (&Tree, &u64)| Tree { share: *share, ..tree.rerooted_at(root) };
        let trees = self.trees.iter().zip(shares).map(rerooted).collect();
        let (reason, block_trees) = (self.reason.clone(), self.block_trees.clone());
        Self { reason, trees, block_trees, ..*self }
    }
}

impl Tree {
    /// Returns the tree with gateway `root` as its only root.
    ///
    /// The edges on the way up from `root` are reversed. A tree may have several roots: the old root
    /// nearest to `root` becomes the parent of the other old roots.
    pub fn rerooted_at(&self, root: GatewayId) -> Self {
        let mut parents = self.parents.clone();
        let (mut at, mut reversed) = (root, BTreeMap::new());
        while let Some(parent) = parents.remove(&at) {
            reversed.insert(parent, at);
            at = parent;
        }
        parents.extend(reversed);
        parents.extend(self.roots.iter().filter(|id| **id != at).map(|id| (*id, at)));
        Self { roots: vec![root], parents, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::TreeDirection;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_rerooted_tree_has_the_same_edges(
            above in proptest::collection::vec(0u16..8, 7),
            pair: bool,
            root in 0u16..8,
        ) {
            let first = if pair { 2 } else { 1 };
            let roots: Vec<_> = (0..first).map(GatewayId).collect();
            let parents: BTreeMap<_, _> = (first..8)
                .map(|id| (GatewayId(id), GatewayId(above[usize::from(id) - 1] % id)))
                .collect();
            let tree =
                Tree { share: 1, direction: TreeDirection::Both, roots: roots.clone(), parents };
            let turned = tree.rerooted_at(GatewayId(root));
            let edges = |tree: &Tree| {
                let mut edges: Vec<_> =
                    tree.parents.iter().map(|(a, b)| (*a.min(b), *a.max(b))).collect();
                if let [a, b] = tree.roots[..] {
                    edges.push((a, b));
                }
                edges.sort_unstable();
                edges
            };
            prop_assert_eq!(edges(&turned), edges(&tree));
            prop_assert_eq!(turned.roots, [GatewayId(root)]);
        }
    }
}
