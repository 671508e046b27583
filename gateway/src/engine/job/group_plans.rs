//! The plans of a job's groups, which are made once for each set of gateways.
//!
//! The first gateway of a group makes its plan while the gateways meet, on a blocking thread: data of
//! others do not wait for it. The engine's task asks for plans and takes them.

use hier_collectives::ids::{GatewayId, GroupId};
use hier_collectives::plan::{Plan, PlanError, make_plan};
use hier_collectives::topology::Fabric;
use std::collections::VecDeque;
use units::ByteCount;

/// 64 plans: the most that a job keeps for groups that are made later on the same gateways.
const PLANS_MAX: usize = 64;

/// 16: the segments of a group are at most so many times shorter than its fabric asks for. Gateways
/// refuse plans whose segments differ more from their own.
const SEGMENT_DIVISOR_MAX: u64 = 16;

/// 16 KiB: the shortest segments to which the plan of a group is cut for lack of memory. Each segment
/// costs a gateway some 10 us.
const SEGMENT_BYTES_MIN: u64 = 16 << 10;

/// 64 KiB: the longest unsolicited window of a group, and the most that relays keep for a class of its
/// smaller operations. When all groups of a job wait for their ranks at
/// once, they hold 256 MiB of each peer that keeps to its windows. One that does not ends a group's
/// epoch only past the bound of docs/protocol.md section 3: twice the window, and 4 MiB for each tree.
pub(super) const UNSOLICITED_BYTES_MAX: ByteCount = ByteCount::new(64 << 10);

/// The limits of the plan of a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlanLimits {
    /// The longest segment: that of the whole fabric, which lanes hold streams of.
    pub segment: ByteCount,
    /// The most memory that the group may need at least, at each of its gateways.
    pub memory: ByteCount,
}

impl PlanLimits {
    /// Makes the plan for the part of the fabric that has a group's ranks, with segments as long as
    /// the memory allows.
    ///
    /// # Errors
    /// [`PlanError`] when the part is too large.
    pub fn make_plan(self, part: &Fabric) -> Result<Plan, PlanError> {
        let mut plan = make_plan(part)?;
        let planned = plan.segment.min(self.segment);
        let shortest = (planned.get() / SEGMENT_DIVISOR_MAX).max(SEGMENT_BYTES_MIN);
        let owner_trees = plan.owner_trees(part);
        let least_at = |plan: &Plan, me: GatewayId| {
            plan.least_memory(&owner_trees, (part, me), UNSOLICITED_BYTES_MAX)
        };
        let fits = |plan: &Plan| part.gateway_ids().all(|me| least_at(plan, me) <= self.memory);
        let whole = plan.segment;
        plan.segment = planned;
        while plan.segment.get() / 2 >= shortest && !fits(&plan) {
            plan.segment = ByteCount::new(plan.segment.get() / 2);
        }
        Ok(if plan.segment < whole { plan.with_express_limit(part) } else { plan })
    }
}

/// The last plans that were made, each with its set of gateways.
#[derive(Debug, Default)]
pub(super) struct GroupPlans {
    /// The oldest first.
    plans: VecDeque<(Vec<GatewayId>, Plan)>,
    /// Groups that wait for a plan, the next one first.
    pub waiting: VecDeque<GroupId>,
    /// Whether a plan is being made: one at a time, since each takes a thread.
    pub is_planning: bool,
}

impl GroupPlans {
    /// Returns the plan for groups on a set of gateways, ascending.
    pub fn plan(&self, gateways: &[GatewayId]) -> Option<&Plan> {
        self.plans.iter().find(|(of, _)| of == gateways).map(|(_, plan)| plan)
    }

    /// Returns the next group that waits for a plan, unless one is being made.
    pub fn next_waiting(&mut self) -> Option<GroupId> {
        if self.is_planning { None } else { self.waiting.pop_front() }
    }

    /// Keeps a plan for groups on a set of gateways, in place of the oldest one.
    pub fn add_plan(&mut self, gateways: Vec<GatewayId>, plan: Plan) {
        if self.plans.len() >= PLANS_MAX {
            self.plans.pop_front();
        }
        self.plans.push_back((gateways, plan));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hier_collectives::topology::{RegionGateway, RegionSpec};

    #[test]
    fn one_more_plan_takes_the_place_of_the_oldest() {
        let alone = RegionSpec {
            name: "a".to_owned(),
            speeds: vec![1.0],
            gateways: vec![RegionGateway::new("a-0", 1, None)],
        };
        let fabric = Fabric::new("alone", 1500, vec![alone], vec![]).expect("valid");
        let plan = make_plan(&fabric).expect("a plan");
        let gateways = |number: usize| vec![GatewayId(u16::try_from(number).expect("few"))];
        let mut plans = GroupPlans::default();
        for number in 0..=PLANS_MAX {
            plans.add_plan(gateways(number), plan.clone());
        }
        assert!(plans.plan(&gateways(0)).is_none());
        assert!((1..=PLANS_MAX).all(|number| plans.plan(&gateways(number)) == Some(&plan)));
    }
}
