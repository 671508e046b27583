//! Small buffers: hops count, not rates.

use super::capacity::Capacity;
use super::shape::{Hanging, Shape, grow};
use super::{Algorithm, EXPRESS_BYTES, Plan, Tree, spread};
use crate::ids::GatewayId;
use crate::topology::Fabric;
use units::ByteCount;

/// A typical small buffer.
const SMALL_BYTES: ByteCount = ByteCount::new(4 << 10);

/// Adds the tree that is soonest for small buffers, if even the largest of them gains by it.
pub(super) fn add(fabric: &Fabric, plan: &mut Plan) {
    if matches!(plan.algorithm, Algorithm::Local | Algorithm::Swap) {
        return;
    }
    let seconds = |plan: &Plan, bytes: ByteCount| plan.seconds(fabric, bytes);
    let express = |hanging: &Hanging| Plan {
        trees: vec![Tree { share: 1, ..spread::on_widest(fabric, hanging) }],
        reason: String::new(),
        ..*plan
    };
    let largest = ByteCount::new(EXPRESS_BYTES);
    let bulk = seconds(plan, largest);
    let mut best: Option<(f64, Hanging)> = None;
    for hanging in candidates(&Capacity::of(fabric)) {
        let plan = express(&hanging);
        let time = seconds(&plan, SMALL_BYTES);
        let sooner = best.as_ref().is_none_or(|(least, _)| time < *least);
        if sooner && seconds(&plan, largest) < bulk {
            best = Some((time, hanging));
        }
    }
    let Some((_, hanging)) = best else { return };
    plan.reason.push_str(&reason(fabric, &hanging));
    plan.trees.push(spread::on_widest(fabric, &hanging));
}

/// Everybody swaps; each region as the hub of its shortest paths.
fn candidates(capacity: &Capacity) -> impl Iterator<Item = Hanging> {
    let everybody = capacity.is_complete().then(|| Hanging::everybody(capacity));
    let nearest = (0..capacity.regions()).map(|root| grow(capacity, root, |_, _| 0.0, 1.0));
    let mut shapes: Vec<Shape> = nearest.collect();
    shapes.sort_unstable();
    shapes.dedup();
    everybody.into_iter().chain(shapes.into_iter().map(|shape| shape.held(capacity)))
}

fn reason(fabric: &Fabric, hanging: &Hanging) -> String {
    let names: Vec<&str> =
        hanging.crown.iter().map(|region| fabric.regions()[*region].name.as_str()).collect();
    let how = match names[..] {
        [one] => format!("meet in {one}, which takes the fewest hops"),
        [one, other] if hanging.parents.len() > 2 => {
            format!("meet in {one} and {other}, which takes the fewest hops")
        }
        _ => "are swapped by all regions, which takes one hop".to_owned(),
    };
    format!("; buffers up to {} {how}", ByteCount::new(EXPRESS_BYTES))
}

impl Plan {
    /// Whether a buffer of this size takes the express tree.
    pub fn takes_express(&self, bytes: u64) -> bool {
        bytes <= EXPRESS_BYTES && self.trees.iter().any(Tree::is_express)
    }

    /// The part of the buffer at whose top each gateway stands, in gateway order; a crown
    /// divides its tree's share.
    pub fn owned(&self, fabric: &Fabric) -> Vec<f64> {
        let total: f64 = self.trees.iter().map(|tree| tree.share as f64).sum();
        let mut owned = vec![0.0; fabric.gateways().len()];
        for tree in &self.trees {
            for GatewayId(id) in &tree.crown {
                owned[usize::from(*id)] += tree.share as f64 / total / tree.crown.len() as f64;
            }
        }
        owned
    }
}
