//! The expected result of an all-reduce over any plan, computed tree by tree.

use crate::collectives::batch::{Case, weight};
use hier_collectives::buffer_part;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use hier_collectives::plan::{Plan, Tree};
use hier_collectives::reduce::dispatch_slices;
use hier_collectives::topology::Fabric;
use std::ops::Range;
use std::sync::Arc;

/// The result that every rank of an all-reduce must get. Each tree's part adds the ranks of each
/// gateway in order, then the partials of children in gateway order, then the roots in gateway
/// order; each step is encoded.
pub fn expected(fabric: &Fabric, plan: &Plan, case: &Case) -> Vec<u8> {
    let contributions = case.contributions(fabric.world_size());
    let bytes = case.elements * case.dtype.size();
    let mut result = Vec::new();
    let parts = plan.trees.iter().zip(buffer_part::divide_into_buffer_parts(plan, bytes));
    for (tree, part) in parts.filter(|(tree, _)| tree.direction.has_partials()) {
        let range = part.range.start as usize..part.range.end as usize;
        let sums = Sums { fabric, tree, case, contributions: &contributions, range };
        let roots = &sums.tree.roots;
        let (bytes, _) = match roots[..] {
            [root] => sums.partial(root),
            _ => sums.reduced(roots.iter().map(|id| sums.partial(*id)).collect()),
        };
        result.extend(bytes);
    }
    result
}

/// The reduction of some bytes of all contributions at the root of a tree of one root, whose
/// gateways reduce in the order of [`expected`].
pub fn reduced_in_tree_order(
    fabric: &Fabric,
    tree: &Tree,
    case: &Case,
    range: Range<usize>,
) -> Vec<u8> {
    let contributions = case.contributions(fabric.world_size());
    let sums = Sums { fabric, tree, case, contributions: &contributions, range };
    sums.partial(tree.roots[0]).0
}

struct Sums<'a> {
    fabric: &'a Fabric,
    tree: &'a Tree,
    case: &'a Case,
    contributions: &'a [Arc<Vec<u8>>],
    range: Range<usize>,
}

impl Sums<'_> {
    fn partial(&self, at: GatewayId) -> (Vec<u8>, f64) {
        let children = self.tree.parents.iter().filter(|(_, parent)| **parent == at);
        let mut inputs: Vec<_> =
            children.map(|(child, _)| (*child, self.partial(*child))).collect();
        inputs.push((at, self.local(at)));
        inputs.sort_by_key(|(id, _)| *id);
        self.reduced(inputs.into_iter().map(|(_, input)| input).collect())
    }

    fn local(&self, at: GatewayId) -> (Vec<u8>, f64) {
        let ranks = self.fabric.gateway(at).ranks.clone();
        let input = |rank: u32| {
            (self.contributions[rank as usize][self.range.clone()].to_vec(), weight(rank))
        };
        self.reduced(ranks.map(input).collect())
    }

    fn reduced(&self, mut inputs: Vec<(Vec<u8>, f64)>) -> (Vec<u8>, f64) {
        if inputs.len() == 1 {
            return inputs.remove(0);
        }
        let weight = inputs.iter().map(|(_, weight)| weight).sum();
        let mut out = vec![0; self.range.len()];
        let inputs: Vec<(&[u8], f64)> = inputs.iter().map(|(b, w)| (&b[..], *w)).collect();
        let (op, dtype): (ReduceOp, Dtype) = (self.case.op, self.case.dtype);
        dispatch_slices(op, dtype, &mut out, &inputs).expect("fitting slices");
        (out, weight)
    }
}
