//! Payload that a plan sends between gateways, in bytes.

use crate::buffer_part::BufferPart;
use crate::ids::GatewayId;
use crate::operation::Operation;
use crate::plan::plan_data::Plan;
use std::collections::BTreeMap;

/// Payload bytes between gateways, keyed by (sender, receiver).
pub(super) type PayloadFlows = BTreeMap<(GatewayId, GatewayId), u64>;

impl Plan {
    /// Returns the payload bytes that `operation` sends between gateways for a buffer cut into
    /// `parts`, one for each tree.
    pub(super) fn payload_flows(&self, operation: Operation, parts: &[BufferPart]) -> PayloadFlows {
        let mut flows = PayloadFlows::new();
        for (tree, part) in self.trees.iter().zip(parts) {
            let bytes = part.range.end - part.range.start;
            let mut add = |from: GatewayId, to: GatewayId| {
                *flows.entry((from, to)).or_default() += bytes;
            };
            let phases = operation.phases_along(tree);
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
