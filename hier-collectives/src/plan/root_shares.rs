//! Shares of a plan's trees for an operation that ends, or begins, at one gateway.
//!
//! An all-reduce loads each pair of gateways both ways, and the plan's shares fit that. A reduction
//! or a broadcast loads each edge one way, so other shares fit it. Every gateway computes them from
//! the plan, and from the gateways of each region. Rates do not count: files of gateways may differ
//! in them, and all must divide a buffer alike. [`Plan::rerooted_for`] calls this.

use super::analysis::pair_shares::SMALL_PAIR_SHARE_DIVISOR;
use super::plan_data::Plan;
use super::tree::{Tree, TreeDirection};
use crate::ids::GatewayId;
use crate::operation::Operation;
use crate::topology::Fabric;
use std::collections::BTreeMap;

/// 8 rounds of adjustment: more change the predicted time by less than 1 % in random fabrics.
/// Tested by `reductions_and_broadcasts_are_planned_near_the_bound`.
const SHARE_ROUNDS: usize = 8;

/// 2^32: the sum of the shares, so that a share is exact to a quarter of a billionth of the buffer.
const SHARES_TOTAL: f64 = (1u64 << 32) as f64;

/// 0.995: new shares take the place of the plan's only where the fullest pair has half a percent
/// less to carry. So rounding alone changes no shares.
const SHARES_GAIN: f64 = 0.995;

/// The pairs of gateways that the trees of an operation load.
struct LoadedPairs {
    /// Bytes that an all-reduce of a nominal buffer sends over each pair. They stand for its rate:
    /// all pairs of a full port end together.
    planned: Vec<f64>,
    /// The pairs of each tree that divides the buffer, by place in `planned`.
    of_tree: Vec<Vec<usize>>,
}

/// Returns the shares of all trees of `plan` for an operation with a root, for which the trees are
/// `rerooted`. Only the share of the express tree is 0.
pub(super) fn root_shares(
    plan: &Plan,
    rerooted: &[Tree],
    fabric: &Fabric,
    operation: Operation,
) -> Vec<u64> {
    let dividing: Vec<usize> =
        (0..plan.trees.len()).filter(|at| plan.divides_buffer(*at)).collect();
    let total: f64 = dividing.iter().map(|at| plan.trees[*at].share as f64).sum();
    let planned: Vec<f64> =
        dividing.iter().map(|at| plan.trees[*at].share as f64 / total).collect();
    let pairs = LoadedPairs::new(plan, rerooted, fabric, operation, &dividing);
    let fitted =
        pairs.fitted_shares(&planned, &plan.trees_of_other_regions(&dividing, fabric, operation));
    let mut shares: Vec<u64> = plan.trees.iter().map(|tree| tree.share).collect();
    let Some(fitted) = fitted else { return shares };
    for (at, share) in dividing.into_iter().zip(fitted) {
        shares[at] = ((share * SHARES_TOTAL) as u64).max(1);
        if plan.trees[at].direction == TreeDirection::Partials {
            shares[at + 1] = shares[at];
        }
    }
    shares
}

impl Plan {
    /// Whether tree `at` has a part of large buffers of its own.
    fn divides_buffer(&self, at: usize) -> bool {
        let tree = &self.trees[at];
        !tree.is_express() && tree.direction != TreeDirection::Results
    }

    /// Returns 1 for each tree whose root set has a gateway outside the region of the operation's
    /// root, and 0 for others. Gateways of that region would get, or send, every region's bytes.
    fn trees_of_other_regions(
        &self,
        dividing: &[usize],
        fabric: &Fabric,
        operation: Operation,
    ) -> Vec<f64> {
        let region = |id: GatewayId| fabric.gateway(id).region;
        let home = operation.root().map(region);
        let is_outside =
            |at: &usize| self.trees[*at].roots.iter().any(|root| Some(region(*root)) != home);
        dividing.iter().map(|at| f64::from(u8::from(is_outside(at)))).collect()
    }
}

impl LoadedPairs {
    /// Finds the pairs of gateways in unlike regions that each tree loads, with the bytes of each.
    fn new(
        plan: &Plan,
        rerooted: &[Tree],
        fabric: &Fabric,
        operation: Operation,
        dividing: &[usize],
    ) -> Self {
        let flows = plan.nominal_flows(fabric);
        let (mut planned, mut places) = (Vec::new(), BTreeMap::new());
        let mut of_tree = Vec::new();
        for at in dividing {
            let has_results_apart = plan.trees[*at].direction == TreeDirection::Partials;
            let results = operation.has_down_phase();
            let tree = &rerooted[at + usize::from(results && has_results_apart)];
            let mut pairs = Vec::new();
            for (child, parent) in &tree.parents {
                let pair = if results { (*parent, *child) } else { (*child, *parent) };
                if fabric.gateway(pair.0).region == fabric.gateway(pair.1).region {
                    continue;
                }
                let place = *places.entry(pair).or_insert_with(|| {
                    // The root may have changed the direction of an edge. A pair with little flow
                    // then counts by the way back, as its share of the ports does.
                    let flow = |one, other| flows.get(&(one, other)).copied().unwrap_or(0);
                    let back = flow(pair.1, pair.0) / SMALL_PAIR_SHARE_DIVISOR;
                    planned.push(flow(pair.0, pair.1).max(back).max(1) as f64);
                    planned.len() - 1
                });
                pairs.push(place);
            }
            of_tree.push(pairs);
        }
        Self { planned, of_tree }
    }

    /// Returns shares with which the fullest pair ends sooner than with the `planned` ones; `None`
    /// where it ends less than 0.5 % sooner. The search begins at the planned shares, and a second
    /// time at those multiplied by `others`, which is 0 for trees to be left out.
    fn fitted_shares(&self, planned: &[f64], others: &[f64]) -> Option<Vec<f64>> {
        let apart = planned.iter().zip(others).map(|(share, other)| share * other).collect();
        let starts = [planned.to_vec(), apart].into_iter();
        let starts = starts.filter(|shares| shares.iter().sum::<f64>() > 0.0);
        let (mut best, mut least) = (None, self.fullest_load(planned) * SHARES_GAIN);
        for mut shares in starts {
            for _ in 0..SHARE_ROUNDS {
                normalize_shares(&mut shares);
                let load = self.fullest_load(&shares);
                if load < least {
                    (best, least) = (Some(shares.clone()), load);
                }
                self.adjust_to_narrowest_pair(&mut shares);
            }
        }
        best
    }

    /// Returns the load of each pair, as a multiple of its load in an all-reduce.
    fn pair_loads(&self, shares: &[f64]) -> Vec<f64> {
        let mut loads = vec![0.0; self.planned.len()];
        for (pairs, share) in self.of_tree.iter().zip(shares) {
            pairs.iter().for_each(|pair| loads[*pair] += share / self.planned[*pair]);
        }
        loads
    }

    /// Returns the load of the fullest pair, as a multiple of its load in an all-reduce.
    fn fullest_load(&self, shares: &[f64]) -> f64 {
        self.pair_loads(shares).into_iter().fold(0.0, f64::max)
    }

    /// Multiplies each share by the inverse load of the fullest pair of its tree.
    fn adjust_to_narrowest_pair(&self, shares: &mut [f64]) {
        let loads = self.pair_loads(shares);
        for (share, pairs) in shares.iter_mut().zip(&self.of_tree) {
            let fullest = pairs.iter().map(|pair| loads[*pair]).fold(0.0, f64::max);
            if *share > 0.0 && fullest > 0.0 {
                *share /= fullest;
            }
        }
    }
}

/// Divides shares by their sum.
fn normalize_shares(shares: &mut [f64]) {
    let sum: f64 = shares.iter().sum();
    shares.iter_mut().for_each(|share| *share /= sum);
}
