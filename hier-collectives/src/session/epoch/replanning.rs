//! Changes of the plan: links that are measured, a plan that is made anew, and the switch to it.

use super::epoch_membership::FIRST_GATEWAY;
use super::epoch_state::EpochState;
use super::link_reports;
use super::plan_schedule::PlanSwitch;
use crate::ids::{GatewayId, RegionId, Sequence};
use crate::plan::Plan;
use crate::session::action::{Action, PeerError, SessionNote};
use crate::session::action_queue::ActionQueue;
use crate::topology::{Fabric, LinkState};
use crate::wire::Message;
use std::sync::Arc;

/// Plans.
impl EpochState {
    /// Keeps a better plan for later epochs. The first gateway also begins to change the present
    /// epoch's plan, from `oldest` on. Segments keep their size. Returns the switch when no other
    /// gateway is awaited, else `None`.
    pub fn propose_replanning(
        &mut self,
        plan: Plan,
        oldest: Sequence,
        actions: &mut ActionQueue,
    ) -> Option<PlanSwitch> {
        let Some(active) = &mut self.active else {
            self.next_plan = plan;
            return None;
        };
        let plan = Plan { segment: active.plans.plan().segment, ..plan };
        self.next_plan = plan.clone();
        if self.local.id() != FIRST_GATEWAY {
            return None;
        }
        let change = active.plans.begin_change(plan, oldest)?;
        actions.broadcast(self.ready_peers(), &Message::Pause { epoch: self.number, change });
        self.note_replanning_paused(FIRST_GATEWAY, change, oldest, actions)
    }

    /// Handles Pause, with which the first gateway begins a change of the plan. Holds back this
    /// gateway's collectives from `oldest_unposted` on, and answers Paused. A repeated Pause holds
    /// back nothing more.
    ///
    /// # Errors
    /// [`PeerError::NotYours`]: the sender is not the first gateway.
    pub fn handle_replanning_pause(
        &mut self,
        from: GatewayId,
        change: u32,
        oldest_unposted: Sequence,
        actions: &mut ActionQueue,
    ) -> Result<(), PeerError> {
        if from != FIRST_GATEWAY {
            return Err(PeerError::NotYours("pause"));
        }
        let Some(active) = &mut self.active else { return Ok(()) };
        active.plans.hold_back_from(change, oldest_unposted);
        actions.push_messages(FIRST_GATEWAY, active.plans.paused_message(self.number));
        Ok(())
    }

    /// Records that a member holds back collectives from `held` on. Returns the switch when all
    /// members do, else `None`.
    ///
    /// # Errors
    /// [`PeerError::NotYours`]: this gateway makes no plans.
    pub fn handle_replanning_paused(
        &mut self,
        from: GatewayId,
        change: u32,
        held: Sequence,
        actions: &mut ActionQueue,
    ) -> Result<Option<PlanSwitch>, PeerError> {
        if self.me() != FIRST_GATEWAY {
            return Err(PeerError::NotYours("paused"));
        }
        Ok(self.note_replanning_paused(from, change, held, actions))
    }

    /// Checks a change that the first gateway completed. Returns the switch to make; none if the
    /// message is a repeat.
    ///
    /// # Errors
    /// [`PeerError`]: the sender may not change plans, or the plan is invalid.
    pub fn handle_replanning_change(
        &self,
        from: GatewayId,
        change: u32,
        switch: PlanSwitch,
    ) -> Result<Option<PlanSwitch>, PeerError> {
        if from != FIRST_GATEWAY {
            return Err(PeerError::NotYours("change"));
        }
        self.check_plan(&switch.plan)?;
        let Some(plans) = self.plans() else { return Ok(None) };
        Ok(plans.accepts_switch(change, &switch)?.then_some(switch))
    }

    /// Records that a member holds back collectives from `held` on. Once all members do, sends
    /// Change to the peers and returns the switch; `None` before.
    fn note_replanning_paused(
        &mut self,
        member: GatewayId,
        change: u32,
        held: Sequence,
        actions: &mut ActionQueue,
    ) -> Option<PlanSwitch> {
        let members = self.members.peer_count() + 1;
        let active = self.active.as_mut()?;
        let switch = active.plans.note_paused(member, change, held, members)?;
        let message = active.plans.change_message(self.number, &switch);
        actions.broadcast(self.ready_peers(), &message);
        Some(switch)
    }

    /// Logs the plan of a switch and puts the plan in force. `oldest`, the oldest live collective,
    /// tells which earlier plans are still needed.
    pub fn log_and_switch_replanned(
        &mut self,
        switch: PlanSwitch,
        oldest: Option<Sequence>,
        actions: &mut ActionQueue,
    ) {
        let Some(active) = &mut self.active else { return };
        let PlanSwitch { from, plan } = &switch;
        actions.push(Action::Note(SessionNote::PlanChanged {
            from: *from,
            algorithm: plan.algorithm.name(),
            reason: plan.reason.clone(),
            plan_hash: plan.encoding_hash(),
        }));
        let oldest = oldest.unwrap_or(*from);
        active.plans.switch_plan(switch, oldest, &self.local);
    }
}

/// Links.
impl EpochState {
    /// Records this gateway's measurement of the link to another region, and sends it to the first
    /// gateway when it changed. Does nothing if the session has no such link, as to a witness.
    pub fn replan_by_link(&mut self, to: RegionId, state: LinkState, actions: &mut ActionQueue) {
        let (me, fabric) = (self.me(), self.local.fabric());
        if fabric.link(fabric.gateway(me).region, to).is_none() {
            return;
        }
        if !self.links.record_report(me, to, state) || me == FIRST_GATEWAY {
            return;
        }
        if self.is_active() {
            actions.push_message(FIRST_GATEWAY, Message::Link { epoch: self.number, to, state });
        }
    }

    /// Records a peer's report about a link of the peer's region.
    ///
    /// # Errors
    /// [`PeerError::NotYours`]: this gateway makes no plans, or the peer has no such link.
    pub fn replan_by_link_report(
        &mut self,
        from: GatewayId,
        to: RegionId,
        state: LinkState,
    ) -> Result<(), PeerError> {
        let fabric = self.local.fabric();
        let linked = fabric.link(fabric.gateway(from).region, to).is_some();
        if self.me() != FIRST_GATEWAY || !linked {
            return Err(PeerError::NotYours("link report"));
        }
        self.links.record_report(from, to, state);
        Ok(())
    }

    /// Asks for a new plan on the first gateway, when links have differed from the planned ones for
    /// long enough. Called when a collective completed.
    pub fn replan_if_links_changed(&mut self, actions: &mut ActionQueue) {
        let Some(active) = &self.active else { return };
        let leaving = self.draining.is_some() || active.closing.is_some();
        if self.me() != FIRST_GATEWAY || active.plans.is_changing() || leaving {
            return;
        }
        let in_use = self.members.graph().fabric_in_use(self.local.fabric());
        if let Some(reported) = in_use.and_then(|in_use| self.links.fabric_to_plan_for(&in_use)) {
            actions.push(Action::Plan(Arc::new(reported)));
        }
    }

    /// Judges the answer to [`Action::Plan`] in an epoch, and ends the planning. Returns the plan if it
    /// uses a link that has come back, or makes all-reduces faster than the plan in force; its reason
    /// names the changed links. Returns `None` also where the usable links have changed meanwhile.
    pub fn judge_replanned(&mut self, reported: &Fabric, plan: Option<Plan>) -> Option<Plan> {
        self.links.end_planning();
        let (in_force, fabric) = (self.active.as_ref()?.plans.plan(), self.local.fabric());
        let in_use = self.members.graph().fabric_in_use(fabric)?;
        if !link_reports::link_reports_join_regions(in_use.links(), reported.links()) {
            // Connections have changed while it was made; another is asked for.
            return None;
        }
        let before = self.links.replace_planned_links(reported.links());
        let mut plan = Plan { segment: in_force.segment, ..plan? }.with_express_limit(fabric);
        let whole = link_reports::fabric_of_link_reports(fabric, reported);
        if !link_reports::is_any_reported_link_back(&before, reported.links())
            && !link_reports::link_reports_make_plan_faster(&plan, in_force, &whole)
        {
            return None;
        }
        plan.reason += &link_reports::link_report_changes_text(&before, reported, fabric);
        Some(plan)
    }
}
