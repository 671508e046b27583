//! The fraction of a buffer that each gateway owns, for reports and pictures of a plan.

use crate::ids::GatewayId;
use crate::plan::plan_data::Plan;
use crate::plan::tree::Tree;
use crate::topology::Fabric;

impl Plan {
    /// Returns the fraction of a buffer of `bytes` bytes that each gateway owns, in gateway order.
    ///
    /// A gateway owns the share of each tree of which it is the root. A root set divides its tree's
    /// share evenly.
    pub fn ownership_fractions(&self, fabric: &Fabric, bytes: u64) -> Vec<f64> {
        let express = self.uses_express(bytes);
        let share = |tree: &Tree| {
            if express { f64::from(u8::from(tree.is_express())) } else { tree.share as f64 }
        };
        let reducing = || self.trees.iter().filter(|tree| tree.direction.has_partials());
        let total: f64 = reducing().map(share).sum();
        let mut owned = vec![0.0; fabric.gateways().len()];
        for tree in reducing() {
            for GatewayId(id) in &tree.roots {
                owned[usize::from(*id)] += share(tree) / total / tree.roots.len() as f64;
            }
        }
        owned
    }
}
