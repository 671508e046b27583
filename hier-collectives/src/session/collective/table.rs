//! All collectives of a group that are under way, and the local ranks that post them.

use super::overreach::MAX_AHEAD;
use super::state::{Collective, Phase};
use crate::descriptor::Descriptor;
use crate::ids::{Epoch, GatewayId, RankId, Sequence, Step};
use crate::post::{Failure, FailureCode, Post, RankEvent, Timing};
use crate::session::action::{Action, Note, PeerError};
use crate::session::action_queue::ActionQueue;
use crate::session::context::Context;
use crate::session::epoch::state::EpochState;
use crate::session::local_gateway::LocalGateway;
use crate::wire::Message;
use std::collections::BTreeMap;
use std::ops::{Range, RangeFrom};
use units::TimeNs;

/// The collectives of a group on one gateway: posts, agreement, and outcomes.
#[derive(Debug)]
pub(in crate::session) struct Collectives {
    live: BTreeMap<Sequence, Collective>,
    /// Failures of this epoch, the last [`MAX_AHEAD`], for peers that were not ready yet or whose
    /// lane lost the message.
    failures: BTreeMap<Sequence, Failure>,
    /// Collectives that this epoch completed, the last [`MAX_AHEAD`], for peers whose receipts
    /// were lost.
    finished: BTreeMap<Sequence, Descriptor>,
    ranks: BTreeMap<RankId, LocalRank>,
    /// One past the highest sequence known.
    next: Sequence,
}

/// A rank of this gateway.
#[derive(Debug, Default)]
pub(in crate::session) struct LocalRank {
    pub attached: bool,
    /// Whether it posted in this epoch.
    pub posted: bool,
    /// The sequence that it posts next.
    pub next: Sequence,
}

impl Collectives {
    /// No collective, and no rank attached.
    pub fn new(local: &LocalGateway) -> Self {
        let ranks = local.fabric().gateway(local.id()).ranks.clone();
        Self {
            live: BTreeMap::new(),
            failures: BTreeMap::new(),
            finished: BTreeMap::new(),
            ranks: ranks.map(|rank| (RankId(rank), LocalRank::default())).collect(),
            next: Sequence(0),
        }
    }

    pub fn next(&self) -> Sequence {
        self.next
    }

    pub fn get(&self, sequence: Sequence) -> Option<&Collective> {
        self.live.get(&sequence)
    }

    /// Collectives under way, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Sequence, &Collective)> {
        self.live.iter().map(|(sequence, collective)| (*sequence, collective))
    }

    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Numbers of the collectives under way, oldest first.
    pub fn sequences(&self) -> Vec<Sequence> {
        self.live.keys().copied().collect()
    }

    /// Numbers of the collectives under way in a range.
    pub fn sequences_from(&self, range: RangeFrom<Sequence>) -> Vec<Sequence> {
        self.live.range(range).map(|(sequence, _)| *sequence).collect()
    }

    /// Collectives that some local rank has not posted.
    pub fn waiting(&self) -> impl Iterator<Item = (Sequence, &Collective)> {
        self.iter().filter(|(_, collective)| collective.phase == Phase::Waiting)
    }

    /// Collectives of which not all ranks have been notified.
    pub fn unfinished(&self) -> impl Iterator<Item = Sequence> {
        let unfinished = self.iter().filter(|(_, c)| c.phase != Phase::Failed);
        unfinished.map(|(sequence, _)| sequence)
    }

    pub fn ranks(&self) -> impl Iterator<Item = (RankId, &LocalRank)> {
        self.ranks.iter().map(|(rank, local)| (*rank, local))
    }

    pub fn rank(&self, rank: RankId) -> Option<&LocalRank> {
        self.ranks.get(&rank)
    }

    /// The failures of this epoch that are remembered.
    pub fn failures(&self) -> &BTreeMap<Sequence, Failure> {
        &self.failures
    }

    /// The descriptor of a collective that this epoch completed, while it is remembered.
    pub fn finished(&self, sequence: Sequence) -> Option<&Descriptor> {
        self.finished.get(&sequence)
    }

    /// The first collective that some local rank has not posted.
    pub fn oldest(&self) -> Sequence {
        self.ranks.values().map(|rank| rank.next).min().unwrap_or(self.next)
    }

    /// Whether the result of a collective is on every local rank.
    pub fn is_good(&self, sequence: Sequence) -> bool {
        let ready = |c: &Collective| c.phase == Phase::Ready;
        self.finished.contains_key(&sequence) || self.live.get(&sequence).is_some_and(ready)
    }

    /// Whether a message about a collective is of this epoch and not about one long done.
    ///
    /// # Errors
    /// [`PeerError::TooFarAhead`].
    pub fn admits(
        &self,
        epoch: Epoch,
        sequence: Sequence,
        current: &EpochState,
    ) -> Result<bool, PeerError> {
        let of_another = |c: &Collective| !current.is_current(c.epoch);
        let is_finished = sequence < self.oldest() && !self.live.contains_key(&sequence);
        if !current.is_current(epoch)
            || is_finished
            || self.live.get(&sequence).is_some_and(of_another)
        {
            return Ok(false);
        }
        if sequence.0 >= self.oldest().0 + MAX_AHEAD {
            return Err(PeerError::TooFarAhead { sequence, limit: MAX_AHEAD });
        }
        Ok(true)
    }

    /// A collective, which begins with the first thing that is known of it.
    pub fn entry(&mut self, sequence: Sequence, epoch: Epoch) -> &mut Collective {
        self.live.entry(sequence).or_insert_with(|| Collective::new(epoch))
    }

    /// A rank attached. True when it posted in this epoch, which must end then.
    pub fn attach(&mut self, rank: RankId) -> bool {
        let Some(local) = self.ranks.get_mut(&rank) else { return false };
        local.attached = true;
        local.posted
    }

    /// A rank's socket closed. Returns the collectives that wait for it.
    pub fn detach(&mut self, rank: RankId) -> Vec<Sequence> {
        let Some(local) = self.ranks.get_mut(&rank) else { return vec![] };
        local.attached = false;
        let waiting = self.waiting().filter(|(_, c)| !c.posts.contains_key(&rank));
        waiting.map(|(sequence, _)| sequence).collect()
    }

    /// Whether a rank posts the collective that it is at.
    ///
    /// # Errors
    /// The failure that the rank is told.
    pub fn check_order(
        &self,
        rank: &LocalRank,
        post: &Post,
        epoch: &EpochState,
    ) -> Result<(), Failure> {
        if !epoch.is_current(post.epoch) {
            let text = format!(
                "epoch {} is over; wait for the next and post again, contribution intact",
                post.epoch
            );
            return Err(Failure::new(FailureCode::EpochEnded, text));
        }
        if post.sequence != rank.next {
            let text = format!("collective {} posted, {} is next", post.sequence, rank.next);
            return Err(Failure::new(FailureCode::BadPost, text));
        }
        Ok(())
    }

    /// Records a rank's post. Returns the collective's failure, if it has failed already.
    pub fn record_post(
        &mut self,
        rank: RankId,
        post: &Post,
        cx: &mut Context<'_>,
    ) -> Option<Failure> {
        let local = self.ranks.get_mut(&rank)?;
        local.next = Sequence(local.next.0 + 1);
        local.posted = true;
        self.next = self.next.max(local.next);
        let collective = self.entry(post.sequence, cx.epoch.number());
        collective.begun.get_or_insert(cx.now);
        collective.posts.insert(rank, post.weight);
        let failure = collective.failure.clone()?;
        if collective.phase == Phase::Failed {
            let (sequence, failure) = (post.sequence, failure.clone());
            cx.actions.notify(rank, RankEvent::Failed { sequence, failure });
        }
        Some(failure)
    }

    /// The posters' timeouts begin; true when all local ranks have posted.
    pub fn extend_expiry(&mut self, sequence: Sequence, expiry: TimeNs) -> bool {
        let ranks = self.ranks.len();
        let Some(collective) = self.live.get_mut(&sequence) else { return false };
        collective.expiry = Some(collective.expiry.map_or(expiry, |at| at.min(expiry)));
        collective.posts.len() == ranks
    }

    /// A peer announces a post; with `all`, the last one of its ranks.
    pub fn record_announcement(
        &mut self,
        from: GatewayId,
        sequence: Sequence,
        rank: RankId,
        all: bool,
        cx: &mut Context<'_>,
    ) {
        let theirs = cx.epoch.local().fabric().gateway(from).ranks.contains(&rank.0);
        let collective = self.entry(sequence, cx.epoch.number());
        if theirs {
            collective.announced.insert(rank);
        }
        if all {
            collective.posted.insert(from);
        }
        collective.begun.get_or_insert(cx.now);
        self.note_if_complete(sequence, cx);
    }

    /// Segments or grants of a peer show that all ranks of some gateways have posted.
    pub fn note_posted(
        &mut self,
        sequence: Sequence,
        gateways: impl IntoIterator<Item = GatewayId>,
        cx: &Context<'_>,
    ) {
        self.entry(sequence, cx.epoch.number()).posted.extend(gateways);
        self.note_if_complete(sequence, cx);
    }

    /// Records the descriptor that somebody posted; false when the collective has failed.
    ///
    /// # Errors
    /// The failure, when it differs from the first one.
    pub fn agree(
        &mut self,
        sequence: Sequence,
        rank: RankId,
        descriptor: Descriptor,
        epoch: &EpochState,
    ) -> Result<bool, Failure> {
        let collective = self.entry(sequence, epoch.number());
        let (first, agreed) = *collective.descriptor.get_or_insert((rank, descriptor));
        let Some(difference) = agreed.difference(&descriptor) else {
            return Ok(collective.failure.is_none());
        };
        // Ranks are named in order, so that all regions have the same text.
        let (low, high) = (first.min(rank), first.max(rank));
        let (left, right) = if first == low {
            (difference.left, difference.right)
        } else {
            (difference.right, difference.left)
        };
        let text = format!(
            "collective {sequence}: ranks disagree on {}: {} posted {left}, {} posted {right}; \
             contributions intact",
            difference.field,
            epoch.local().rank_name(low),
            epoch.local().rank_name(high),
        );
        Err(Failure::new(FailureCode::Disagreement, text))
    }

    /// Announces a post of a local rank to all peers in the epoch.
    pub fn announce(
        &self,
        sequence: Sequence,
        rank: RankId,
        descriptor: Descriptor,
        all: bool,
        cx: &mut Context<'_>,
    ) {
        let epoch = cx.epoch.number();
        let message = Message::Announce { epoch, sequence, rank, descriptor, all };
        cx.actions.broadcast(cx.epoch.ready_peers(), &message);
    }

    /// The failure of a collective for which a rank is gone that took part in this epoch.
    pub fn lost_rank(&self, sequence: Sequence, local: &LocalGateway) -> Option<Failure> {
        let collective = self.live.get(&sequence)?;
        let missing = self.ranks.iter().find(|(rank, local)| {
            local.posted && !local.attached && !collective.posts.contains_key(rank)
        });
        let (rank, _) = missing?;
        let text = format!(
            "collective {sequence}: {} went away before posting it; contributions intact, \
             post again once it is back",
            local.rank_name(*rank)
        );
        Some(Failure::new(FailureCode::RankLost, text))
    }

    /// Begins a collective that every local rank has posted, unless it failed or waits for a plan.
    /// Returns the descriptor and the ranks' weights.
    pub fn begin(
        &mut self,
        sequence: Sequence,
        cx: &Context<'_>,
    ) -> Option<(Descriptor, BTreeMap<RankId, f64>)> {
        let ranks = self.ranks.len();
        let collective = self.live.get_mut(&sequence)?;
        let ready = collective.failure.is_none() && collective.posts.len() >= ranks;
        if !cx.epoch.is_active() || !ready || cx.epoch.is_held(sequence) {
            return None;
        }
        let (_, descriptor) = collective.descriptor?;
        collective.phase = Phase::Running;
        collective.timing = Timing { posted: cx.now, ..Timing::default() };
        let weights = collective.posts.clone();
        self.note_if_complete(sequence, cx);
        Some((descriptor, weights))
    }

    /// Notes when everybody has posted, as far as is known here. From then on progress has a
    /// deadline, and the wait for posts is over.
    fn note_if_complete(&mut self, sequence: Sequence, cx: &Context<'_>) {
        let Some(collective) = self.live.get(&sequence) else { return };
        let complete = matches!(collective.phase, Phase::Running | Phase::Ready)
            && collective.complete.is_none()
            && self.awaited_ranks(collective).is_empty()
            && self.awaited_gateways(collective, cx.epoch).is_empty();
        if let Some(collective) = self.live.get_mut(&sequence).filter(|_| complete) {
            collective.complete = Some(cx.now);
        }
    }

    /// Local ranks that have not posted.
    pub fn awaited_ranks(&self, collective: &Collective) -> Vec<RankId> {
        let missing = self.ranks.keys().filter(|rank| !collective.posts.contains_key(rank));
        missing.copied().collect()
    }

    /// Gateways some of whose ranks are not known to have posted.
    pub fn awaited_gateways(&self, collective: &Collective, epoch: &EpochState) -> Vec<GatewayId> {
        let fabric = epoch.local().fabric();
        let has_ranks = |peer: &GatewayId| !fabric.gateway(*peer).ranks.is_empty();
        let peers = epoch.members().ids().filter(has_ranks);
        peers.filter(|peer| !collective.posted.contains(peer)).collect()
    }

    /// Ranks of other gateways that are not known to have posted.
    pub fn awaited_elsewhere(&self, collective: &Collective, epoch: &EpochState) -> Vec<RankId> {
        let fabric = epoch.local().fabric();
        let gateways = self.awaited_gateways(collective, epoch).into_iter();
        let ranks = gateways.flat_map(|id| fabric.gateway(id).ranks.clone()).map(RankId);
        ranks.filter(|rank| !collective.announced.contains(rank)).collect()
    }
}

/// Outcomes.
impl Collectives {
    /// Marks a collective as failing. Returns its epoch; none when it has ended already.
    pub fn begin_failure(
        &mut self,
        sequence: Sequence,
        failure: &Failure,
        epoch: Epoch,
    ) -> Option<Epoch> {
        let collective = self.entry(sequence, epoch);
        if collective.failure.is_some() || collective.phase == Phase::Ready {
            return None;
        }
        collective.failure = Some(failure.clone());
        collective.phase = Phase::Failing;
        Some(collective.epoch)
    }

    /// Remembers a failure of this epoch, and tells the peers except the one that said so.
    pub fn tell_failure(
        &mut self,
        sequence: Sequence,
        failure: &Failure,
        except: Option<GatewayId>,
        cx: &mut Context<'_>,
    ) {
        self.failures.insert(sequence, failure.clone());
        if self.failures.len() as u64 > MAX_AHEAD {
            self.failures.pop_first();
        }
        let Some(collective) = self.live.get(&sequence) else { return };
        let message = Message::Fail { epoch: collective.epoch, sequence, failure: failure.clone() };
        let others = cx.epoch.ready_peers().into_iter().filter(|to| Some(*to) != except);
        cx.actions.broadcast(others, &message);
    }

    /// Logs a failure.
    pub fn note_failure(&self, sequence: Sequence, failure: Failure, actions: &mut ActionQueue) {
        let descriptor = self.live.get(&sequence).and_then(|collective| collective.descriptor);
        let op = descriptor.map(|(_, descriptor)| descriptor.name());
        actions.push(Action::Note(Note::Failed { sequence, op, failure }));
    }

    /// Nothing touches the memory of a failing collective any more: notifies its ranks.
    pub fn end_failure(&mut self, sequence: Sequence, actions: &mut ActionQueue) {
        let Some(collective) = self.live.get_mut(&sequence) else { return };
        collective.phase = Phase::Failed;
        let Some(failure) = &collective.failure else { return };
        for rank in collective.posts.keys() {
            let event = RankEvent::Failed { sequence, failure: failure.clone() };
            actions.notify(*rank, event);
        }
    }

    /// Whether a failed collective can be forgotten: every local rank has been notified.
    pub fn all_notified(&self, sequence: Sequence, epoch: &EpochState) -> bool {
        let Some(collective) = self.live.get(&sequence) else { return false };
        collective.phase == Phase::Failed
            && (collective.epoch != epoch.number()
                || !epoch.is_active()
                || self.ranks.values().all(|rank| rank.next > sequence))
    }

    /// The result is in every local slot: notifies the ranks. With `all_posted`, it shows that all
    /// ranks have posted. `wan` is zero where no segment left or arrived.
    pub fn deliver(
        &mut self,
        sequence: Sequence,
        all_posted: bool,
        wan: Range<TimeNs>,
        cx: &mut Context<'_>,
    ) {
        let Some(collective) = self.live.get_mut(&sequence) else { return };
        collective.phase = Phase::Ready;
        if all_posted {
            collective.posted.extend(cx.epoch.members().ids());
            collective.complete.get_or_insert(cx.now);
        }
        let posted = collective.timing.posted;
        let wan_end = wan.end.max(posted);
        let wan_begin = if wan.start == TimeNs::default() { wan_end } else { wan.start };
        let timing = Timing { posted, wan_begin, wan_end, ready: cx.now };
        collective.timing = timing;
        for rank in collective.posts.keys() {
            cx.actions.notify(*rank, RankEvent::ResultReady { sequence, timing });
        }
        if let Some((_, descriptor)) = collective.descriptor {
            let (op, bytes) = (descriptor.name(), descriptor.bytes());
            let took = timing.ready.since(timing.posted);
            cx.actions.push(Action::Note(Note::Completed { sequence, op, bytes, took }));
        }
    }

    /// The epoch of a ready collective is over.
    pub fn leave(&mut self, sequence: Sequence) {
        if let Some(collective) = self.live.get_mut(&sequence) {
            collective.phase = Phase::Leaving;
        }
    }

    /// The last event of a good collective: its slots belong to the ranks again.
    pub fn free_contributions(&mut self, sequence: Sequence, cx: &mut Context<'_>) {
        let Some(collective) = self.live.remove(&sequence) else { return };
        if let Some((_, descriptor)) = collective.descriptor
            && cx.epoch.is_current(collective.epoch)
        {
            self.finished.insert(sequence, descriptor);
            if self.finished.len() as u64 > MAX_AHEAD {
                self.finished.pop_first();
            }
        }
        for rank in collective.posts.keys() {
            cx.actions.notify(*rank, RankEvent::ContributionFree { sequence });
        }
    }

    pub fn forget(&mut self, sequence: Sequence) {
        self.live.remove(&sequence);
    }

    /// An epoch begins with this collective.
    pub fn begin_epoch(&mut self, next: Sequence) {
        self.next = next;
        self.failures.clear();
        self.finished.clear();
        for local in self.ranks.values_mut() {
            *local = LocalRank { attached: local.attached, posted: false, next };
        }
    }

    /// Notifies the attached ranks of an epoch.
    pub fn notify_epoch(&self, epoch: Epoch, committed: Option<Step>, actions: &mut ActionQueue) {
        for (rank, _) in self.ranks.iter().filter(|(_, local)| local.attached) {
            self.notify_rank_of_epoch(*rank, epoch, committed, actions);
        }
    }

    /// Notifies one rank of the epoch, and of the sequence that it posts next.
    pub fn notify_rank_of_epoch(
        &self,
        rank: RankId,
        epoch: Epoch,
        committed: Option<Step>,
        actions: &mut ActionQueue,
    ) {
        let Some(local) = self.ranks.get(&rank) else { return };
        let event = RankEvent::EpochBegan { epoch, next: local.next, committed };
        actions.notify(rank, event);
    }

    /// An epoch ended. Collectives whose memory is still in use go by their numbers until they
    /// end; the next epoch begins above them.
    pub fn end_epoch(&mut self) {
        self.ranks.values_mut().for_each(|rank| rank.posted = false);
        if let Some(last) = self.live.keys().next_back() {
            self.next = self.next.max(Sequence(last.0 + 1));
        }
    }
}
