//! Commits: a step is confirmed when every gateway has reported that all its ranks have the
//! results of the step's collectives. These reports are facts that only grow.

use super::collectives::Collectives;
use super::local_rank::LocalRank;
use super::overreach;
use super::sequence_ranges::SequenceRanges;
use crate::ids::{GatewayId, RankId, Sequence, Step};
use crate::mutant::{self, Mutant};
use crate::post::{Commit, Committed, EpochId, Failure, FailureCode, PreparedSteps, RankEvent};
use crate::session::action::PeerError;
use crate::session::action_queue::ActionQueue;
use crate::session::context::Context;
use crate::session::epoch::epoch_membership::EpochStart;
use crate::session::epoch::epoch_state::EpochState;
use crate::session::in_doubt::commit_steps::{CommitStepsByEnd, NamedStep, RankCommit};
use crate::session::local_gateway::LocalGateway;
use crate::wire::Message;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use units::TimeNs;

/// 64 commits (steps that a rank has reported as done): at most so many of one rank wait until all
/// regions have confirmed them. One more fails, since such a rank ignores answers. The limit is
/// chosen.
pub const COMMITS_MAX: usize = 64;
/// 1,024 questions of one peer about commits (message Ask): the most that may wait for an answer.
/// One more ends the job's epoch. The limit of memory is chosen.
/// Tested by `too_many_commit_questions_end_the_epoch_alone`.
const COMMIT_QUESTIONS_MAX: usize = 1024;

/// The commits of all local ranks, and the reports of all gateways.
#[derive(Debug)]
pub(in crate::session) struct Commits {
    ranks: BTreeMap<RankId, RankCommits>,
    peers: BTreeMap<GatewayId, PeerReports>,
    /// Collectives whose results all local ranks have, in this epoch.
    done: SequenceRanges,
    /// The last step known to be complete in every region, in this epoch or before.
    committed: Option<Committed>,
    /// The last such step as the epoch began.
    begun_with: Option<Committed>,
    steps: CommitStepsByEnd,
    /// The steps of the last epoch here that all local ranks have the results of.
    prepared: PreparedSteps,
}

/// The answer to a rank's commit.
#[derive(Debug)]
pub(in crate::session) enum HandledCommit {
    /// It waits for the other ranks, or is confirmed.
    Accepted,
    /// It has failed, and the rank heard why.
    Refused,
    /// Another rank commits the same collectives as another step, which ends the epoch.
    Disagrees(Failure),
}

/// The commits of one local rank.
#[derive(Debug, Default)]
struct RankCommits {
    /// The first collective that no commit of this rank covers.
    covered: Sequence,
    /// Whether the rank committed anything in this epoch.
    commits_here: bool,
    /// Commits that wait, in order.
    pending: VecDeque<PendingCommit>,
}

/// A commit that waits.
#[derive(Debug)]
pub(in crate::session) struct PendingCommit {
    pub step: Step,
    /// The collectives that the rank posted since its last commit.
    pub range: Range<Sequence>,
    pub begun: TimeNs,
    pub expiry: TimeNs,
}

/// Reports from and to one peer.
#[derive(Debug, Default)]
struct PeerReports {
    /// Collectives whose results all ranks of the peer have, as far as it has reported.
    done: SequenceRanges,
    /// The peer's questions that wait for an answer.
    asked: BTreeSet<(Sequence, Sequence)>,
    /// The last question and the last answer that were sent to the peer.
    ask_sent: Option<(Sequence, Sequence)>,
    done_sent: Option<(Sequence, Sequence)>,
}

impl Commits {
    /// Creates the table without commits, for the ranks and peers of the local gateway.
    pub fn new(local: &LocalGateway) -> Self {
        let fabric = local.fabric();
        let ranks = fabric.gateway(local.id()).ranks.clone();
        let others = fabric.gateway_ids().filter(|id| *id != local.id());
        Self {
            ranks: ranks.map(|rank| (RankId(rank), RankCommits::default())).collect(),
            peers: others.map(|id| (id, PeerReports::default())).collect(),
            done: SequenceRanges::default(),
            committed: None,
            begun_with: None,
            prepared: PreparedSteps::default(),
            steps: CommitStepsByEnd::default(),
        }
    }

    /// Returns the last step known to be complete in every region, in any epoch; `None` before the
    /// first.
    pub fn committed(&self) -> Option<Committed> {
        self.committed
    }

    /// Returns the last step that was known to be complete in every region as the epoch began.
    pub fn begun_with(&self) -> Option<Committed> {
        self.begun_with
    }

    /// Returns the steps of the last epoch here that all local ranks have the results of.
    pub fn prepared(&self) -> &PreparedSteps {
        &self.prepared
    }

    /// Records how far another session of the job has come, in an epoch of its own: the last step that
    /// is known to be complete in every region, and the steps prepared since. Later ones stay.
    pub fn raise_progress(&mut self, committed: Option<Committed>, prepared: PreparedSteps) {
        self.committed = self.committed.max(committed);
        if prepared.epoch > self.prepared.epoch {
            self.prepared = prepared;
        }
    }

    /// Whether local ranks have results of this epoch.
    pub fn has_results(&self) -> bool {
        self.done.iter().next().is_some()
    }

    /// Begins a rank's commit of all collectives that the rank posted since its previous commit.
    /// The answer reaches the rank as [`RankEvent::Committed`] or [`RankEvent::CommitFailed`]. A
    /// commit fails here if its step is being committed, [`COMMITS_MAX`] wait, or a collective
    /// failed. Its epoch is under way. The epoch must end if two ranks commit the same collectives as
    /// different steps.
    pub fn handle_commit(
        &mut self,
        rank: RankId,
        commit: Commit,
        collectives: &Collectives,
        cx: &mut Context<'_>,
    ) -> HandledCommit {
        let Commit { step, timeout, .. } = commit;
        let (Some(posts), Some(local)) = (collectives.local_rank(rank), self.ranks.get_mut(&rank))
        else {
            return HandledCommit::Refused;
        };
        let twice = local.pending.iter().any(|pending| pending.step == step);
        if twice || local.pending.len() >= COMMITS_MAX {
            let text = if twice {
                format!("step {step} is being committed already")
            } else {
                format!("step {step}: {COMMITS_MAX} commits of rank {rank} wait already")
            };
            refuse_commit(rank, step, Failure::new(FailureCode::BadPost, text), cx.actions);
            return HandledCommit::Refused;
        }
        let range = std::mem::replace(&mut local.covered, posts.next)..posts.next;
        local.commits_here = true;
        let mut failed = collectives.failures().range(range.clone());
        if let Some((_, cause)) = failed.next() {
            let failure = self.commit_failure(step, &range, cause, cx.epoch.local());
            refuse_commit(rank, step, failure, cx.actions);
            return HandledCommit::Refused;
        }
        let (begun, expiry) = (cx.now, cx.now + timeout);
        local.pending.push_back(PendingCommit { step, range: range.clone(), begun, expiry });
        let commit = RankCommit { rank, step, range };
        if let Some(failure) = self.steps.compare(&commit, cx.epoch.local()) {
            return HandledCommit::Disagrees(failure);
        }
        let ready = cx.epoch.ready_peers();
        for peer in &ready {
            self.send_ask(*peer, &commit, cx);
        }
        if self.done.contains(&commit.range) {
            ready.iter().for_each(|peer| self.send_done(*peer, &commit.range, cx));
        }
        self.confirm_complete(cx);
        HandledCommit::Accepted
    }

    /// Drops the waiting commits of a detached rank without an answer.
    pub fn drop_commits_of_rank(&mut self, rank: RankId) {
        if let Some(local) = self.ranks.get_mut(&rank) {
            local.pending.clear();
        }
    }

    /// Records that all local ranks have a collective's result, unless it is a send. Sends Done for
    /// each asked or committed range with this collective that is complete now, and confirms
    /// commits. Does nothing outside an epoch.
    pub fn note_collective_done(&mut self, sequence: Sequence, cx: &mut Context<'_>) {
        // No step has sends: they are of two ranks.
        if !cx.epoch.is_active() || sequence.series().is_some() {
            return;
        }
        self.done.insert(sequence..sequence.following());
        let mine = self.ranks.values().flat_map(|rank| &rank.pending);
        let mine: Vec<_> = mine.map(|pending| (pending.range.start, pending.range.end)).collect();
        for peer in cx.epoch.ready_peers() {
            let asked = self.peers.get(&peer).map(|peer| peer.asked.clone()).unwrap_or_default();
            for (from, below) in asked.into_iter().chain(mine.iter().copied()) {
                if (from..below).contains(&sequence) && self.done.contains(&(from..below)) {
                    self.send_done(peer, &(from..below), cx);
                }
            }
        }
        self.confirm_complete(cx);
    }

    /// Records a peer's report (Done) that all its ranks have the results of a range of
    /// collectives. `oldest` is the first collective that some local rank has not posted.
    ///
    /// # Errors
    /// [`PeerError::TooFarAhead`]: the range ends too far beyond `oldest`.
    pub fn handle_done(
        &mut self,
        from: GatewayId,
        range: Range<Sequence>,
        oldest: Sequence,
        cx: &mut Context<'_>,
    ) -> Result<(), PeerError> {
        overreach::check_overreach(range.end, oldest)?;
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.done.insert(range);
        }
        self.confirm_complete(cx);
        Ok(())
    }

    /// Answers a peer's question (Ask) whether all local ranks have a range of collectives, now or
    /// once they do. `oldest` is the first collective that some local rank has not posted. Returns
    /// the failure that ends the epoch if another rank commits the same collectives as another step.
    ///
    /// # Errors
    /// [`PeerError::TooFarAhead`] and [`PeerError::TooManyAsks`]; [`PeerError::NotYours`]: the rank
    /// is of another gateway.
    pub fn handle_ask(
        &mut self,
        from: GatewayId,
        commit: RankCommit,
        oldest: Sequence,
        cx: &mut Context<'_>,
    ) -> Result<Option<Failure>, PeerError> {
        overreach::check_overreach(commit.range.end, oldest)?;
        let local = cx.epoch.local();
        if !local.fabric().gateway(from).ranks.contains(&commit.rank.0) {
            return Err(PeerError::NotYours("commit of another gateway's rank"));
        }
        let disagreement = self.steps.compare(&commit, local);
        if disagreement.is_some() {
            return Ok(disagreement);
        }
        let range = commit.range;
        if self.done.contains(&range) {
            self.send_done(from, &range, cx);
        } else if let Some(peer) = self.peers.get_mut(&from) {
            peer.asked.insert((range.start, range.end));
            if peer.asked.len() > COMMIT_QUESTIONS_MAX {
                return Err(PeerError::TooManyAsks { limit: COMMIT_QUESTIONS_MAX });
            }
        }
        Ok(None)
    }

    /// Builds the Done and Ask messages that bring a peer up to date about commits; none outside an
    /// epoch.
    pub fn catch_up_messages(&self, peer: GatewayId, epoch: &EpochState) -> Vec<Message> {
        if !epoch.is_active() || !self.peers.contains_key(&peer) {
            return vec![];
        }
        let epoch = epoch.number();
        // A gateway that is told Done confirms the step, and a step that nobody has named here is not
        // prepared. So such results are told to those that ask.
        let named = self.steps.last_end();
        let done = self.done.iter().map(|Range { start, end }| start..end.min(named));
        let done = done.filter(|range| !range.is_empty());
        let done =
            done.map(|Range { start, end }| Message::Done { epoch, from: start, below: end });
        let pending = self.pending().filter(|(_, commit)| !commit.range.is_empty());
        let ask = pending.map(|(rank, PendingCommit { step, range, .. })| Message::Ask {
            epoch,
            from: range.start,
            below: range.end,
            rank,
            step: *step,
        });
        done.chain(ask).collect()
    }

    /// Fails the waiting commits that cover a failed collective, and drops peers' questions about
    /// that collective.
    pub fn fail_commits_covering(
        &mut self,
        sequence: Sequence,
        cause: &Failure,
        cx: &mut Context<'_>,
    ) {
        self.fail_commits(|pending| pending.range.contains(&sequence), cause, cx);
        for peer in self.peers.values_mut() {
            peer.asked.retain(|(from, below)| !(*from..*below).contains(&sequence));
        }
    }

    /// Records which steps of an epoch that ends all local ranks have the results of. A step whose
    /// predecessor is not complete here is none of them: collectives may end out of order, and a step
    /// that counts as complete takes all before it along.
    pub fn record_prepared(&mut self, collectives: &Collectives, epoch: &EpochState) {
        let first = epoch.first_collective().unwrap_or_default();
        let mut below = self.committed.map_or(first, |committed| committed.below.max(first));
        // A collective that failed holds up nothing, since its ranks have heard so.
        loop {
            below = self.done.first_missing_from(below);
            if !collectives.failures().contains_key(&below) {
                break;
            }
            below = below.following();
        }
        let steps = self.steps.prepared(&self.done, self.committed, below);
        self.prepared = PreparedSteps { epoch: epoch.id(), steps };
    }

    /// Removes and returns the first waiting commits of a rank, of steps whose results all local ranks have.
    pub fn take_prepared_commits(&mut self, rank: RankId) -> Vec<PendingCommit> {
        let Some(local) = self.ranks.get_mut(&rank) else { return vec![] };
        let is_prepared = |commit: &&PendingCommit| self.done.contains(&commit.range);
        let prepared = local.pending.iter().take_while(is_prepared).count();
        local.pending.drain(..prepared).collect()
    }

    /// Returns one past the last collective that an attached rank has not committed. `None` if there is
    /// none, a commit of the rank waits, or some local rank lacks a result of these.
    pub fn uncommitted_results(&self, rank: RankId, posts: &LocalRank) -> Option<Sequence> {
        let local = self.ranks.get(&rank)?;
        let range = local.covered..posts.next;
        let has_results = !range.is_empty() && self.done.contains(&range);
        (posts.attached && local.pending.is_empty() && has_results).then_some(range.end)
    }

    /// Returns the first known commit that ends below a collective; `None` if there is none.
    pub fn step_named_below(&self, below: Sequence, local: &LocalGateway) -> Option<NamedStep> {
        self.steps.named_below(below, local)
    }

    /// Fails all waiting commits, since the epoch ends.
    pub fn fail_all(&mut self, cause: &Failure, cx: &mut Context<'_>) {
        self.fail_commits(|_| true, cause, cx);
    }

    /// Fails the waiting commits whose timeout has passed.
    pub fn fail_expired(&mut self, cx: &mut Context<'_>) {
        let cause = Failure::new(FailureCode::TimedOut, "the timeout passed");
        let now = cx.now;
        self.fail_commits(|pending| now >= pending.expiry, &cause, cx);
    }

    /// Returns the time at which the first waiting commit times out; `None` while no commit waits.
    pub fn next_expiry(&self) -> Option<TimeNs> {
        self.ranks.values().flat_map(|rank| &rank.pending).map(|pending| pending.expiry).min()
    }

    /// Fails the waiting commits that `which` selects, then confirms those that waited behind them.
    fn fail_commits(
        &mut self,
        which: impl Fn(&PendingCommit) -> bool,
        cause: &Failure,
        cx: &mut Context<'_>,
    ) {
        let ranks: Vec<RankId> = self.ranks.keys().copied().collect();
        for rank in ranks {
            let Some(local) = self.ranks.get_mut(&rank) else { continue };
            let pending = std::mem::take(&mut local.pending).into_iter();
            let (failed, left): (VecDeque<_>, VecDeque<_>) = pending.partition(&which);
            local.pending = left;
            for pending in failed {
                let failure =
                    self.commit_failure(pending.step, &pending.range, cause, cx.epoch.local());
                refuse_commit(rank, pending.step, failure, cx.actions);
            }
        }
        // The commits behind the failed ones may be complete already.
        self.confirm_complete(cx);
    }

    /// Forgets each rank's commits, for an epoch that begins. The job's last committed step becomes the
    /// later of its own and that of the epoch's start.
    pub fn begin_epoch(&mut self, epoch: EpochId, start: &EpochStart) {
        let (next, committed) = (start.next, start.committed);
        self.begun_with = committed;
        self.prepared = PreparedSteps { epoch, steps: vec![] };
        if !mutant::is_mutant_active(Mutant::KeepOwnStep) {
            self.committed = self.committed.max(committed);
        }
        for rank in self.ranks.values_mut() {
            *rank = RankCommits { covered: next, ..RankCommits::default() };
        }
    }

    /// Forgets all that ranks and peers reported or compared in the epoch that ended. Commits that
    /// wait stay.
    pub fn end_epoch(&mut self) {
        self.done = SequenceRanges::default();
        self.peers.values_mut().for_each(|peer| *peer = PeerReports::default());
        self.steps = CommitStepsByEnd::default();
    }

    /// Iterates over the commits that wait, with their ranks.
    pub fn pending(&self) -> impl Iterator<Item = (RankId, &PendingCommit)> {
        self.ranks
            .iter()
            .flat_map(|(rank, local)| local.pending.iter().map(|pending| (*rank, pending)))
    }

    /// Whether no commit waits.
    pub fn is_idle(&self) -> bool {
        self.ranks.values().all(|rank| rank.pending.is_empty())
    }

    /// Whether a drain must wait for another commit of a rank. True for an attached rank that
    /// commits in this epoch and has posted uncommitted collectives, none of which failed.
    pub fn is_commit_due(
        &self,
        rank: RankId,
        posts: &LocalRank,
        collectives: &Collectives,
    ) -> bool {
        let Some(local) = self.ranks.get(&rank) else { return false };
        let mut failed = collectives.failures().range(local.covered..posts.next);
        posts.attached
            && local.commits_here
            && local.covered < posts.next
            && failed.next().is_none()
    }

    /// Whether steps are committed in this job, as far as this gateway knows.
    pub fn has_steps(&self) -> bool {
        self.committed.is_some() || self.ranks.values().any(|rank| rank.commits_here)
    }

    /// Whether a rank has committed all collectives below `from` that it has posted or is to post.
    pub fn has_covered(&self, rank: RankId, from: Sequence) -> bool {
        self.ranks.get(&rank).is_none_or(|rank| rank.covered >= from)
    }

    /// Returns the gateways, this one included, that are not known to have the results of a whole
    /// range of collectives.
    pub fn unreported_gateways(
        &self,
        range: &Range<Sequence>,
        local: &LocalGateway,
    ) -> Vec<GatewayId> {
        let gateways = local.fabric().gateway_ids();
        gateways.filter(|id| self.first_unreported(*id, range.start, local) < range.end).collect()
    }

    /// Confirms each rank's commits in order, as far as every gateway has reported their
    /// collectives.
    fn confirm_complete(&mut self, cx: &mut Context<'_>) {
        if !cx.epoch.is_active() {
            return;
        }
        for (rank, local) in &mut self.ranks {
            while let Some(PendingCommit { step, range, .. }) = local.pending.front() {
                let everywhere = self.done.contains(range)
                    && (mutant::is_mutant_active(Mutant::ConfirmAlone)
                        || self.peers.values().all(|peer| peer.done.contains(range)));
                if !everywhere {
                    break;
                }
                let epoch = cx.epoch.id();
                let committed = Committed { step: *step, below: range.end, epoch };
                self.committed = self.committed.max(Some(committed));
                cx.actions.notify(*rank, RankEvent::Committed { step: *step });
                local.pending.pop_front();
            }
        }
    }

    /// Names a rank's commit to a peer, and asks it to report the commit's collectives, unless the
    /// last question was equal. The peer compares the step also if its report is here already.
    fn send_ask(&mut self, to: GatewayId, commit: &RankCommit, cx: &mut Context<'_>) {
        let RankCommit { rank, step, range } = commit;
        let Some(peer) = self.peers.get_mut(&to) else { return };
        let is_new = peer.ask_sent.replace((range.start, range.end)) != peer.ask_sent;
        if is_new && !range.is_empty() {
            let (epoch, from, below) = (cx.epoch.number(), range.start, range.end);
            let ask = Message::Ask { epoch, from, below, rank: *rank, step: *step };
            cx.actions.push_message(to, ask);
        }
    }

    /// Reports to a peer that all local ranks have a range of collectives, unless the last report
    /// was equal.
    fn send_done(&mut self, to: GatewayId, range: &Range<Sequence>, cx: &mut Context<'_>) {
        let Some(peer) = self.peers.get_mut(&to) else { return };
        peer.asked.remove(&(range.start, range.end));
        let is_new = peer.done_sent.replace((range.start, range.end)) != peer.done_sent;
        if is_new && !range.is_empty() {
            let (epoch, from, below) = (cx.epoch.number(), range.start, range.end);
            cx.actions.push_message(to, Message::Done { epoch, from, below });
        }
    }

    /// Returns the first collective, from `start` on, that the gateway has not reported as done.
    fn first_unreported(
        &self,
        gateway: GatewayId,
        start: Sequence,
        local: &LocalGateway,
    ) -> Sequence {
        let done = if gateway == local.id() {
            Some(&self.done)
        } else {
            self.peers.get(&gateway).map(|peer| &peer.done)
        };
        done.map_or(start, |done| done.first_missing_from(start))
    }

    /// Builds the failure of a commit, whose text names the collectives that each region is known
    /// to have.
    pub fn commit_failure(
        &self,
        step: Step,
        range: &Range<Sequence>,
        cause: &Failure,
        local: &LocalGateway,
    ) -> Failure {
        let mut text = format!("step {step} is not known to be complete in every region: ");
        text += &cause.text;
        if range.is_empty() {
            return Failure::new(cause.code, text + ". It has no collectives of its own");
        }
        text += &format!(". Of its collectives {} to {}", range.start, range.end.0 - 1);
        let mut regions: BTreeMap<Sequence, Vec<&str>> = BTreeMap::new();
        for region in local.fabric().regions() {
            let known = region.gateways.clone();
            let known =
                known.map(|id| self.first_unreported(GatewayId(id), range.start, local)).min();
            let below = known.unwrap_or(range.start).clamp(range.start, range.end);
            regions.entry(below).or_default().push(&region.name);
        }
        // Regions that lack the most come first, since a text is cut at its maximum.
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
}

/// Notifies a rank that the commit of a step failed.
fn refuse_commit(rank: RankId, step: Step, failure: Failure, actions: &mut ActionQueue) {
    actions.notify(rank, RankEvent::CommitFailed { step, failure });
}
