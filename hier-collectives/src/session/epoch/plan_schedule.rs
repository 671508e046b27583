//! Plans of an epoch: which plan each collective follows, and how all members change to another.
//!
//! A change fails nothing, and all members make it at the same collective. The first gateway sends
//! Pause. Each member starts nothing more and answers with the first collective that it holds back.
//! Once the first gateway has all answers, it takes the greatest: collectives below it go on with
//! the old plan everywhere, and those from it on follow the new one. Until then, messages about a
//! collective that is held back may be meant for a plan that is not known here yet.

use super::epoch_membership::FIRST_GATEWAY;
use crate::ids::{Epoch, GatewayId, Sequence, TreeIndex};
use crate::plan::{
    self, Operation, OwnerTrees, PayloadFlows, Plan, TrafficMix, Tree, plan_trees_limit,
};
use crate::session::action::PeerError;
use crate::session::local_gateway::LocalGateway;
use crate::topology::Fabric;
use crate::wire::Message;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use units::ByteCount;

/// 8 plans: a gateway keeps at least the last 8 plans of an epoch that newer plans replaced, for
/// late messages about their collectives. Older plans are dropped once no collective follows them.
/// The number is chosen.
/// Tested by `a_long_collective_outlives_many_plans`.
const EARLIER_PLANS_MIN: usize = 8;

/// The plans of one epoch on one gateway.
#[derive(Debug)]
pub(in crate::session) struct PlanSchedule {
    current: FollowedPlan,
    /// Memory for partials of subtrees under the plan in force.
    relay_window: ByteCount,
    /// Earlier plans, oldest first.
    earlier: Vec<EarlierPlan>,
    /// Changes of the plan that are known to have begun.
    changes: u32,
    /// The change under way, on the first gateway.
    change: Option<PlanChange>,
    /// The first collective that is not started before the change under way is complete.
    held: Option<Sequence>,
}

/// A plan that is in force no more.
#[derive(Debug)]
pub(in crate::session) struct EarlierPlan {
    /// The first collective that does not follow it.
    pub below: Sequence,
    pub followed: FollowedPlan,
}

/// A plan that collectives follow.
#[derive(Debug)]
pub(in crate::session) struct FollowedPlan {
    pub plan: Plan,
    /// The trees of each gateway, for blocks that its ranks have or get.
    pub owner_trees: OwnerTrees,
    /// The shares of the trees for the reductions to, and for the broadcasts from, each gateway, once
    /// they were needed.
    shares: Vec<[OnceLock<Vec<u64>>; 2]>,
    /// The bytes that operations send between gateways on a nominal buffer, once they were needed.
    flows: Mutex<BTreeMap<Operation, Arc<PayloadFlows>>>,
}

impl FollowedPlan {
    /// Adds to a plan what follows from it.
    fn new(plan: Plan, local: &LocalGateway) -> Self {
        let fabric = local.fabric();
        let shares = fabric.gateway_ids().map(|_| Default::default()).collect();
        Self { owner_trees: plan.owner_trees(fabric), plan, shares, flows: Mutex::default() }
    }

    /// Returns the plan rerooted for an operation of this fabric.
    pub fn rerooted_for(&self, fabric: &Fabric, operation: Operation) -> Cow<'_, Plan> {
        let Some(root) = operation.root() else { return Cow::Borrowed(&self.plan) };
        let of_root = &self.shares[usize::from(root.0)][usize::from(operation.has_down_phase())];
        let shares = of_root.get_or_init(|| self.plan.rerooted_shares(fabric, operation));
        Cow::Owned(self.plan.rerooted_at(root, shares))
    }

    /// Returns the pairs of gateways that the trees of the plan join, those of blocks included.
    fn edges(&self) -> impl Iterator<Item = (GatewayId, GatewayId)> {
        self.plan.trees.iter().chain(self.owner_trees.all()).flat_map(Tree::edges)
    }

    /// Returns the bytes that an operation on a nominal buffer sends between gateways.
    fn operation_flows(&self, fabric: &Fabric, operation: Operation) -> Arc<PayloadFlows> {
        let mut known = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        let flows = known.entry(operation).or_insert_with(|| {
            let plan = self.rerooted_for(fabric, operation);
            Arc::new(plan.operation_flows(fabric, &self.owner_trees, operation))
        });
        Arc::clone(flows)
    }
}

/// A change under way, on the first gateway.
#[derive(Debug)]
struct PlanChange {
    plan: Plan,
    /// The first collective that each member holds back.
    paused: BTreeMap<GatewayId, Sequence>,
}

/// A plan that takes force, and the first collective that follows it.
#[derive(Debug)]
pub(in crate::session) struct PlanSwitch {
    pub from: Sequence,
    pub plan: Plan,
}

impl PlanSchedule {
    /// Creates the schedule of an epoch that begins with this plan.
    pub fn new(plan: Plan, local: &LocalGateway) -> Self {
        Self {
            relay_window: plan::relay_memory_bound(local.fabric(), local.id(), &plan),
            current: FollowedPlan::new(plan, local),
            earlier: Vec::new(),
            changes: 0,
            change: None,
            held: None,
        }
    }

    /// Returns the plan in force.
    pub fn plan(&self) -> &Plan {
        &self.current.plan
    }

    /// Returns the bytes that a mix of operations sends between gateways under the plan in force, on a
    /// nominal buffer.
    pub fn mixed_flows(&self, fabric: &Fabric, mix: &TrafficMix) -> PayloadFlows {
        mix.flows(|operation| self.current.operation_flows(fabric, operation))
    }

    /// Returns the bytes that operations on buffers of so many bytes send between gateways under the
    /// plan in force.
    pub fn flows_of_operations(
        &self,
        fabric: &Fabric,
        operations: impl Iterator<Item = (Operation, u64)>,
    ) -> PayloadFlows {
        plan::flows_of_operations(operations, |of| self.current.operation_flows(fabric, of))
    }

    /// Returns the memory for partials of subtrees under the plan in force.
    pub fn relay_window(&self) -> ByteCount {
        self.relay_window
    }

    /// Returns the plans that are in force no more, oldest first.
    #[cfg(test)]
    pub fn earlier_plans(&self) -> &[EarlierPlan] {
        &self.earlier
    }

    /// Returns the plan that a collective follows.
    pub fn plan_of(&self, sequence: Sequence) -> &FollowedPlan {
        let earlier = self.earlier.iter().find(|earlier| sequence < earlier.below);
        earlier.map_or(&self.current, |earlier| &earlier.followed)
    }

    /// Returns the pairs of gateways that exchange data along the trees of the plan in force, those of
    /// blocks included, and of earlier plans that collectives from `oldest` on follow.
    pub fn edges_in_use(
        &self,
        oldest: Option<Sequence>,
    ) -> impl Iterator<Item = (GatewayId, GatewayId)> {
        let followed = move |earlier: &&EarlierPlan| oldest.is_some_and(|at| at < earlier.below);
        let earlier = self.earlier.iter().filter(followed).map(|earlier| &earlier.followed);
        earlier.chain([&self.current]).flat_map(FollowedPlan::edges)
    }

    /// Whether a collective is held back, since it may follow a plan that is not known here yet.
    pub fn is_held(&self, sequence: Sequence) -> bool {
        self.held.is_some_and(|held| sequence >= held)
    }

    /// Whether a collective may have a part with this tree. A collective has as many parts as its plan
    /// has trees, and an all-to-all has one for each rail of each pair of gateways. The plan of a
    /// collective that is held back may be unknown here: `next_plan` and the fabric bound its parts.
    pub fn may_have_tree(
        &self,
        sequence: Sequence,
        tree: TreeIndex,
        next_plan: &Plan,
        local: &LocalGateway,
    ) -> bool {
        let tree = usize::from(tree.0);
        let pairs = local.fabric().gateways().len().pow(2);
        let blocks_limit = OwnerTrees::parts_limit(local.fabric());
        let most = next_plan.trees.len().max(plan_trees_limit(local.fabric()));
        let FollowedPlan { plan, owner_trees, .. } = self.plan_of(sequence);
        let of_blocks = owner_trees.ways_of_all_count().max(pairs * owner_trees.rails());
        let planned = plan.trees.len().max(of_blocks);
        tree < planned || (self.is_held(sequence) && tree < most.max(blocks_limit))
    }

    /// Whether a change of the plan is under way on the first gateway.
    pub fn is_changing(&self) -> bool {
        self.change.is_some()
    }

    /// Begins a change of the plan on the first gateway, which starts no collective from `held` on.
    /// Returns the change's number; none when one is under way or the plan is in force.
    pub fn begin_change(&mut self, plan: Plan, held: Sequence) -> Option<u32> {
        if self.change.is_some() || self.current.plan == plan {
            return None;
        }
        self.changes += 1;
        self.change = Some(PlanChange { plan, paused: BTreeMap::new() });
        self.held = Some(held);
        Some(self.changes)
    }

    /// Holds back collectives from `oldest` on for a change that the first gateway began. Has no
    /// effect for a change that is known, or while collectives are held back for another.
    pub fn hold_back_from(&mut self, change: u32, oldest: Sequence) {
        // While something is held back, the change before has not arrived: it is repeated later.
        if change > self.changes && self.held.is_none() {
            self.changes = change;
            self.held = Some(oldest);
        }
    }

    /// Builds the answer to Pause; `None` while no collectives are held back.
    pub fn paused_message(&self, epoch: Epoch) -> Option<Message> {
        Some(Message::Paused { epoch, change: self.changes, from: self.held? })
    }

    /// Records on the first gateway that a member holds back collectives from `held` on. Returns
    /// the switch once all `members` do; `None` before, and for another change than the one under
    /// way.
    pub fn note_paused(
        &mut self,
        member: GatewayId,
        change: u32,
        held: Sequence,
        members: usize,
    ) -> Option<PlanSwitch> {
        if self.changes != change {
            return None;
        }
        let under_way = self.change.as_mut()?;
        under_way.paused.insert(member, held);
        if under_way.paused.len() < members {
            return None;
        }
        let PlanChange { plan, paused } = self.change.take()?;
        Some(PlanSwitch { from: paused.into_values().max().unwrap_or(held), plan })
    }

    /// Builds the message with which the first gateway completes a change of the plan.
    pub fn change_message(&self, epoch: Epoch, switch: &PlanSwitch) -> Message {
        let PlanSwitch { from, plan } = switch;
        Message::Change { epoch, change: self.changes, from: *from, plan: plan.clone() }
    }

    /// Whether to make the switch of a completed change; false when the message is a repeat.
    ///
    /// # Errors
    /// [`PeerError::BadPlan`]: nothing is held back for this change.
    pub fn accepts_switch(&self, change: u32, switch: &PlanSwitch) -> Result<bool, PeerError> {
        match self.held {
            Some(held) if self.changes == change && switch.from >= held => Ok(true),
            // The message was repeated.
            None if self.changes == change => Ok(false),
            _ if change < self.changes => Ok(false),
            _ => Err(PeerError::BadPlan("a change that nothing was held back for".to_owned())),
        }
    }

    /// Puts the plan of a switch in force. Keeps the last [`EARLIER_PLANS_MIN`] earlier plans, and
    /// drops older ones that no live collective follows; `oldest` is the oldest live one.
    pub fn switch_plan(&mut self, switch: PlanSwitch, oldest: Sequence, local: &LocalGateway) {
        let PlanSwitch { from, plan } = switch;
        self.relay_window = plan::relay_memory_bound(local.fabric(), local.id(), &plan);
        let followed = std::mem::replace(&mut self.current, FollowedPlan::new(plan, local));
        // A plan under which nothing could begin is of no collective: so there are never more
        // plans than collectives that may be live.
        if self.earlier.last().is_none_or(|last| last.below < from) {
            self.earlier.push(EarlierPlan { below: from, followed });
        }
        while self.earlier.len() > EARLIER_PLANS_MIN && self.earlier[0].below <= oldest {
            self.earlier.remove(0);
        }
        self.held = None;
    }

    /// Builds the messages about plan changes that bring a peer up to date. The first gateway
    /// repeats the last complete change and the one under way; others repeat their answer to Pause.
    /// The peer has earlier changes already, since it paused for the next one.
    pub fn catch_up_messages(&self, peer: GatewayId, me: GatewayId, epoch: Epoch) -> Vec<Message> {
        let change = self.changes;
        if me != FIRST_GATEWAY {
            return self
                .paused_message(epoch)
                .filter(|_| peer == FIRST_GATEWAY)
                .into_iter()
                .collect();
        }
        let under_way = self.change.as_ref().map(|_| Message::Pause { epoch, change });
        let complete = self.earlier.last().map(|last| Message::Change {
            epoch,
            change: change - u32::from(under_way.is_some()),
            from: last.below,
            plan: self.current.plan.clone(),
        });
        complete.into_iter().chain(under_way).collect()
    }
}
