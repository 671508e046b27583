//! The plans of a job's groups, which are made once for each set of gateways.

use hier_collectives::ids::GatewayId;
use hier_collectives::plan::Plan;
use std::collections::VecDeque;

/// 64 plans: the most that a job keeps for groups that are made later on the same gateways. At one
/// more the oldest is dropped, and made again when a group needs it. The number is chosen; it
/// bounds memory.
const PLANS_MAX: usize = 64;

/// The last plans that were made, each with its set of gateways.
#[derive(Debug, Default)]
pub(super) struct GroupPlans {
    /// The oldest first.
    plans: VecDeque<(Vec<GatewayId>, Plan)>,
}

impl GroupPlans {
    /// Returns the plan kept for groups on a set of gateways, whose ids ascend; `None` if there is
    /// none.
    pub fn plan(&self, gateways: &[GatewayId]) -> Option<&Plan> {
        self.plans.iter().find(|(of, _)| of == gateways).map(|(_, plan)| plan)
    }

    /// Keeps a plan for groups on a set of gateways, whose ids ascend. Where [`PLANS_MAX`] plans
    /// are kept already, the oldest is dropped.
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
    use hier_collectives::plan::make_plan;
    use hier_collectives::topology::{Fabric, FabricGatewaySpec, FabricRegionSpec};

    #[test]
    fn one_more_plan_takes_the_place_of_the_oldest() {
        let alone = FabricRegionSpec {
            name: "a".to_owned(),
            speeds: vec![1.0],
            gateways: vec![FabricGatewaySpec::new("a-0", 1, None)],
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
