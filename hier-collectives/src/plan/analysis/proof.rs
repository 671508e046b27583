//! The proof that a plan is valid, and the check that a peer's plan is near our own.

use crate::ids::{GatewayId, RegionId};
use crate::plan::plan_data::{BlockTree, Plan};
use crate::plan::plan_limits::{BLOCK_TREES_OF_REGION_MAX, plan_trees_limit};
use crate::plan::tree::{Tree, TreeDirection};
use crate::plan::trees::express::EXPRESS_MAX;
use crate::topology::Fabric;
use units::ByteCount;

/// 64 bytes, one cache line: a plan with shorter segments is refused as invalid.
/// Tested by `plans_with_segments_out_of_range_are_refused`.
const PLAN_SEGMENT_BYTES_MIN: u64 = 64;

/// 64 MiB: a plan with longer segments is refused as invalid. The limit is chosen: plans of this
/// version have segments up to 4 MiB, and later versions may have longer ones.
const PEER_SEGMENT_BYTES_MAX: u64 = 64 << 20;

/// 16: a peer's plan is refused if its segments are over 16 times shorter or longer than those of
/// the own plan. The factor is chosen, since rates in the fabric files of two regions may differ.
/// Tested by `a_plan_of_absurd_segments_or_trees_is_refused`.
const SEGMENT_RATIO_MAX: u64 = 16;

/// Why a plan is invalid: some contribution would not reach every result exactly once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tree {tree}: {text}")]
pub struct PlanFault {
    /// Index of the tree.
    pub tree: usize,
    /// The fault, in words.
    pub text: String,
}

impl Plan {
    /// Proves that in every tree each gateway's contribution reaches every gateway's result exactly
    /// once, for a group of `gateways` gateways. Also checks the numbers of trees, the order of
    /// separate trees, the segment size and the express limit.
    ///
    /// The same proof excludes deadlocks. A gateway waits for its children's partials and then for
    /// its parent's result. Segments of all trees start in one order everywhere, and each tree has
    /// memory of its own.
    ///
    /// # Errors
    /// [`PlanFault`] that names the tree and the gateway.
    pub fn prove(&self, gateways: u16) -> Result<(), PlanFault> {
        let fault = |tree, text: String| Err(PlanFault { tree, text });
        if self.trees.is_empty() || self.segment.get() < PLAN_SEGMENT_BYTES_MIN {
            let text = format!("no tree, or segments below {PLAN_SEGMENT_BYTES_MIN} bytes");
            return fault(0, text);
        }
        if self.trees.len() > usize::from(u16::MAX) || self.segment.get() > PEER_SEGMENT_BYTES_MAX {
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
            let (given, most) = (self.express_bytes, ByteCount::new(most));
            return fault(0, format!("an express tree for buffers up to {given}, {most} at most"));
        }
        let mut before = None;
        for (index, tree) in self.trees.iter().enumerate() {
            if let Err(text) =
                tree.prove_tree(gateways).and_then(|()| tree.prove_order_after(before))
            {
                return fault(index, text);
            }
            before = Some(tree);
        }
        match before.map(|last| last.direction) {
            Some(TreeDirection::Partials) => fault(
                self.trees.len() - 1,
                "a tree for partials without a tree for results behind it".to_owned(),
            ),
            _ => Ok(()),
        }
    }

    /// Checks that a peer's plan asks for about as much memory and time as `own`, the plan that
    /// this gateway made. Segments may differ by a factor of 16, and trees be no more than the
    /// fabric can need.
    ///
    /// Rates may differ between fabric files, and change. The error says what is too far apart.
    pub(crate) fn prove_near(&self, own: &Plan, fabric: &Fabric) -> Result<(), String> {
        let (theirs, ours) = (self.segment.get(), own.segment.get());
        if theirs < ours / SEGMENT_RATIO_MAX || theirs > ours.saturating_mul(SEGMENT_RATIO_MAX) {
            return Err(format!(
                "segments of {}, where our own plan has {}: bring the rates in the fabric files \
                 closer together",
                self.segment, own.segment
            ));
        }
        let (trees, most) = (self.trees.len(), own.trees.len().max(plan_trees_limit(fabric)));
        if trees > most {
            return Err(format!("{trees} trees, more than the {most} that this fabric can need"));
        }
        self.prove_block_trees(fabric)
    }

    /// Proves that the trees of blocks, if there are any, bring the blocks of each region to every
    /// other one over links, and are few.
    fn prove_block_trees(&self, fabric: &Fabric) -> Result<(), String> {
        if self.block_trees.is_empty() {
            return Ok(());
        }
        for (number, region) in fabric.regions().iter().enumerate() {
            let root = RegionId(u16::try_from(number).unwrap_or(u16::MAX));
            let of_root = || self.block_trees.iter().filter(|tree| tree.root == root);
            let count = of_root().count();
            if count > BLOCK_TREES_OF_REGION_MAX {
                return Err(format!("{count} trees for the blocks of region {root}"));
            }
            // The shares are added up later.
            let all = of_root().try_fold(0u32, |all, tree| all.checked_add(tree.share));
            let has_blocks = !region.ranks.is_empty();
            if all.is_none_or(|all| has_blocks && all == 0) {
                return Err(format!("no shares for the blocks of region {root}"));
            }
        }
        if !self.block_trees.is_sorted_by_key(|tree| tree.root) {
            return Err("trees of blocks out of order".to_owned());
        }
        self.block_trees.iter().try_for_each(|tree| tree.prove_block_tree(fabric))
    }
}

impl BlockTree {
    /// Proves that the tree leads over links from its root to each other region once.
    fn prove_block_tree(&self, fabric: &Fabric) -> Result<(), String> {
        let regions = fabric.regions().len();
        let is_known = |region: &RegionId| usize::from(region.0) < regions;
        if !is_known(&self.root) || !self.parents.keys().all(is_known) {
            return Err("a tree of blocks has a region that the fabric has not".to_owned());
        }
        for start in (0..fabric.regions().len()).map(|at| RegionId(at as u16)) {
            let (mut at, mut hops) = (start, 0);
            while at != self.root {
                let Some(parent) = self.parents.get(&at).filter(|parent| is_known(parent)) else {
                    return Err(format!("region {start} gets no blocks of region {}", self.root));
                };
                if fabric.link(*parent, at).is_none() {
                    return Err(format!("no link joins regions {parent} and {at}"));
                }
                (at, hops) = (*parent, hops + 1);
                if hops > regions {
                    return Err(format!("region {start} is on a cycle"));
                }
            }
        }
        if self.parents.contains_key(&self.root) {
            return Err(format!("region {} gets its own blocks", self.root));
        }
        Ok(())
    }
}

impl Tree {
    /// Checks that this tree may follow the tree `before` in a plan.
    ///
    /// A tree for results follows directly the tree for partials with its share and its root, which
    /// no other tree may follow. Trees for partials or results alone have one root and a share.
    fn prove_order_after(&self, before: Option<&Self>) -> Result<(), String> {
        let partials = before.filter(|before| before.direction == TreeDirection::Partials);
        let split = self.direction != TreeDirection::Both;
        if split && (self.roots.len() != 1 || self.is_express()) {
            return Err(
                "a tree for partials or results alone needs one root and a share".to_owned()
            );
        }
        match (partials, self.direction) {
            (Some(partials), TreeDirection::Results)
                if (partials.share, &partials.roots) == (self.share, &self.roots) =>
            {
                Ok(())
            }
            (None, TreeDirection::Both | TreeDirection::Partials) => Ok(()),
            _ => {
                Err("a tree for results does not match the tree for partials before it".to_owned())
            }
        }
    }

    /// Proves that every contribution reaches the root set, by following the parents of each
    /// gateway.
    ///
    /// A gateway has one parent, and the root set exchanges once. So a contribution that reaches
    /// the root set reaches every result exactly once.
    fn prove_tree(&self, gateways: u16) -> Result<(), String> {
        if self.roots.is_empty() {
            return Err("an empty root set".to_owned());
        }
        if !self.roots.windows(2).all(|pair| pair[0] < pair[1]) {
            return Err("the root set is not in ascending order".to_owned());
        }
        let is_unknown = |id: &&GatewayId| id.0 >= gateways;
        if let Some(id) = self.roots.iter().chain(self.parents.keys()).find(is_unknown) {
            return Err(format!("gateway {id} is not in the job"));
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
    use crate::plan::{PlanAlgorithm, make_plan};
    use crate::testing::{FabricBuilder, lossless_link, mbit, symmetric_port};
    use proptest::prelude::*;

    fn tree(roots: &[u16], parents: &[(u16, u16)]) -> Tree {
        let parents = parents.iter().map(|(a, b)| (GatewayId(*a), GatewayId(*b))).collect();
        let roots = roots.iter().copied().map(GatewayId).collect();
        Tree { share: 1, direction: TreeDirection::Both, roots, parents }
    }

    fn plan_of(tree: Tree) -> Plan {
        Plan {
            algorithm: PlanAlgorithm::Swap,
            reason: String::new(),
            segment: ByteCount::new(1 << 20),
            express_bytes: ByteCount::default(),
            block_trees: vec![],
            block_bytes_min: ByteCount::default(),
            trees: vec![tree],
        }
    }

    #[test]
    fn an_invalid_tree_is_refused() {
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
    fn results_follow_their_partials() {
        let of = |direction, root, parents| Tree { direction, ..tree(&[root], parents) };
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
    fn plans_with_segments_out_of_range_are_refused() {
        for (bytes, good) in
            [(0, false), (63, false), (64, true), (64 << 20, true), ((64 << 20) + 1, false)]
        {
            let plan = Plan { segment: ByteCount::new(bytes), ..plan_of(tree(&[0, 1], &[])) };
            assert_eq!(plan.prove(2).is_ok(), good, "{bytes}");
        }
    }

    #[test]
    fn a_plan_has_at_most_one_express_tree() {
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

    /// Trees of blocks of other regions than the fabric has, over no link, on a cycle, out of order, too
    /// many or without a share are refused.
    #[test]
    fn trees_of_blocks_that_miss_a_region_are_refused() {
        let builder = FabricBuilder::default();
        let regions = ["a", "b", "c"].iter().fold(builder, |builder, name| {
            builder.region(name, [(1, Some(symmetric_port(mbit(100))))])
        });
        let link = || lossless_link(mbit(100), 60);
        let fabric = regions.link("a", "b", link()).link("b", "c", link()).build();
        let tree = |root: u16, share, parents: &[(u16, u16)]| {
            let parents = parents.iter().map(|(to, from)| (RegionId(*to), RegionId(*from)));
            BlockTree { root: RegionId(root), share, parents: parents.collect() }
        };
        let down = || tree(0, 1, &[(1, 0), (2, 1)]);
        let good = || vec![down(), tree(1, 2, &[(0, 1), (2, 1)]), tree(2, 1, &[(1, 2), (0, 1)])];
        let own = make_plan(&fabric).expect("a plan");
        let judge = |block_trees| Plan { block_trees, ..own.clone() }.prove_near(&own, &fabric);
        assert_eq!(judge(vec![]), Ok(()));
        assert_eq!(judge(good()), Ok(()));
        let with = |wrong: BlockTree| {
            let mut trees = good();
            trees[0] = wrong;
            judge(trees).expect_err("refused")
        };
        let wrong = [
            (tree(0, 1, &[(1, 0)]), "region 2 gets no blocks of region 0"),
            (tree(0, 1, &[(1, 0), (2, 0)]), "no link joins regions 0 and 2"),
            (tree(0, 1, &[(1, 2), (2, 1)]), "region 1 is on a cycle"),
            (tree(0, 1, &[(0, 1), (1, 0), (2, 1)]), "region 0 gets its own blocks"),
            (tree(0, 1, &[(1, 0), (2, 1), (3, 2)]), "a region that the fabric has not"),
            (tree(0, 1, &[(1, 7), (2, 1)]), "region 1 gets no blocks of region 0"),
            (tree(0, 0, &[(1, 0), (2, 1)]), "no shares for the blocks of region 0"),
            (tree(1, 1, &[(0, 1), (2, 1)]), "no shares for the blocks of region 0"),
        ];
        for (tree, text) in wrong {
            let refused = with(tree);
            assert!(refused.contains(text), "{refused}");
        }
        let many = |count: usize| judge([vec![down(); count], good()[1..].to_vec()].concat());
        assert_eq!(many(BLOCK_TREES_OF_REGION_MAX), Ok(()));
        assert!(many(BLOCK_TREES_OF_REGION_MAX + 1).is_err());
        assert!(judge(vec![tree(0, u32::MAX, &[(1, 0), (2, 1)]), down()]).is_err(), "a sum");
        assert!(judge(good().into_iter().rev().collect()).is_err(), "out of order");
        assert!(judge(vec![tree(9, 1, &[(0, 1), (1, 0), (2, 1)])]).is_err(), "no such root");
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
