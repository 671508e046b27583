//! The mix of operations under way, and what it sends over each pair of gateways.
//!
//! Operations load pairs of gateways differently: an all-reduce by its plan's shares, an all-gather
//! evenly. While one of them is under way, the pairs share ports and links in proportion to what it
//! sends. While several are, they do so in proportion to the sum.

use super::payload_flows::{PayloadFlows, payload_flows};
use crate::operation::Operation;
use crate::plan::plan_data::Plan;
use crate::plan::trees::owner_trees::OwnerTrees;
use crate::topology::Fabric;
use std::sync::Arc;

/// 4 halvings: operations with less than a sixteenth of the bytes of those with most do not count.
/// The number is chosen.
const HALVINGS_MAX: u32 = 4;

/// 1 TiB: the length of an imaginary buffer; its flows give each pair of gateways its share of ports
/// and links. No part of so large a buffer is rounded to nothing.
const NOMINAL_BUFFER_BYTES: u64 = 1 << 40;

/// Operations that are under way together, and how their bytes compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficMix {
    /// Each operation, and how often the bytes of the largest one are halved to give its bytes.
    operations: Vec<(Operation, u32)>,
}

impl Default for TrafficMix {
    /// An all-reduce alone.
    fn default() -> Self {
        Self { operations: vec![(Operation::AllReduce, 0)] }
    }
}

impl TrafficMix {
    /// Makes the mix of these operations, each with the bytes of its buffer; `None` where none of them
    /// has data for all to share the links by, as sends have not.
    pub fn of_operations(under_way: impl Iterator<Item = (Operation, u64)>) -> Option<Self> {
        let mut sums: Vec<(Operation, u64)> = Vec::new();
        for (operation, bytes) in under_way {
            if !operation.has_data() || matches!(operation, Operation::Send { .. }) {
                continue;
            }
            match sums.iter_mut().find(|(known, _)| *known == operation) {
                Some((_, sum)) => *sum = sum.saturating_add(bytes),
                None => sums.push((operation, bytes)),
            }
        }
        let most = sums.iter().map(|(_, bytes)| *bytes).max().filter(|most| *most > 0)?;
        let halvings = |bytes: u64| (most / bytes.max(1)).ilog2();
        let sums = sums.into_iter().map(|(operation, bytes)| (operation, halvings(bytes)));
        let mut operations: Vec<_> = sums.filter(|(_, times)| *times <= HALVINGS_MAX).collect();
        operations.sort_unstable();
        Some(Self { operations })
    }
}

impl Plan {
    /// Returns the bytes that an operation on a nominal buffer of 1 TiB sends between gateways. The
    /// plan is rerooted for the operation, and `owner_trees` are those of the plan.
    pub fn operation_flows(
        &self,
        fabric: &Fabric,
        owner_trees: &OwnerTrees,
        operation: Operation,
    ) -> PayloadFlows {
        payload_flows(&self.forecast_parts(fabric, owner_trees, operation, NOMINAL_BUFFER_BYTES))
    }

    /// Returns the bytes that an all-reduce of a nominal buffer of 1 TiB sends between gateways.
    pub(in crate::plan) fn nominal_flows(&self, fabric: &Fabric) -> PayloadFlows {
        self.operation_flows(fabric, &OwnerTrees::default(), Operation::AllReduce)
    }
}

impl TrafficMix {
    /// Returns the bytes that the mix sends between gateways, the largest of its operations on a nominal
    /// buffer of 1 TiB; `flows_of` returns those of one operation on it.
    pub fn flows(&self, flows_of: impl Fn(Operation) -> Arc<PayloadFlows>) -> PayloadFlows {
        let mut flows = PayloadFlows::new();
        for (operation, halvings) in &self.operations {
            for (pair, bytes) in &*flows_of(*operation) {
                *flows.entry(*pair).or_insert(0) += bytes >> halvings;
            }
        }
        flows
    }
}

/// Returns the bytes that operations on buffers of so many bytes send between gateways; `flows_of`
/// returns those of one operation on a nominal buffer of 1 TiB.
pub fn flows_of_operations(
    operations: impl Iterator<Item = (Operation, u64)>,
    flows_of: impl Fn(Operation) -> Arc<PayloadFlows>,
) -> PayloadFlows {
    let mut flows = PayloadFlows::new();
    for (operation, bytes) in operations {
        for (pair, nominal) in &*flows_of(operation) {
            let part = u128::from(*nominal) * u128::from(bytes) / u128::from(NOMINAL_BUFFER_BYTES);
            *flows.entry(*pair).or_insert(0) += u64::try_from(part).unwrap_or(u64::MAX);
        }
    }
    flows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::GatewayId;

    #[test]
    fn operations_count_by_their_bytes() {
        let to = GatewayId(1);
        let send = Operation::Send { from: GatewayId(0), to };
        let mix = |under_way: &[(Operation, u64)]| {
            TrafficMix::of_operations(under_way.iter().copied()).map(|mix| mix.operations)
        };
        let all = [
            (Operation::Reduce { to }, 100),
            (Operation::AllGather, 700),
            (Operation::AllGather, 900),
            (Operation::AllToAll, 99),
            (Operation::Barrier, 1000),
            (send, 10_000),
        ];
        let expected = vec![(Operation::Reduce { to }, 4), (Operation::AllGather, 0)];
        assert_eq!(mix(&all), Some([expected, vec![(Operation::AllToAll, 4)]].concat()));
        assert_eq!(
            mix(&[(Operation::AllGather, 1600), (Operation::AllToAll, 49)]),
            mix(&[(Operation::AllGather, 1)])
        );
        assert_eq!([mix(&[(send, 1), (Operation::Barrier, 0)]), mix(&[])], [None, None]);
    }
}
