//! The part of a buffer that each gateway reduces.

use super::tree::{Plan, Tree};
use crate::ids::GatewayId;
use crate::topology::Fabric;

impl Plan {
    /// The part of a buffer of this size at whose top each gateway stands, in gateway order; a
    /// root set divides its tree's share.
    pub fn owner_fractions(&self, fabric: &Fabric, bytes: u64) -> Vec<f64> {
        let express = self.uses_express(bytes);
        let share = |tree: &Tree| {
            if express { f64::from(u8::from(tree.is_express())) } else { tree.share as f64 }
        };
        let tops = || self.trees.iter().filter(|tree| tree.direction.has_partials());
        let total: f64 = tops().map(share).sum();
        let mut owned = vec![0.0; fabric.gateways().len()];
        for tree in tops() {
            for GatewayId(id) in &tree.roots {
                owned[usize::from(*id)] += share(tree) / total / tree.roots.len() as f64;
            }
        }
        owned
    }
}
