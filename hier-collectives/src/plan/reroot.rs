//! Operations as the phases of a tree, and trees held elsewhere for them.

use super::tree::{Plan, Tree};
use crate::ids::GatewayId;
use crate::operation::{Operation, Phases};
use std::collections::BTreeMap;

impl Operation {
    /// Which ways it takes along a tree.
    pub fn along(self, tree: &Tree) -> Phases {
        Phases {
            up: self.goes_up() && tree.direction.has_partials(),
            down: self.comes_down() && tree.direction.has_results(),
        }
    }
}

impl Plan {
    /// The plan with its trees held as `operation` needs them. Where they are held does not
    /// change how much an edge carries, only which way, so the shares stay right.
    pub fn rooted_for(&self, operation: Operation) -> Self {
        match operation {
            Operation::AllReduce | Operation::Barrier => self.clone(),
            Operation::Reduce { to: root } | Operation::Broadcast { from: root } => {
                let trees = self.trees.iter().map(|tree| tree.rooted_at(root)).collect();
                Self { trees, ..self.clone() }
            }
        }
    }
}

impl Tree {
    /// The same tree held at `root`: the edges on its way up turn round. Of a root set the member
    /// nearest to `root` becomes the others' parent.
    pub fn rooted_at(&self, root: GatewayId) -> Self {
        let mut parents = self.parents.clone();
        let (mut at, mut turned) = (root, BTreeMap::new());
        while let Some(above) = parents.remove(&at) {
            turned.insert(above, at);
            at = above;
        }
        parents.extend(turned);
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
        fn a_tree_held_elsewhere_has_the_same_edges(
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
            let turned = tree.rooted_at(GatewayId(root));
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
