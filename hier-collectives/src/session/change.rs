//! Another plan within an epoch: nothing fails, and all change at the same collective.
//!
//! The first gateway says Pause. Each member starts nothing more and says from which collective
//! on that holds. When the first has heard all, it takes the greatest of these numbers: what is
//! below goes on with the old plan everywhere, what is not takes the new one. So what a member
//! hears of collectives that it holds back may be meant for a plan that it does not have yet.

use super::membership::FIRST;
use super::*;
use crate::plan::trees_max;

/// A change under way, on the first gateway.
#[derive(Debug)]
pub(super) struct Changing {
    plan: Plan,
    /// From which collective on each member has started nothing.
    paused: BTreeMap<GatewayId, Sequence>,
}

impl Session {
    /// On the first gateway: a better plan than that of the epoch under way, and for those to
    /// come. It is taken up once all members hold back what they have not started. Segments keep
    /// their size.
    pub fn handle_plan(&mut self, plan: Plan, now: TimeNs) {
        let Some(active) = &mut self.active else {
            self.config.plan = plan;
            return;
        };
        let plan = Plan { segment: active.plan.segment, ..plan };
        self.config.plan = plan.clone();
        if self.config.me != FIRST || active.changing.is_some() || active.plan == plan {
            return;
        }
        active.changes += 1;
        let (epoch, change) = (self.epoch, active.changes);
        active.changing = Some(Changing { plan, paused: BTreeMap::new() });
        let held = self.oldest();
        for to in self.ready_peers() {
            self.core
                .actions
                .push_back(Action::Message { to, message: Message::Pause { epoch, change } });
        }
        if let Some(active) = &mut self.active {
            active.held = Some(held);
        }
        self.note_paused(FIRST, held, now);
    }

    pub(super) fn on_pause(&mut self, from: GatewayId, change: u32) -> Result<(), PeerError> {
        if from != FIRST {
            return Err(PeerError::NotYours("pause"));
        }
        let oldest = self.oldest();
        let Some(active) = &mut self.active else { return Ok(()) };
        // While something is held back, the change before it has not been heard: it comes again.
        if change > active.changes && active.held.is_none() {
            active.changes = change;
            active.held = Some(oldest);
        }
        if let Some(message) = self.paused_message() {
            self.core.actions.push_back(Action::Message { to: FIRST, message });
        }
        Ok(())
    }

    pub(super) fn on_paused(
        &mut self,
        from: GatewayId,
        (change, held): (u32, Sequence),
        now: TimeNs,
    ) -> Result<(), PeerError> {
        if self.config.me != FIRST {
            return Err(PeerError::NotYours("paused"));
        }
        if self.active.as_ref().is_some_and(|active| active.changes == change) {
            self.note_paused(from, held, now);
        }
        Ok(())
    }

    pub(super) fn on_change(
        &mut self,
        from: GatewayId,
        (change, start): (u32, Sequence),
        plan: Plan,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        if from != FIRST {
            return Err(PeerError::NotYours("change"));
        }
        self.check_plan(&plan)?;
        let Some(active) = &self.active else { return Ok(()) };
        match active.held {
            Some(held) if active.changes == change && start >= held => {
                self.take_up(start, plan, now);
                Ok(())
            }
            // Said again.
            None if active.changes == change => Ok(()),
            _ if change < active.changes => Ok(()),
            _ => Err(PeerError::BadPlan("a change that nothing was held back for".to_owned())),
        }
    }

    /// What a peer should know of changes: the last one that is complete, and the one under way.
    /// Earlier ones it has, since it has paused for the one after.
    pub(super) fn change_facts_for(&self, peer: GatewayId) -> Vec<Message> {
        let Some(active) = &self.active else { return vec![] };
        let (epoch, change) = (self.epoch, active.changes);
        if self.config.me != FIRST {
            return self.paused_message().filter(|_| peer == FIRST).into_iter().collect();
        }
        let under_way = active.changing.as_ref().map(|_| Message::Pause { epoch, change });
        let complete = active.before.last().map(|(from, ..)| Message::Change {
            epoch,
            change: change - u32::from(under_way.is_some()),
            from: *from,
            plan: active.plan.clone(),
        });
        complete.into_iter().chain(under_way).collect()
    }

    /// Whether a collective waits for a plan that is not known yet.
    pub(super) fn is_held(&self, sequence: Sequence) -> bool {
        let held = self.active.as_ref().and_then(|active| active.held);
        held.is_some_and(|held| sequence >= held)
    }

    /// Whether a tree is of a collective's plan, as far as that is known here.
    pub(super) fn may_have(&self, sequence: Sequence, tree: TreeIndex) -> bool {
        let known = self.active.as_ref().map_or(0, |active| active.plan_of(sequence).1.len());
        let tree = usize::from(tree.0);
        let most = self.config.plan.trees.len().max(trees_max(&self.config.fabric));
        tree < known || (self.is_held(sequence) && tree < most)
    }

    fn paused_message(&self) -> Option<Message> {
        let active = self.active.as_ref()?;
        let (epoch, change) = (self.epoch, active.changes);
        Some(Message::Paused { epoch, change, from: active.held? })
    }

    fn note_paused(&mut self, member: GatewayId, held: Sequence, now: TimeNs) {
        let members = self.peers.len() + 1;
        let Some(active) = &mut self.active else { return };
        let Some(changing) = &mut active.changing else { return };
        changing.paused.insert(member, held);
        if changing.paused.len() < members {
            return;
        }
        let Some(Changing { plan, paused }) = active.changing.take() else { return };
        let from = paused.into_values().max().unwrap_or(held);
        let (epoch, change) = (self.epoch, active.changes);
        for to in self.ready_peers() {
            let message = Message::Change { epoch, change, from, plan: plan.clone() };
            self.core.actions.push_back(Action::Message { to, message });
        }
        self.take_up(from, plan, now);
    }

    fn take_up(&mut self, from: Sequence, plan: Plan, now: TimeNs) {
        let me = self.config.me;
        let Some(active) = &mut self.active else { return };
        self.core.actions.push_back(Action::Note(Note::PlanChanged {
            from,
            algorithm: plan.algorithm.name(),
            reason: plan.reason.clone(),
            plan_hash: plan.hash(),
        }));
        let roles = plan.roles(me);
        active.relayed = plan::relay_bytes(&self.config.fabric, me, &plan);
        let old = std::mem::replace(&mut active.plan, plan);
        let old_roles = std::mem::replace(&mut active.roles, roles);
        // A plan under which nothing could begin is of no collective: so there are never more
        // plans than collectives that may be live.
        if active.before.last().is_none_or(|(last, ..)| *last < from) {
            active.before.push((from, old, old_roles));
        }
        // What is live is of one of them, and what is not is said again soon or never.
        let oldest = self.live.keys().next().copied().unwrap_or(from);
        while active.before.len() > PLANS_MIN && active.before[0].0 <= oldest {
            active.before.remove(0);
        }
        active.held = None;
        let waiting = self.live.iter().filter(|(_, c)| c.phase == Phase::Waiting);
        let waiting: Vec<Sequence> = waiting.map(|(sequence, _)| *sequence).collect();
        for sequence in waiting {
            self.activate_if_posted(sequence, now);
        }
    }
}

impl Active {
    /// The plan of a collective, and what this gateway does in it.
    pub fn plan_of(&self, sequence: Sequence) -> (&Plan, &[Role]) {
        let old = self.before.iter().find(|(below, ..)| sequence < *below);
        old.map_or((&self.plan, &self.roles), |(_, plan, roles)| (plan, roles))
    }
}

/// Earlier plans of an epoch that are kept at least, for what is still said of collectives that
/// have ended.
const PLANS_MIN: usize = 8;
