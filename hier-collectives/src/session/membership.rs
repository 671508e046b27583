//! Epochs: who is in, since when, under which plan.

use super::*;
use crate::plan::Tree;
use crate::topology::LinkState;
use crate::wire::Message;

/// The gateway that opens epochs: the first by name.
pub(super) const FIRST: GatewayId = GatewayId(0);
/// Epochs and collectives below this may be named by a peer: nobody comes as far by counting,
/// and what follows can still be counted.
const NUMBERS_MAX: u64 = 1 << 62;

/// A member's request to enter the next epoch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Join {
    pub boot: BootId,
    pub last: Epoch,
    pub next: Sequence,
    pub committed: Option<Committed>,
}

/// The first gateway's word that an epoch begins.
pub(super) struct EpochStart {
    pub epoch: Epoch,
    pub next: Sequence,
    pub boots: Vec<BootId>,
    pub plan: Plan,
    pub committed: Option<Committed>,
}

impl Session {
    /// The gateway is up. Alone in its fabric, it has nobody to wait for.
    pub fn handle_start(&mut self, now: TimeNs) {
        self.begin_if_all_here(now);
    }

    /// A neighbour can be reached: its first lane is up, and with it the way to those behind it.
    /// The next epoch begins once all are up.
    pub fn handle_peer_up(&mut self, peer: GatewayId, now: TimeNs) {
        for id in self.routes.reached_through(peer) {
            if let Some(entry) = self.peers.get_mut(&id) {
                entry.up = true;
            }
        }
        self.ask_to_repeat(peer);
        self.join();
        self.begin_if_all_here(now);
    }

    /// A neighbour cannot be reached any more (its last lane is lost), nor can those behind it.
    pub fn handle_peer_down(&mut self, peer: GatewayId, why: &str, now: TimeNs) {
        let Some(entry) = self.peers.get_mut(&peer) else {
            return;
        };
        entry.up = false;
        let text = format!(
            "gateway {} cannot be reached ({why}); contributions intact, the gateways go on \
             trying and the next epoch begins when it is back",
            self.gateway_name(peer)
        );
        self.end_epoch(Failure::new(FailureCode::RegionLost, text), Some(peer), now);
        for id in self.routes.reached_through(peer) {
            if let Some(entry) = self.peers.get_mut(&id) {
                *entry = Peer::default();
            }
        }
    }

    /// A lane to a neighbour that messages went over, of either side, was lost while others live:
    /// repeat everything that it may have taken with it. All of it is facts that only grow, so
    /// repeating is harmless.
    pub fn handle_lane_lost(&mut self, peer: GatewayId) {
        let through: Vec<GatewayId> = self.routes.reached_through(peer).collect();
        through.into_iter().for_each(|id| self.repeat_to(id));
        self.ask_to_repeat(peer);
        if self.routes.is_partial() {
            // The lane may have taken a Repeat with it.
            self.core.actions.push_back(Action::Message { to: peer, message: Message::Repeat });
        }
    }

    /// What others sent through here to a neighbour may be lost; they cannot know.
    fn ask_to_repeat(&mut self, neighbour: GatewayId) {
        if !self.routes.is_partial() {
            return;
        }
        let behind: BTreeSet<GatewayId> = self.routes.reached_through(neighbour).collect();
        for (to, _) in self.peers.iter().filter(|(id, peer)| peer.up && !behind.contains(id)) {
            self.core.actions.push_back(Action::Message { to: *to, message: Message::Repeat });
        }
    }

    /// Somewhere on the way to peers that we have no connection to messages were lost.
    pub(super) fn on_repeat(&mut self) {
        let distant = self.peers.keys().filter(|id| !self.routes.is_direct(**id));
        let distant: Vec<GatewayId> = distant.copied().collect();
        distant.into_iter().for_each(|id| self.repeat_to(id));
    }

    fn repeat_to(&mut self, peer: GatewayId) {
        let Some(entry) = self.peers.get(&peer) else {
            return;
        };
        if !entry.up {
            return;
        }
        let mut messages = Vec::new();
        if let Some(active) = &self.active {
            if self.config.me == FIRST {
                messages.push(self.begin_message(active));
            }
            messages.push(self.ready_message(peer));
            messages.extend(self.facts_for(peer));
        } else {
            messages.extend(self.end_message());
        }
        for message in messages {
            self.core.actions.push_back(Action::Message { to: peer, message });
        }
        if peer == FIRST {
            self.join();
        }
    }

    /// This gateway is shutting down: what is under way fails everywhere.
    pub fn handle_shutdown(&mut self, now: TimeNs) {
        let text = format!("gateway {} is shutting down", self.gateway_name(self.config.me));
        self.end_epoch(Failure::new(FailureCode::ShuttingDown, text), None, now);
    }

    pub(super) fn on_join(
        &mut self,
        from: GatewayId,
        join: Join,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        if self.config.me != FIRST {
            return Err(PeerError::NotYours("join to a gateway that is not the first"));
        }
        let Join { boot, last, next, .. } = join;
        countable(last, next)?;
        if let Some(active) = &self.active {
            let known = active.boots.get(usize::from(from.0)) == Some(&boot);
            if known && last < self.epoch {
                // It asked before it heard of this epoch: tell it again.
                let message = self.begin_message(active);
                self.core.actions.push_back(Action::Message { to: from, message });
                return Ok(());
            }
            let text = format!("gateway {} left the epoch", self.gateway_name(from));
            self.end_epoch(Failure::new(FailureCode::EpochEnded, text), Some(from), now);
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.joined = Some(join);
        }
        self.begin_if_all_here(now);
        Ok(())
    }

    pub(super) fn on_begin(
        &mut self,
        from: GatewayId,
        start: EpochStart,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        if from != FIRST {
            return Err(PeerError::NotYours("begin"));
        }
        countable(start.epoch, start.next)?;
        let gateways = u16::try_from(self.config.fabric.gateways().len()).unwrap_or(u16::MAX);
        if start.boots.len() != usize::from(gateways) {
            return Err(PeerError::BadPlan("not one boot id for each gateway".to_owned()));
        }
        self.check_plan(&start.plan)?;
        let mine = start.boots[usize::from(self.config.me.0)];
        let gone = self.draining.is_some();
        if start.epoch <= self.epoch || mine != self.config.boot || gone {
            return Ok(());
        }
        let text = format!("epoch {} began", start.epoch);
        self.end_epoch(Failure::new(FailureCode::EpochEnded, text), Some(from), now);
        if start.next < self.next {
            // Begun on an old request of ours. No number is given out twice: something may still
            // go by it here. So this epoch ends before it began, and the next one is asked for.
            self.epoch = start.epoch;
            self.join();
            return Ok(());
        }
        self.enter(start, now);
        Ok(())
    }

    /// Proves a plan, that it is about as fine as ours, and that its trees have edges only where
    /// connections are.
    pub(super) fn check_plan(&self, plan: &Plan) -> Result<(), PeerError> {
        let fabric = &self.config.fabric;
        plan.is_near(&self.config.plan, fabric).map_err(PeerError::BadPlan)?;
        let gateways = u16::try_from(fabric.gateways().len()).unwrap_or(u16::MAX);
        plan.prove(gateways).map_err(|fault| PeerError::BadPlan(fault.to_string()))?;
        let apart = |(one, other): &(GatewayId, GatewayId)| !fabric.connects(*one, *other);
        match plan.trees.iter().flat_map(Tree::edges).find(apart) {
            None => Ok(()),
            Some((one, other)) => Err(PeerError::BadPlan(format!(
                "an edge between gateways {one} and {other}, which no link joins"
            ))),
        }
    }

    /// The news that this gateway has left the last epoch.
    fn end_message(&self) -> Option<Message> {
        let failure = self.ended.clone()?;
        Some(Message::End { epoch: self.epoch, failure })
    }

    pub(super) fn on_ready(
        &mut self,
        from: GatewayId,
        (epoch, link): (Epoch, Option<LinkState>),
        now: TimeNs,
    ) {
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        // Said again, it means that a lane was lost over there, and with it perhaps the answers
        // to what we said last.
        if epoch < peer.ready {
            return;
        }
        (peer.ready, peer.link) = (epoch, link);
        if epoch != self.epoch {
            return;
        }
        if self.active.is_none() {
            // It entered an epoch that we have left since: it was not ready to hear so then.
            if let Some(message) = self.end_message() {
                self.core.actions.push_back(Action::Message { to: from, message });
            }
            return;
        }
        for message in self.facts_for(from) {
            self.core.actions.push_back(Action::Message { to: from, message });
        }
        self.send_everywhere(now);
    }

    /// Everything a peer should know of this epoch's collectives.
    fn facts_for(&self, peer: GatewayId) -> Vec<Message> {
        let live = self.live.iter();
        let live = live.flat_map(|(sequence, c)| c.facts_for(peer, *sequence, &self.ranks));
        let failed = self.failures.iter().map(|(sequence, failure)| {
            let (epoch, failure) = (self.epoch, failure.clone());
            Message::Fail { epoch, sequence: *sequence, failure }
        });
        let commits = self.commit_facts_for(peer).into_iter();
        let others = self.drain_fact().into_iter().chain(self.change_facts_for(peer));
        let others = others.chain(self.link_facts_for(peer));
        live.chain(failed).chain(commits).chain(others).collect()
    }

    /// Leaves the epoch: what is in flight fails, contributions intact.
    pub(super) fn end_epoch(&mut self, failure: Failure, except: Option<GatewayId>, now: TimeNs) {
        if self.active.is_none() {
            return;
        }
        for to in self.ready_peers().into_iter().filter(|to| Some(*to) != except) {
            let message = Message::End { epoch: self.epoch, failure: failure.clone() };
            self.core.actions.push_back(Action::Message { to, message });
        }
        let epoch = self.epoch;
        self.fail_commits(|_| true, &failure);
        self.active = None;
        for peer in self.peers.values_mut() {
            let Peer { up, ready, link, .. } = *peer;
            *peer = Peer { up, ready, link, ..Peer::default() };
        }
        let live: Vec<Sequence> = self.live.keys().copied().collect();
        for sequence in live {
            self.abandon(sequence, &failure, now);
        }
        for rank in self.ranks.values_mut() {
            rank.posted = false;
        }
        // What still writes goes by its number until it stops; the next epoch begins above.
        if let Some(last) = self.live.keys().next_back() {
            self.next = self.next.max(Sequence(last.0 + 1));
        }
        self.ended = Some(failure.clone());
        self.core.actions.push_back(Action::Note(Note::EpochEnded { epoch, failure }));
        self.join();
        self.begin_if_all_here(now);
    }

    /// A peer failed what is done here: the ranks no longer agree on which collective is next,
    /// and what the peer has not receipted it never will.
    pub(super) fn part_over(&mut self, peer: GatewayId, sequence: Sequence, now: TimeNs) {
        let text = format!(
            "collective {sequence} failed on gateway {}, but is complete on gateway {}",
            self.gateway_name(peer),
            self.gateway_name(self.config.me)
        );
        self.end_epoch(Failure::new(FailureCode::EpochEnded, text), None, now);
    }

    /// Fails what is under way. A collective whose result is ready stays good: only its
    /// receipts are missing, and none will come any more.
    fn abandon(&mut self, sequence: Sequence, failure: &Failure, now: TimeNs) {
        match self.live.get(&sequence).map(|collective| collective.phase) {
            Some(Phase::Ready) => {
                self.cancel(sequence);
                if let Some(collective) = self.live.get_mut(&sequence) {
                    collective.phase = Phase::Leaving;
                }
                self.settle(sequence, now);
            }
            Some(Phase::Failed) => self.forget_if_told(sequence),
            Some(Phase::Leaving) | None => {}
            Some(Phase::Waiting | Phase::Running | Phase::Failing) => {
                self.fail(sequence, failure.clone(), None, now)
            }
        }
    }

    fn join(&mut self) {
        if self.active.is_some() || self.draining.is_some() || self.config.me == FIRST {
            return;
        }
        if self.peers.values().all(|peer| peer.up) {
            let (boot, last, next) = (self.config.boot, self.epoch, self.next);
            let message = Message::Join { boot, last, next, committed: self.committed };
            self.core.actions.push_back(Action::Message { to: FIRST, message });
        }
    }

    fn begin_if_all_here(&mut self, now: TimeNs) {
        if self.config.me != FIRST || self.active.is_some() || self.draining.is_some() {
            return;
        }
        let mut boots = vec![self.config.boot];
        let (mut last, mut next, mut committed) = (self.epoch, self.next, self.committed);
        for peer in self.peers.values() {
            let Some(join) = peer.joined.filter(|_| peer.up) else { return };
            boots.push(join.boot);
            last = last.max(join.last);
            next = next.max(join.next);
            committed = committed.max(join.committed);
        }
        let (epoch, plan) = (Epoch(last.0 + 1), self.config.plan.clone());
        self.enter(EpochStart { epoch, next, boots, plan, committed }, now);
    }

    fn enter(&mut self, start: EpochStart, now: TimeNs) {
        let EpochStart { epoch, next, boots, plan, committed } = start;
        self.committed = self.committed.max(committed);
        let committed = self.committed.map(|committed| committed.step);
        let roles = plan.roles(self.config.me);
        let relayed = plan::relay_bytes(&self.config.fabric, self.config.me, &plan);
        self.epoch = epoch;
        self.next = next;
        self.failures.clear();
        self.finished.clear();
        self.links.forget_others(self.config.me);
        self.ended = None;
        self.core.progress = now;
        self.core.actions.push_back(Action::Note(Note::EpochBegan {
            epoch,
            next,
            algorithm: plan.algorithm.name(),
            reason: plan.reason.clone(),
            plan_hash: plan.hash(),
        }));
        let (done, closed) = (Spans::default(), None);
        let (before, changing, held) = (vec![], None, None);
        let active = Active {
            plan,
            roles,
            relayed,
            before,
            changes: 0,
            changing,
            held,
            boots,
            first: next,
            done,
            closed,
        };
        let begin = (self.config.me == FIRST).then(|| self.begin_message(&active));
        self.active = Some(active);
        for (to, peer) in self.peers.iter().filter(|(_, peer)| peer.up) {
            debug_assert!(peer.early_out.is_empty(), "credit starts whole");
            let ready = self.ready_message(*to);
            for message in begin.clone().into_iter().chain([ready]) {
                self.core.actions.push_back(Action::Message { to: *to, message });
            }
        }
        for (rank, local) in &mut self.ranks {
            let attached = local.attached;
            *local = LocalRank { attached, next, covered: next, ..LocalRank::default() };
            if attached {
                let event = RankEvent::EpochBegan { epoch, next, committed };
                self.core.actions.push_back(Action::Notify { rank: *rank, event });
            }
        }
    }

    fn ready_message(&self, to: GatewayId) -> Message {
        Message::Ready { epoch: self.epoch, link: self.link_to(to).map(LinkState::of) }
    }

    fn begin_message(&self, active: &Active) -> Message {
        let (boots, plan) = (active.boots.clone(), active.plan.clone());
        let (epoch, next, committed) = (self.epoch, active.first, self.committed);
        Message::Begin { epoch, next, boots, plan, committed }
    }
}

fn countable(epoch: Epoch, next: Sequence) -> Result<(), PeerError> {
    if epoch.0 >= NUMBERS_MAX || next.0 >= NUMBERS_MAX {
        return Err(PeerError::Uncountable { epoch, next });
    }
    Ok(())
}
