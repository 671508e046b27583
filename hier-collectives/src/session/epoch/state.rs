//! The state of a gateway's epoch, and the events that begin and end epochs.

use super::drain::Closing;
use super::link_reports::{self, LinkReports};
use super::membership::{EpochStart, FIRST, Join, Membership};
use super::plan_schedule::{PlanSchedule, PlanSwitch};
use crate::ids::{BootId, Epoch, GatewayId, RegionId, Sequence, TreeIndex};
use crate::mutant::{self, Mutant};
use crate::plan::{Plan, Tree};
use crate::post::{Committed, Failure, FailureCode};
use crate::session::action::{Action, Note, PeerError};
use crate::session::action_queue::ActionQueue;
use crate::session::local_gateway::LocalGateway;
use crate::topology::{Fabric, Link, LinkState};
use crate::wire::Message;
use std::sync::Arc;
use units::TimeNs;

/// 2^62. Epochs and collectives that a peer names are below: nobody counts as far, and what
/// follows can still be counted. Tested by `numbers_that_nobody_reaches_are_refused`.
const NUMBERS_MAX: u64 = 1 << 62;

/// The epoch as this gateway sees it.
#[derive(Debug)]
pub(in crate::session) struct EpochState {
    local: LocalGateway,
    boot: BootId,
    /// The plan of the epochs that this gateway opens, if it is the first by name.
    next_plan: Plan,
    members: Membership,
    /// The number of the last epoch this gateway was in.
    number: Epoch,
    /// Present while the epoch lives.
    active: Option<ActiveEpoch>,
    /// The failure that ended the last epoch, for peers that have not received it.
    ended: Option<Failure>,
    links: LinkReports,
    /// The time when a drain ends at the latest, once one has begun.
    draining: Option<TimeNs>,
}

/// The part that lives as long as the epoch.
#[derive(Debug)]
struct ActiveEpoch {
    plans: PlanSchedule,
    boots: Vec<BootId>,
    /// The number of the epoch's first collective.
    first: Sequence,
    closing: Option<Closing>,
}

/// The answer to a peer's request to enter the next epoch.
#[derive(Debug)]
pub(in crate::session) enum JoinReply {
    /// It asked before it received Begin of this epoch: repeat that.
    RepeatBegin,
    /// It left the epoch, which ends here as well.
    EndEpoch(Failure),
    /// No epoch is under way: keep the request.
    Keep,
}

impl EpochState {
    /// No epoch, with no peer up.
    pub fn new(local: LocalGateway, boot: BootId, next_plan: Plan) -> Self {
        Self {
            members: Membership::new(local.fabric(), local.id()),
            links: LinkReports::new(local.fabric()),
            local,
            boot,
            next_plan,
            number: Epoch(0),
            active: None,
            ended: None,
            draining: None,
        }
    }

    pub fn local(&self) -> &LocalGateway {
        &self.local
    }

    pub fn me(&self) -> GatewayId {
        self.local.id()
    }

    pub fn members(&self) -> &Membership {
        &self.members
    }

    pub fn members_mut(&mut self) -> &mut Membership {
        &mut self.members
    }

    pub fn number(&self) -> Epoch {
        self.number
    }

    pub fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// Whether an epoch is the one under way.
    pub fn is_current(&self, epoch: Epoch) -> bool {
        self.is_active() && (epoch == self.number || mutant::is(Mutant::IgnoreEpochs))
    }

    /// The plans of the epoch, while it lives.
    pub fn plans(&self) -> Option<&PlanSchedule> {
        self.active.as_ref().map(|active| &active.plans)
    }

    /// The plan in force, while the epoch lives.
    pub fn plan(&self) -> Option<&Plan> {
        self.plans().map(PlanSchedule::plan)
    }

    /// Whether a collective waits for a plan that is not known yet.
    pub fn is_held(&self, sequence: Sequence) -> bool {
        self.plans().is_some_and(|plans| plans.is_held(sequence))
    }

    /// Whether a tree is of a collective's plan, as far as that is known here.
    pub fn may_have(&self, sequence: Sequence, tree: TreeIndex) -> bool {
        let may =
            |plans: &PlanSchedule| plans.may_have(sequence, tree, &self.next_plan, &self.local);
        self.plans().is_some_and(may)
    }

    /// Peers that can be reached and are in the epoch.
    pub fn ready_peers(&self) -> Vec<GatewayId> {
        if !self.is_active() {
            return vec![];
        }
        self.members.ready_for(self.number).collect()
    }

    /// Whether a peer is in our epoch.
    pub fn has_member(&self, peer: GatewayId) -> bool {
        self.is_active() && self.members.sent_ready(peer, self.number)
    }

    /// The link to a peer by our fabric file; none inside a region.
    pub fn link_to(&self, peer: GatewayId) -> Option<&Link> {
        self.local.link_to(peer)
    }
}

/// Entering and leaving.
impl EpochState {
    /// Asks the first gateway for the next epoch, once all peers can be reached. `next` is one past
    /// the highest sequence known here.
    pub fn request_entry(
        &self,
        next: Sequence,
        committed: Option<Committed>,
        actions: &mut ActionQueue,
    ) {
        if self.is_active() || self.draining.is_some() || self.me() == FIRST {
            return;
        }
        if self.members.all_up() {
            let (boot, last) = (self.boot, self.number);
            actions.message(FIRST, Message::Join { boot, last, next, committed });
        }
    }

    /// On the first gateway: the next epoch, once all peers have asked for it.
    pub fn opening(&self, next: Sequence, committed: Option<Committed>) -> Option<EpochStart> {
        if self.me() != FIRST || self.is_active() || self.draining.is_some() {
            return None;
        }
        let joins = self.members.all_joined()?;
        let last = joins.iter().map(|join| join.last).max().unwrap_or_default();
        let boots = [self.boot].into_iter().chain(joins.iter().map(|join| join.boot));
        Some(EpochStart {
            epoch: Epoch(self.number.max(last).0 + 1),
            next: joins.iter().map(|join| join.next).fold(next, Ord::max),
            boots: boots.collect(),
            plan: self.next_plan.clone(),
            committed: joins.iter().map(|join| join.committed).fold(committed, Ord::max),
        })
    }

    /// Enters an epoch and tells the peers. `committed` is the last step known to be complete.
    pub fn enter(
        &mut self,
        start: EpochStart,
        committed: Option<Committed>,
        actions: &mut ActionQueue,
    ) {
        let EpochStart { epoch, next, boots, plan, .. } = start;
        self.number = epoch;
        self.links.forget_others(self.local.id());
        self.ended = None;
        actions.push(Action::Note(Note::EpochBegan {
            epoch,
            next,
            algorithm: plan.algorithm.name(),
            reason: plan.reason.clone(),
            plan_hash: plan.hash(),
        }));
        let plans = PlanSchedule::new(plan, &self.local);
        self.active = Some(ActiveEpoch { plans, boots, first: next, closing: None });
        for to in self.members.up() {
            let begin = (self.me() == FIRST).then(|| self.begin_message(committed)).flatten();
            actions.messages(to, begin);
            actions.message(to, self.ready_message(to));
        }
    }

    /// Skips an epoch that ended before it began.
    pub fn skip(&mut self, epoch: Epoch) {
        self.number = epoch;
    }

    /// Tells the peers, except the one that said so, that the epoch ends. It lives on until
    /// [`EpochState::leave`].
    pub fn tell_end(
        &self,
        failure: &Failure,
        except: Option<GatewayId>,
        actions: &mut ActionQueue,
    ) {
        let message = Message::End { epoch: self.number, failure: failure.clone() };
        let others = self.ready_peers().into_iter().filter(|to| Some(*to) != except);
        actions.broadcast(others, &message);
    }

    /// Leaves the epoch.
    pub fn leave(&mut self) {
        self.active = None;
        self.members.end_epoch();
    }

    /// Keeps the failure that ended the epoch for peers that have not received it.
    pub fn note_end(&mut self, failure: Failure) {
        self.ended = Some(failure);
    }

    /// Repeats to a peer that this gateway entered the epoch, or left it.
    pub fn repeat_entry(
        &self,
        peer: GatewayId,
        committed: Option<Committed>,
        actions: &mut ActionQueue,
    ) {
        if !self.is_active() {
            actions.messages(peer, self.end_message());
            return;
        }
        if self.me() == FIRST {
            actions.messages(peer, self.begin_message(committed));
        }
        actions.message(peer, self.ready_message(peer));
    }

    /// The message that this gateway has left the last epoch.
    pub fn end_message(&self) -> Option<Message> {
        let failure = self.ended.clone()?;
        Some(Message::End { epoch: self.number, failure })
    }

    pub fn begin_message(&self, committed: Option<Committed>) -> Option<Message> {
        let active = self.active.as_ref()?;
        let (boots, plan) = (active.boots.clone(), active.plans.plan().clone());
        let (epoch, next) = (self.number, active.first);
        Some(Message::Begin { epoch, next, boots, plan, committed })
    }

    fn ready_message(&self, to: GatewayId) -> Message {
        Message::Ready { epoch: self.number, link: self.link_to(to).map(LinkState::of) }
    }

    /// A peer asks to enter the next epoch.
    ///
    /// # Errors
    /// [`PeerError`]: this gateway opens no epochs, or a number is too large.
    pub fn check_join(&self, from: GatewayId, join: &Join) -> Result<JoinReply, PeerError> {
        if self.me() != FIRST {
            return Err(PeerError::NotYours("join to a gateway that is not the first"));
        }
        check_numbers(join.last, join.next)?;
        let Some(active) = &self.active else { return Ok(JoinReply::Keep) };
        let known = active.boots.get(usize::from(from.0)) == Some(&join.boot);
        if known && join.last < self.number {
            return Ok(JoinReply::RepeatBegin);
        }
        let text = format!("gateway {} left the epoch", self.local.gateway_name(from));
        Ok(JoinReply::EndEpoch(Failure::new(FailureCode::EpochEnded, text)))
    }

    /// The first gateway begins an epoch: whether this gateway takes part in it.
    ///
    /// # Errors
    /// [`PeerError`]: the sender may not begin epochs, or the message is malformed.
    pub fn check_begin(&self, from: GatewayId, start: &EpochStart) -> Result<bool, PeerError> {
        if from != FIRST {
            return Err(PeerError::NotYours("begin"));
        }
        check_numbers(start.epoch, start.next)?;
        let gateways = u16::try_from(self.local.fabric().gateways().len()).unwrap_or(u16::MAX);
        if start.boots.len() != usize::from(gateways) {
            return Err(PeerError::BadPlan("not one boot id for each gateway".to_owned()));
        }
        self.check_plan(&start.plan)?;
        let mine = start.boots[usize::from(self.me().0)];
        Ok(start.epoch > self.number && mine == self.boot && self.draining.is_none())
    }

    /// Checks a peer's plan: segments at most 16 times shorter or longer than ours, no more trees than
    /// this fabric can need, valid as `prove` says, and edges only between connected gateways.
    fn check_plan(&self, plan: &Plan) -> Result<(), PeerError> {
        let fabric = self.local.fabric();
        plan.is_near(&self.next_plan, fabric).map_err(PeerError::BadPlan)?;
        let gateways = u16::try_from(fabric.gateways().len()).unwrap_or(u16::MAX);
        plan.prove(gateways).map_err(|fault| PeerError::BadPlan(fault.to_string()))?;
        let unlinked = |(one, other): &(GatewayId, GatewayId)| !fabric.connects(*one, *other);
        match plan.trees.iter().flat_map(Tree::edges).find(unlinked) {
            None => Ok(()),
            Some((one, other)) => Err(PeerError::BadPlan(format!(
                "an edge between gateways {one} and {other}, which no link joins"
            ))),
        }
    }
}

/// Plans.
impl EpochState {
    /// Takes a better plan for the epochs to come and, on the first gateway, for the one under way
    /// from `oldest` on. Segments keep their size. Returns the switch when nobody else is awaited.
    pub fn propose_plan(
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
        if self.local.id() != FIRST {
            return None;
        }
        let change = active.plans.begin_change(plan, oldest)?;
        actions.broadcast(self.ready_peers(), &Message::Pause { epoch: self.number, change });
        self.note_paused(FIRST, change, oldest, actions)
    }

    /// The first gateway asks to hold back collectives from `oldest` on.
    ///
    /// # Errors
    /// [`PeerError::NotYours`]: it is not the first gateway.
    pub fn handle_pause(
        &mut self,
        from: GatewayId,
        change: u32,
        oldest: Sequence,
        actions: &mut ActionQueue,
    ) -> Result<(), PeerError> {
        if from != FIRST {
            return Err(PeerError::NotYours("pause"));
        }
        let Some(active) = &mut self.active else { return Ok(()) };
        active.plans.pause(change, oldest);
        actions.messages(FIRST, active.plans.paused_message(self.number));
        Ok(())
    }

    /// A member holds back collectives from `held` on.
    ///
    /// # Errors
    /// [`PeerError::NotYours`]: this gateway makes no plans.
    pub fn handle_paused(
        &mut self,
        from: GatewayId,
        change: u32,
        held: Sequence,
        actions: &mut ActionQueue,
    ) -> Result<Option<PlanSwitch>, PeerError> {
        if self.me() != FIRST {
            return Err(PeerError::NotYours("paused"));
        }
        Ok(self.note_paused(from, change, held, actions))
    }

    /// The first gateway completed a change: the switch to make, unless the message is repeated.
    ///
    /// # Errors
    /// [`PeerError`]: the sender may not change plans, or the plan is invalid.
    pub fn handle_change(
        &self,
        from: GatewayId,
        change: u32,
        switch: PlanSwitch,
    ) -> Result<Option<PlanSwitch>, PeerError> {
        if from != FIRST {
            return Err(PeerError::NotYours("change"));
        }
        self.check_plan(&switch.plan)?;
        let Some(plans) = self.plans() else { return Ok(None) };
        Ok(plans.accepts(change, &switch)?.then_some(switch))
    }

    fn note_paused(
        &mut self,
        member: GatewayId,
        change: u32,
        held: Sequence,
        actions: &mut ActionQueue,
    ) -> Option<PlanSwitch> {
        let members = self.members.len() + 1;
        let active = self.active.as_mut()?;
        let switch = active.plans.note_paused(member, change, held, members)?;
        let message = active.plans.change_message(self.number, &switch);
        actions.broadcast(self.ready_peers(), &message);
        Some(switch)
    }

    /// Puts another plan in force. `oldest` is the oldest live collective.
    pub fn switch_plan(
        &mut self,
        switch: PlanSwitch,
        oldest: Option<Sequence>,
        actions: &mut ActionQueue,
    ) {
        let Some(active) = &mut self.active else { return };
        let PlanSwitch { from, plan } = &switch;
        actions.push(Action::Note(Note::PlanChanged {
            from: *from,
            algorithm: plan.algorithm.name(),
            reason: plan.reason.clone(),
            plan_hash: plan.hash(),
        }));
        let oldest = oldest.unwrap_or(*from);
        active.plans.switch(switch, oldest, &self.local);
    }
}

/// Links.
impl EpochState {
    /// This gateway measured the link to another region: reports it when it changed.
    pub fn handle_link(&mut self, to: RegionId, state: LinkState, actions: &mut ActionQueue) {
        let me = self.me();
        if !self.links.record(me, to, state) || me == FIRST {
            return;
        }
        if self.is_active() {
            actions.message(FIRST, Message::Link { epoch: self.number, to, state });
        }
    }

    /// A peer reports a link of its region.
    ///
    /// # Errors
    /// [`PeerError::NotYours`]: this gateway makes no plans, or the peer has no such link.
    pub fn handle_report(
        &mut self,
        from: GatewayId,
        to: RegionId,
        state: LinkState,
    ) -> Result<(), PeerError> {
        let fabric = self.local.fabric();
        let linked = fabric.link(fabric.gateway(from).region, to).is_some();
        if self.me() != FIRST || !linked {
            return Err(PeerError::NotYours("link report"));
        }
        self.links.record(from, to, state);
        Ok(())
    }

    /// On the first gateway: a collective completed. Has a plan made when links have differed from
    /// the plan in force for long enough.
    pub fn weigh_links(&mut self, actions: &mut ActionQueue) {
        let Some(active) = &self.active else { return };
        let leaving = self.draining.is_some() || active.closing.is_some();
        if self.me() != FIRST || active.plans.is_changing() || leaving {
            return;
        }
        if let Some(reported) = self.links.weigh(self.local.fabric()) {
            actions.push(Action::Plan(Arc::new(reported)));
        }
    }

    /// The answer to [`Action::Plan`]: the plan, if it is better than the one in force over the
    /// links as reported.
    pub fn judge_plan(&mut self, reported: &Fabric, plan: Option<Plan>) -> Option<Plan> {
        self.links.end_planning();
        let in_force = self.active.as_ref()?.plans.plan();
        let before = self.links.planned_for(reported.links());
        let segment = in_force.segment;
        let mut plan = Plan { segment, ..plan? }.with_express_limit(self.local.fabric());
        if !link_reports::is_faster(&plan, in_force, reported) {
            return None;
        }
        plan.reason += &link_reports::changes_in_words(&before, reported);
        Some(plan)
    }
}

/// The drain, and facts to repeat.
impl EpochState {
    /// The time when a drain ends at the latest, once one has begun.
    pub fn draining(&self) -> Option<TimeNs> {
        self.draining
    }

    /// Begins a drain, or shortens one; true when it began.
    pub fn drain(&mut self, until: TimeNs) -> bool {
        let began = self.draining.is_none();
        self.draining = Some(self.draining.map_or(until, |before| before.min(until)));
        began
    }

    /// Tells the peers that no rank of this gateway posts anything from `from` on.
    pub fn tell_drain(&self, from: Sequence, actions: &mut ActionQueue) {
        actions.broadcast(self.ready_peers(), &Message::Drain { epoch: self.number, from });
    }

    /// No rank of `gateway` posts anything from `from` on. Returns the failure of those
    /// collectives; none when they are closed already.
    pub fn close(&mut self, gateway: GatewayId, from: Sequence) -> Option<Failure> {
        let active = self.active.as_mut()?;
        if active.closing.as_ref().is_some_and(|closing| closing.from() <= from) {
            return None;
        }
        let closing = active.closing.insert(Closing::new(self.local.gateway_name(gateway), from));
        Some(closing.failure().clone())
    }

    /// The failure of a collective that cannot be posted any more.
    pub fn closed_for(&self, sequence: Sequence) -> Option<Failure> {
        self.active.as_ref()?.closing.as_ref()?.failure_of(sequence)
    }

    /// The facts that a peer needs about drain, plans and links.
    pub fn facts_for(&self, peer: GatewayId) -> Vec<Message> {
        let Some(active) = &self.active else { return vec![] };
        let (me, epoch) = (self.me(), self.number);
        let closing = active.closing.as_ref().filter(|_| self.draining.is_some());
        let drain = closing.map(|closing| Message::Drain { epoch, from: closing.from() });
        let mut facts: Vec<Message> = drain.into_iter().collect();
        facts.extend(active.plans.facts_for(peer, me, epoch));
        if peer == FIRST {
            facts.extend(self.links.messages(me, epoch));
        }
        facts
    }
}

fn check_numbers(epoch: Epoch, next: Sequence) -> Result<(), PeerError> {
    if epoch.0 >= NUMBERS_MAX || next.0 >= NUMBERS_MAX {
        return Err(PeerError::Uncountable { epoch, next });
    }
    Ok(())
}
