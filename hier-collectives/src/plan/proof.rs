//! The proof that a plan is one.

use super::sizing::trees_max;
use super::tree::{Plan, Tree, TreeDirection};
use super::trees::express::EXPRESS_MAX;
use crate::ids::GatewayId;
use crate::topology::Fabric;
use units::ByteCount;

/// A plan that is none: some contribution would not reach every result exactly once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tree {tree}: {text}")]
pub struct PlanFault {
    /// The tree.
    pub tree: usize,
    /// What is wrong with it.
    pub text: String,
}

impl Plan {
    /// Proves that in every tree each gateway's contribution reaches every gateway's result
    /// exactly once, for a group of `gateways` gateways.
    ///
    /// That is also the proof that no wait closes a cycle: a gateway waits for its children's
    /// partials and then for its parent's result, segments of all trees start in one order
    /// everywhere, and what a tree needs of memory is its own.
    ///
    /// # Errors
    /// [`PlanFault`] naming the tree and the gateway.
    pub fn prove(&self, gateways: u16) -> Result<(), PlanFault> {
        let fault = |tree, text: String| Err(PlanFault { tree, text });
        if self.trees.is_empty() || self.segment.get() < 64 {
            return fault(0, "no tree, or segments below 64 bytes".to_owned());
        }
        if self.trees.len() > usize::from(u16::MAX) || self.segment.get() > 64 << 20 {
            return fault(0, "too many trees, or segments above 64 MiB".to_owned());
        }
        if self.trees.iter().filter(|tree| tree.is_express()).count() > 1 {
            return fault(0, "more than one express tree".to_owned());
        }
        if self.trees.iter().all(Tree::is_express) {
            return fault(0, "no tree has a share".to_owned());
        }
        let most = self.express_limit().map_or(0, |_| EXPRESS_MAX.get());
        if self.express_bytes.get() > most {
            let text = format!("buffers up to {} for an express tree", self.express_bytes);
            return fault(0, format!("{text}, {} at most", ByteCount::new(most)));
        }
        let mut before = None;
        for (index, tree) in self.trees.iter().enumerate() {
            if let Err(text) = tree.prove(gateways).and_then(|()| tree.fits_behind(before)) {
                return fault(index, text);
            }
            before = Some(tree);
        }
        match before.map(|last| last.direction) {
            Some(TreeDirection::Partials) => {
                fault(self.trees.len() - 1, "partials, and no results behind them".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Whether a plan made elsewhere asks for about as much memory and time as `own`, made here
    /// for the same fabric: rates may differ between fabric files, and change. What is wrong, if
    /// not.
    pub(crate) fn is_near(&self, own: &Plan, fabric: &Fabric) -> Result<(), String> {
        let (theirs, ours) = (self.segment.get(), own.segment.get());
        if theirs < ours / SEGMENTS_APART || theirs > ours.saturating_mul(SEGMENTS_APART) {
            return Err(format!(
                "segments of {}, where ours would have {}; the rates in the fabric files are too \
                 far apart",
                self.segment, own.segment
            ));
        }
        let (trees, most) = (self.trees.len(), own.trees.len().max(trees_max(fabric)));
        if trees > most {
            return Err(format!("{trees} trees, {most} at most are planned for this fabric"));
        }
        Ok(())
    }
}

/// How many times longer or shorter segments may be than our own plan's.
const SEGMENTS_APART: u64 = 16;

impl Tree {
    /// Results have the share and the root of the partials before them, and partials are followed
    /// by their results.
    fn fits_behind(&self, before: Option<&Self>) -> Result<(), String> {
        let partials = before.filter(|before| before.direction == TreeDirection::Partials);
        let split = self.direction != TreeDirection::Both;
        if split && (self.roots.len() != 1 || self.is_express()) {
            return Err("partials or results alone, and not one root or no share".to_owned());
        }
        match (partials, self.direction) {
            (Some(partials), TreeDirection::Results)
                if (partials.share, &partials.roots) == (self.share, &self.roots) =>
            {
                Ok(())
            }
            (None, TreeDirection::Both | TreeDirection::Partials) => Ok(()),
            _ => Err("partials and results that do not belong together".to_owned()),
        }
    }

    /// Follows every contribution up to the root set. Each has one way up (one parent) and the
    /// root set one exchange, so reaching the root set is reaching every result exactly once.
    fn prove(&self, gateways: u16) -> Result<(), String> {
        if self.roots.is_empty() {
            return Err("an empty root set".to_owned());
        }
        if !self.roots.windows(2).all(|pair| pair[0] < pair[1]) {
            return Err("the root set is not in ascending order".to_owned());
        }
        let strange = |id: &&GatewayId| id.0 >= gateways;
        if let Some(id) = self.roots.iter().chain(self.parents.keys()).find(strange) {
            return Err(format!("gateway {id} is not in the group"));
        }
        for start in (0..gateways).map(GatewayId) {
            let (mut at, mut hops) = (start, 0);
            while let Some(parent) = self.parents.get(&at) {
                if self.roots.contains(&at) {
                    return Err(format!("gateway {at} is in the root set and has a parent"));
                }
                (at, hops) = (*parent, hops + 1);
                if hops > gateways {
                    return Err(format!("gateway {start} is on a cycle"));
                }
            }
            if !self.roots.contains(&at) {
                return Err(format!("gateway {start} does not reach the root set"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Algorithm;
    use proptest::prelude::*;

    fn tree(roots: &[u16], parents: &[(u16, u16)]) -> Tree {
        let parents = parents.iter().map(|(a, b)| (GatewayId(*a), GatewayId(*b))).collect();
        let roots = roots.iter().copied().map(GatewayId).collect();
        Tree { share: 1, direction: TreeDirection::Both, roots, parents }
    }

    fn plan_of(tree: Tree) -> Plan {
        Plan {
            algorithm: Algorithm::Swap,
            reason: String::new(),
            segment: ByteCount::new(1 << 20),
            express_bytes: ByteCount::default(),
            trees: vec![tree],
        }
    }

    #[test]
    fn a_fault_in_a_tree_is_found() {
        assert_eq!(plan_of(tree(&[0, 1], &[])).prove(2), Ok(()));
        assert_eq!(plan_of(tree(&[0], &[(1, 0), (2, 1)])).prove(3), Ok(()));
        for bad in [
            tree(&[0], &[]),
            tree(&[0], &[(1, 2), (2, 1)]),
            tree(&[0, 1], &[(1, 0)]),
            tree(&[1, 0], &[]),
            tree(&[0, 2], &[(1, 0)]),
            tree(&[], &[]),
        ] {
            assert!(plan_of(bad.clone()).prove(2).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn results_stand_behind_their_partials() {
        let of = |carries, root, parents| Tree { carries, ..tree(&[root], parents) };
        let up = || of(TreeDirection::Partials, 0, &[(1, 0), (2, 0)]);
        let down = || of(TreeDirection::Results, 0, &[(1, 0), (2, 1)]);
        let both = || tree(&[0, 1, 2], &[]);
        let good = |trees| Plan { trees, ..plan_of(both()) }.prove(3).is_ok();
        assert!(good(vec![up(), down()]) && good(vec![both(), up(), down(), both()]));
        assert!(!good(vec![up()]) && !good(vec![down()]) && !good(vec![up(), both(), down()]));
        assert!(!good(vec![down(), up()]) && !good(vec![up(), down(), down()]));
        assert!(
            !good(vec![up(), of(TreeDirection::Results, 1, &[(0, 1), (2, 1)])]),
            "another root"
        );
        assert!(!good(vec![up(), Tree { share: 2, ..down() }]), "another share");
        assert!(!good(vec![up(), up(), down()]));
    }

    #[test]
    fn segments_of_no_use_are_refused() {
        for (bytes, good) in
            [(0, false), (63, false), (64, true), (64 << 20, true), ((64 << 20) + 1, false)]
        {
            let plan = Plan { segment: ByteCount::new(bytes), ..plan_of(tree(&[0, 1], &[])) };
            assert_eq!(plan.prove(2).is_ok(), good, "{bytes}");
        }
    }

    #[test]
    fn one_tree_at_most_is_for_small_buffers_and_never_alone() {
        let express = Tree { share: 0, ..tree(&[0, 1], &[]) };
        let mut plan = plan_of(tree(&[0, 1], &[]));
        plan.trees.push(express.clone());
        assert_eq!(plan.prove(2), Ok(()));
        for (bytes, good) in [(1, true), (EXPRESS_MAX.get(), true), (EXPRESS_MAX.get() + 1, false)]
        {
            plan.express_bytes = ByteCount::new(bytes);
            assert_eq!(plan.prove(2).is_ok(), good, "{bytes}");
        }
        plan.express_bytes = ByteCount::new(1);
        plan.trees.pop();
        assert!(plan.prove(2).is_err(), "no tree takes them");
        plan.trees.push(express.clone());
        assert_eq!(plan.prove(2), Ok(()));
        plan.trees.push(express.clone());
        assert!(plan.prove(2).is_err());
        assert!(plan_of(express).prove(2).is_err());
    }

    proptest! {
        /// An independent check by flooding: up along the parents, across the root set.
        #[test]
        fn the_proof_agrees_with_counting_paths(
            parents in proptest::collection::vec(0u16..6, 6),
            top in 0u16..64,
        ) {
            let roots: Vec<u16> = (0..6).filter(|id| top >> id & 1 == 1).collect();
            let edges: Vec<(u16, u16)> = (0..6u16)
                .filter(|id| !roots.contains(id))
                .map(|id| (id, parents[usize::from(id)]))
                .collect();
            let reaches = |start: u16| {
                let mut at = start;
                for _ in 0..7 {
                    match edges.iter().find(|(child, _)| *child == at) {
                        Some((_, parent)) => at = *parent,
                        None => return roots.contains(&at),
                    }
                }
                false
            };
            let all = !roots.is_empty() && (0..6).all(reaches);
            prop_assert_eq!(plan_of(tree(&roots, &edges)).prove(6).is_ok(), all);
        }
    }
}
