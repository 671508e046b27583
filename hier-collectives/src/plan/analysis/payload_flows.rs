//! Payload that the parts of an operation send between gateways, in bytes.

use crate::ids::GatewayId;
use crate::parts::OperationPart;
use std::collections::BTreeMap;

/// Payload bytes between gateways, keyed by (sender, receiver).
pub type PayloadFlows = BTreeMap<(GatewayId, GatewayId), u64>;

/// Returns the payload bytes that the parts of an operation send from each gateway to each other.
pub(super) fn payload_flows(parts: &[OperationPart<'_>]) -> PayloadFlows {
    let mut flows = PayloadFlows::new();
    for part in parts {
        let (tree, phases, bytes) = (&part.tree, part.phases, part.bytes());
        let mut add = |from: GatewayId, to: GatewayId| {
            *flows.entry((from, to)).or_default() += bytes;
        };
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
