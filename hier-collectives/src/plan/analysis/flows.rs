//! Payload that a plan sends between gateways, in bytes.

use crate::ids::GatewayId;
use crate::operation::Operation;
use crate::plan::tree::Plan;
use crate::shard::Part;
use std::collections::BTreeMap;

/// Payload bytes between gateways, keyed by (sender, receiver).
pub(super) type Flows = BTreeMap<(GatewayId, GatewayId), u64>;

impl Plan {
    /// Payload of `operation` on a buffer that is cut into `parts`, one for each tree.
    pub(super) fn flows(&self, operation: Operation, parts: &[Part]) -> Flows {
        let mut flows = Flows::new();
        for (tree, part) in self.trees.iter().zip(parts) {
            let bytes = part.range.end - part.range.start;
            let mut add = |from: GatewayId, to: GatewayId| {
                *flows.entry((from, to)).or_default() += bytes;
            };
            let phases = operation.along(tree);
            for (child, parent) in &tree.parents {
                if phases.up {
                    add(*child, *parent);
                }
                if phases.down {
                    add(*parent, *child);
                }
            }
            for one in &tree.roots {
                tree.roots.iter().filter(|other| *other != one).for_each(|other| add(*one, *other));
            }
        }
        flows
    }
}
