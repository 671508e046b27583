//! Commits: a step is confirmed once every gateway has said that all its ranks have the results
//! of the step's collectives. What gateways say of it are facts that only grow.

use super::*;
use crate::post::{Commit, Committed};
use std::ops::Range;

/// Commits of one rank that may wait.
pub const COMMITS_MAX: usize = 64;
/// Questions of one peer that may wait.
const ASKS_MAX: usize = 1024;

/// A commit that waits.
#[derive(Debug)]
pub(super) struct Pending {
    pub step: Step,
    /// The collectives that the rank posted since its last commit.
    pub range: Range<Sequence>,
    pub begun: TimeNs,
    pub expiry: TimeNs,
}

impl Session {
    /// A rank asks to hear when all that it posted since its last commit is complete in every
    /// region. The outcome reaches it as [`RankEvent::Committed`] or
    /// [`RankEvent::CommitFailed`].
    pub fn handle_commit(&mut self, rank: RankId, commit: Commit, now: TimeNs) {
        let Commit { epoch, step, timeout } = commit;
        let Some(local) = self.ranks.get_mut(&rank) else { return };
        if self.active.is_none() || epoch != self.epoch {
            let text = format!(
                "step {step}: epoch {epoch} is over; the next one says whether the step is \
                 complete in every region"
            );
            let failure = Failure::new(FailureCode::EpochEnded, text);
            return self.core.refuse_commit(rank, step, failure);
        }
        let twice = local.commits.iter().any(|pending| pending.step == step);
        if twice || local.commits.len() >= COMMITS_MAX {
            let text = if twice {
                format!("step {step} is being committed already")
            } else {
                format!("step {step}: {COMMITS_MAX} commits of rank {rank} wait already")
            };
            let failure = Failure::new(FailureCode::BadPost, text);
            return self.core.refuse_commit(rank, step, failure);
        }
        let range = std::mem::replace(&mut local.covered, local.next)..local.next;
        local.commits_here = true;
        let failed = self.failures.range(range.clone()).next();
        if let Some(cause) = failed.map(|(_, failure)| failure.clone()) {
            let failure = self.commit_failure(step, &range, &cause);
            return self.core.refuse_commit(rank, step, failure);
        }
        let pending = Pending { step, range: range.clone(), begun: now, expiry: now + timeout };
        if let Some(local) = self.ranks.get_mut(&rank) {
            local.commits.push_back(pending);
        }
        let ready = self.ready_peers();
        for peer in &ready {
            self.ask(*peer, &range);
        }
        if self.has_done(&range) {
            ready.iter().for_each(|peer| self.tell_done(*peer, &range));
        }
        self.confirm();
    }

    /// All local ranks have the result of a collective.
    pub(super) fn note_done(&mut self, sequence: Sequence) {
        let Some(active) = &mut self.active else { return };
        active.done.insert(sequence..Sequence(sequence.0 + 1));
        let mine = self.ranks.values().flat_map(|rank| &rank.commits);
        let mine: Vec<_> = mine.map(|pending| pending.range.clone()).collect();
        for peer in self.ready_peers() {
            let asked = self.peers.get(&peer).map(|peer| peer.asked.clone()).unwrap_or_default();
            for (from, below) in asked.into_iter().chain(mine.iter().map(|r| (r.start, r.end))) {
                if (from..below).contains(&sequence) && self.has_done(&(from..below)) {
                    self.tell_done(peer, &(from..below));
                }
            }
        }
        self.confirm();
    }

    pub(super) fn on_done(
        &mut self,
        from: GatewayId,
        range: Range<Sequence>,
    ) -> Result<(), PeerError> {
        self.check_ahead(range.end)?;
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.done.insert(range);
        }
        self.confirm();
        Ok(())
    }

    pub(super) fn on_ask(
        &mut self,
        from: GatewayId,
        range: Range<Sequence>,
    ) -> Result<(), PeerError> {
        self.check_ahead(range.end)?;
        if self.has_done(&range) {
            self.tell_done(from, &range);
        } else if let Some(peer) = self.peers.get_mut(&from) {
            peer.asked.insert((range.start, range.end));
            if peer.asked.len() > ASKS_MAX {
                return Err(PeerError::TooManyAsks { limit: ASKS_MAX });
            }
        }
        Ok(())
    }

    /// What a peer should know of commits.
    pub(super) fn commit_facts_for(&self, peer: GatewayId) -> Vec<Message> {
        let (Some(active), Some(peer)) = (&self.active, self.peers.get(&peer)) else {
            return vec![];
        };
        let epoch = self.epoch;
        let done = active.done.iter();
        let done =
            done.map(|Range { start, end }| Message::Done { epoch, from: start, below: end });
        let pending = self.ranks.values().flat_map(|rank| &rank.commits);
        let ask = pending.filter(|pending| !peer.done.contains(&pending.range)).map(|pending| {
            Message::Ask { epoch, from: pending.range.start, below: pending.range.end }
        });
        done.chain(ask).collect()
    }

    /// A collective failed: so do the commits that cover it.
    pub(super) fn fail_commits_of(&mut self, sequence: Sequence, cause: &Failure) {
        self.fail_commits(|pending| pending.range.contains(&sequence), cause);
        for peer in self.peers.values_mut() {
            peer.asked.retain(|(from, below)| !(*from..*below).contains(&sequence));
        }
    }

    /// Fails some of the commits that wait.
    pub(super) fn fail_commits(&mut self, which: impl Fn(&Pending) -> bool, cause: &Failure) {
        let ranks: Vec<RankId> = self.ranks.keys().copied().collect();
        for rank in ranks {
            let Some(local) = self.ranks.get_mut(&rank) else { continue };
            let (failed, left) =
                std::mem::take(&mut local.commits).into_iter().partition(|pending| which(pending));
            local.commits = left;
            let failed: VecDeque<Pending> = failed;
            for pending in failed {
                let failure = self.commit_failure(pending.step, &pending.range, cause);
                self.core.refuse_commit(rank, pending.step, failure);
            }
        }
        // The next in line may have waited for one of these only.
        self.confirm();
    }

    /// Fails commits whose time is up.
    pub(super) fn expire_commits(&mut self, now: TimeNs) {
        let cause = Failure::new(FailureCode::TimedOut, "the timeout passed");
        self.fail_commits(|pending| now >= pending.expiry, &cause);
    }

    pub(super) fn commit_expiry(&self) -> Option<TimeNs> {
        self.ranks.values().flat_map(|rank| &rank.commits).map(|pending| pending.expiry).min()
    }

    /// Gateways that have not said that they have these collectives.
    pub(super) fn uncommitted(&self, range: &Range<Sequence>) -> Vec<GatewayId> {
        let gateways = self.config.fabric.gateway_ids();
        gateways.filter(|id| self.known_done(*id, range.start) < range.end).collect()
    }

    fn confirm(&mut self) {
        let Some(active) = &self.active else { return };
        for (rank, local) in &mut self.ranks {
            while let Some(Pending { step, range, .. }) = local.commits.front() {
                let everywhere = active.done.contains(range)
                    && (mutant::is(Mutant::ConfirmAlone)
                        || self.peers.values().all(|peer| peer.done.contains(range)));
                if !everywhere {
                    break;
                }
                let committed = Committed { step: *step, below: range.end };
                self.committed = self.committed.max(Some(committed));
                let event = RankEvent::Committed { step: *step };
                self.core.actions.push_back(Action::Notify { rank: *rank, event });
                local.commits.pop_front();
            }
        }
    }

    fn ask(&mut self, to: GatewayId, range: &Range<Sequence>) {
        let Some(peer) = self.peers.get_mut(&to) else { return };
        let news = peer.ask_sent.replace((range.start, range.end)) != peer.ask_sent;
        if news && !peer.done.contains(range) {
            let message = Message::Ask { epoch: self.epoch, from: range.start, below: range.end };
            self.core.actions.push_back(Action::Message { to, message });
        }
    }

    fn tell_done(&mut self, to: GatewayId, range: &Range<Sequence>) {
        let Some(peer) = self.peers.get_mut(&to) else { return };
        peer.asked.remove(&(range.start, range.end));
        let news = peer.done_sent.replace((range.start, range.end)) != peer.done_sent;
        if news && !range.is_empty() {
            let message = Message::Done { epoch: self.epoch, from: range.start, below: range.end };
            self.core.actions.push_back(Action::Message { to, message });
        }
    }

    fn has_done(&self, range: &Range<Sequence>) -> bool {
        self.active.as_ref().is_some_and(|active| active.done.contains(range))
    }

    /// The first collective from `start` on that a gateway is not known to have.
    fn known_done(&self, gateway: GatewayId, start: Sequence) -> Sequence {
        let mine = self.active.as_ref().map(|active| &active.done);
        let done = if gateway == self.config.me {
            mine
        } else {
            self.peers.get(&gateway).map(|peer| &peer.done)
        };
        done.map_or(start, |done| done.known_from(start))
    }

    fn commit_failure(&self, step: Step, range: &Range<Sequence>, cause: &Failure) -> Failure {
        let mut text = format!("step {step} is not known to be complete in every region: ");
        text += &cause.text;
        if range.is_empty() {
            return Failure::new(cause.code, text + ". It has no collectives of its own");
        }
        text += &format!(". Of its collectives {} to {}", range.start, range.end.0 - 1);
        let mut regions: BTreeMap<Sequence, Vec<&str>> = BTreeMap::new();
        for region in self.config.fabric.regions() {
            let known = region.gateways.clone();
            let known = known.map(|id| self.known_done(GatewayId(id), range.start)).min();
            let below = known.unwrap_or(range.start).clamp(range.start, range.end);
            regions.entry(below).or_default().push(&region.name);
        }
        // What is missing where, first: a text has an end.
        for (below, names) in regions {
            let known = match below {
                below if below == range.end => "all".to_owned(),
                below if below > range.start => format!("at least those below {below}"),
                _ => "none as far as is known".to_owned(),
            };
            text += &format!("; {known}: region {}", names.join(", region "));
        }
        Failure::new(cause.code, text)
    }

    fn check_ahead(&self, below: Sequence) -> Result<(), PeerError> {
        if below.0 > self.oldest().0 + MAX_AHEAD {
            return Err(PeerError::TooFarAhead { sequence: below, limit: MAX_AHEAD });
        }
        Ok(())
    }
}

impl Core {
    fn refuse_commit(&mut self, rank: RankId, step: Step, failure: Failure) {
        let event = RankEvent::CommitFailed { step, failure };
        self.actions.push_back(Action::Notify { rank, event });
    }
}
