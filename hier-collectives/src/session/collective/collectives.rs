//! All collectives of a job that are under way, and the local ranks that post them.

use super::deadlines::late_send_failure;
use super::live_collective::{LiveCollective, Phase};
use super::local_rank::LocalRank;
use super::recent_collectives::{COLLECTIVES_AHEAD_MAX, RecentCollectives};
use super::sequence_ranges::SequenceRanges;
use crate::descriptor::{Descriptor, KnownCounts};
use crate::ids::{Epoch, GatewayId, RankId, Sequence, TreeIndex};
use crate::post::{Failure, FailureCode, Post, RankEvent, Timing};
use crate::sequence::SendSeries;
use crate::session::action::{Action, PeerError, SessionNote};
use crate::session::context::Context;
use crate::session::epoch::epoch_state::EpochState;
use crate::session::local_gateway::LocalGateway;
use crate::wire::Message;
use std::collections::BTreeMap;
use std::ops::{Range, RangeFrom};
use std::sync::Arc;
use units::TimeNs;

/// The segments that peers sent for a complete collective: peer, part and number of segments.
pub(in crate::session) type ReceivedSegments = Vec<(GatewayId, TreeIndex, u32)>;

/// The collectives of a job on one gateway: posts, agreement, and outcomes.
#[derive(Debug)]
pub(in crate::session) struct Collectives {
    pub(super) live: BTreeMap<Sequence, LiveCollective>,
    /// Failures of this epoch, the last [`COLLECTIVES_AHEAD_MAX`], for peers that were not ready
    /// yet or whose lane lost the message.
    pub(super) failures: RecentCollectives<Failure>,
    /// Collectives that this epoch completed, the last [`COLLECTIVES_AHEAD_MAX`], for peers whose
    /// receipts were lost.
    pub(super) finished: RecentCollectives<ReceivedSegments>,
    /// Failures that this gateway proposed to the first one, which has not decided yet.
    pub(super) proposals: BTreeMap<Sequence, Failure>,
    pub(super) ranks: BTreeMap<RankId, LocalRank>,
    /// The sends of this epoch that are over, by series, on a gateway without ranks, which passes
    /// them on.
    relayed: BTreeMap<SendSeries, SequenceRanges>,
    /// One past the highest place known, of sends too.
    pub(super) next: Sequence,
}

impl Collectives {
    /// Creates the collection without collectives, with no rank attached.
    pub fn new(local: &LocalGateway) -> Self {
        let ranks = local.fabric().gateway(local.id()).ranks.clone();
        Self {
            live: BTreeMap::new(),
            failures: RecentCollectives::default(),
            finished: RecentCollectives::default(),
            proposals: BTreeMap::new(),
            ranks: ranks.map(|rank| (RankId(rank), LocalRank::default())).collect(),
            relayed: BTreeMap::new(),
            next: Sequence(0),
        }
    }

    /// Returns one past the highest sequence that this gateway knows of.
    pub fn next_sequence(&self) -> Sequence {
        self.next
    }

    /// Numbers later collectives from `next` on, unless higher ones are known.
    pub fn raise_next_sequence(&mut self, next: Sequence) {
        self.next = self.next.max(next);
    }

    /// Returns a collective that is under way; none once it is forgotten.
    pub fn get(&self, sequence: Sequence) -> Option<&LiveCollective> {
        self.live.get(&sequence)
    }

    /// Iterates over the collectives under way, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Sequence, &LiveCollective)> {
        self.live.iter().map(|(sequence, collective)| (*sequence, collective))
    }

    /// Whether no collective is under way.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Returns the sequences of the collectives under way, oldest first.
    pub fn sequences(&self) -> Vec<Sequence> {
        self.live.keys().copied().collect()
    }

    /// Returns the sequences of the collectives under way that lie in a range, oldest first.
    pub fn sequences_from(&self, range: RangeFrom<Sequence>) -> Vec<Sequence> {
        self.live.range(range).map(|(sequence, _)| *sequence).collect()
    }

    /// Iterates over collectives that have not started: some local rank has not posted, a plan
    /// change holds them back, or counts are awaited.
    pub fn waiting(&self) -> impl Iterator<Item = (Sequence, &LiveCollective)> {
        self.iter().filter(|(_, collective)| collective.phase == Phase::Waiting)
    }

    /// Iterates over the sequences of collectives whose local ranks await a result, a failure, or
    /// the release of their slots.
    pub fn unfinished(&self) -> impl Iterator<Item = Sequence> {
        let unfinished = self.iter().filter(|(_, c)| c.phase != Phase::Failed);
        unfinished.map(|(sequence, _)| sequence)
    }

    /// Iterates over the ranks of this gateway.
    pub fn local_ranks(&self) -> impl Iterator<Item = (RankId, &LocalRank)> {
        self.ranks.iter().map(|(rank, local)| (*rank, local))
    }

    /// Returns the state of a rank of this gateway; none for ranks of other gateways.
    pub fn local_rank(&self, rank: RankId) -> Option<&LocalRank> {
        self.ranks.get(&rank)
    }

    /// Builds the receipts of a peer's segments of a collective that completed in this epoch; none
    /// unless it is among the last `COLLECTIVES_AHEAD_MAX`.
    pub fn repeated_receipts(
        &self,
        to: GatewayId,
        epoch: Epoch,
        sequence: Sequence,
    ) -> Vec<Message> {
        let received = self.finished.facts().get(&sequence).into_iter().flatten();
        let theirs = received.filter(|(from, ..)| *from == to);
        let receipt = |(_, tree, count): &(GatewayId, TreeIndex, u32)| Message::Receipt {
            epoch,
            sequence,
            tree: *tree,
            segments: 0..*count,
        };
        theirs.map(receipt).collect()
    }

    /// Returns the first sequence that some local rank has not posted, sends apart; without local
    /// ranks the next one known.
    pub fn oldest_unposted(&self) -> Sequence {
        self.ranks.values().map(|rank| rank.next).min().unwrap_or(self.next)
    }

    /// Returns the first sequence of the series of `sequence` that some local rank has not posted.
    pub fn oldest_unposted_like(&self, sequence: Sequence) -> Sequence {
        let next = self.ranks.values().map(|rank| rank.next_like(sequence)).min();
        let unknown = || LocalRank::in_epoch(false, self.next).next_like(sequence);
        next.unwrap_or_else(unknown)
    }

    /// Whether the collectives under way are as many as may be known of sends, and this one is a
    /// send that is not known.
    pub(super) fn is_one_send_too_many(&self, sequence: Sequence) -> bool {
        sequence.series().is_some()
            && self.live.len() as u64 >= COLLECTIVES_AHEAD_MAX
            && !self.live.contains_key(&sequence)
    }

    /// Whether this gateway has no ranks, so that it only passes on the sends of others.
    pub fn is_relay(&self) -> bool {
        self.ranks.is_empty()
    }

    /// Whether all ranks of a gateway are known to have posted a collective; of a gateway without
    /// ranks whether all ranks of all gateways have.
    pub fn is_posted_by(&self, gateway: GatewayId, sequence: Sequence, epoch: &EpochState) -> bool {
        let Some(collective) = self.live.get(&sequence) else { return false };
        if epoch.local().fabric().gateway(gateway).ranks.is_empty() {
            return self.awaited_local_ranks(collective).is_empty()
                && self.awaited_gateways(collective, epoch).is_empty();
        }
        if gateway == epoch.me() {
            return collective.posts.len() == self.ranks.len();
        }
        collective.posted.contains(&gateway)
    }

    /// Whether a collective of this epoch has its result on every local rank.
    pub fn has_result(&self, sequence: Sequence) -> bool {
        let ready = |c: &LiveCollective| c.phase == Phase::Ready;
        self.finished.facts().contains_key(&sequence) || self.live.get(&sequence).is_some_and(ready)
    }

    /// Whether a message about a collective has effect. It must be of the current epoch, and the
    /// collective neither over here nor left from an earlier epoch.
    ///
    /// # Errors
    /// [`PeerError::TooFarAhead`]: the collective is too far beyond the oldest unposted one, or a
    /// send while too many collectives are under way.
    pub fn admits_message(
        &self,
        epoch: Epoch,
        sequence: Sequence,
        current: &EpochState,
    ) -> Result<bool, PeerError> {
        let of_another = |c: &LiveCollective| !current.is_current(c.epoch);
        let relayed = sequence.series().filter(|_| self.is_relay());
        let (is_over, is_far) = if let Some(series) = relayed {
            // The gateways of the two ranks watch how far these are apart.
            let over = self.relayed.get(&series);
            (over.is_some_and(|over| over.contains(&(sequence..sequence.following()))), false)
        } else {
            let oldest = self.oldest_unposted_like(sequence);
            (sequence < oldest, sequence.0 >= oldest.0 + COLLECTIVES_AHEAD_MAX)
        };
        let is_finished = is_over && !self.live.contains_key(&sequence);
        if !current.is_current(epoch)
            || is_finished
            || self.live.get(&sequence).is_some_and(of_another)
        {
            return Ok(false);
        }
        if is_far || self.is_one_send_too_many(sequence) {
            return Err(PeerError::TooFarAhead { sequence, limit: COLLECTIVES_AHEAD_MAX });
        }
        Ok(true)
    }

    /// Returns a collective, created in `epoch` if nothing was known of it before.
    pub fn collective_or_new(&mut self, sequence: Sequence, epoch: Epoch) -> &mut LiveCollective {
        self.live.entry(sequence).or_insert_with(|| LiveCollective::new(epoch))
    }

    /// Marks a rank as attached. Returns whether the rank has posted in this epoch, which must then
    /// end.
    pub fn attach_rank(&mut self, rank: RankId) -> bool {
        let Some(local) = self.ranks.get_mut(&rank) else { return false };
        local.attached = true;
        local.lost = false;
        local.posted
    }

    /// Marks a rank as lost: no process of it is expected until it attaches or returns.
    pub fn lose_rank(&mut self, rank: RankId) {
        if let Some(local) = self.ranks.get_mut(&rank) {
            local.lost = true;
        }
    }

    /// Marks a lost rank as expected again. Returns whether the lost process has posted in this
    /// epoch, which must then end.
    pub fn expect_rank(&mut self, rank: RankId) -> bool {
        let Some(local) = self.ranks.get_mut(&rank) else { return false };
        let was_lost = std::mem::take(&mut local.lost);
        was_lost && local.posted
    }

    /// Marks a rank as detached, since its socket closed. Returns the sequences that wait for a
    /// post of that rank.
    pub fn detach_rank(&mut self, rank: RankId) -> Vec<Sequence> {
        let Some(local) = self.ranks.get_mut(&rank) else { return vec![] };
        local.attached = false;
        let waiting = self.waiting().filter(|(_, c)| !c.posts.contains_key(&rank));
        waiting.map(|(sequence, _)| sequence).collect()
    }

    /// Records a rank's post. Returns the failure if the collective has failed, else `None`.
    /// Notifies the rank of it now if nothing uses the collective's memory any more.
    pub fn record_post(
        &mut self,
        rank: RankId,
        post: &Post,
        cx: &mut Context<'_>,
    ) -> Option<Failure> {
        let local = self.ranks.get_mut(&rank)?;
        local.note_posted(post.sequence);
        self.next = self.next.max(Sequence(post.sequence.place() + 1));
        let collective = self.collective_or_new(post.sequence, cx.epoch.number());
        collective.begun.get_or_insert(cx.now);
        collective.posts.insert(rank, post.weight);
        collective.counts.add_post(rank, &post.counts);
        let failure = collective.failure.clone()?;
        if collective.phase == Phase::Failed {
            let sequence = post.sequence;
            let failure = late_send_failure(sequence, rank, &failure, cx.epoch.local());
            cx.actions.notify(rank, RankEvent::Failed { sequence, failure });
        }
        Some(failure)
    }

    /// Records the time when a poster's timeout ends; the earliest of a collective counts. Returns
    /// whether all local ranks have posted.
    pub fn record_post_timeout(&mut self, sequence: Sequence, expiry: TimeNs) -> bool {
        let ranks = self.ranks.len();
        let Some(collective) = self.live.get_mut(&sequence) else { return false };
        collective.expiry = Some(collective.expiry.map_or(expiry, |at| at.min(expiry)));
        collective.posts.len() == ranks
    }

    /// Records a peer's announcement that one of its ranks posted; `all` says that every rank of
    /// the peer has posted.
    pub fn record_announcement(
        &mut self,
        from: GatewayId,
        sequence: Sequence,
        rank: RankId,
        all: bool,
        cx: &mut Context<'_>,
    ) {
        let theirs = cx.epoch.local().fabric().gateway(from).ranks.contains(&rank.0);
        let collective = self.collective_or_new(sequence, cx.epoch.number());
        if theirs {
            collective.announced.insert(rank);
        }
        if all {
            collective.posted.insert(from);
        }
        collective.begun.get_or_insert(cx.now);
        self.note_if_all_posted(sequence, cx);
    }

    /// Records the counts that a rank elsewhere posted, as its gateway announced them; `ranks` is the
    /// number of ranks.
    pub fn record_announced_counts(
        &mut self,
        sequence: Sequence,
        rank: RankId,
        sent: &Arc<[u64]>,
        ranks: u32,
    ) {
        if let Some(collective) = self.live.get_mut(&sequence) {
            collective.counts.add_announced(rank, sent, ranks);
        }
    }

    /// Records that all ranks of some gateways have posted, as their segments or grants show.
    pub fn note_gateways_posted(
        &mut self,
        sequence: Sequence,
        gateways: impl IntoIterator<Item = GatewayId>,
        cx: &Context<'_>,
    ) {
        self.collective_or_new(sequence, cx.epoch.number()).posted.extend(gateways);
        self.note_if_all_posted(sequence, cx);
    }

    /// Compares a rank's descriptor with the first one posted for a collective. Returns false when
    /// the collective has failed before.
    ///
    /// # Errors
    /// The failure that names both ranks, when the descriptors differ.
    pub fn agree_on_descriptor(
        &mut self,
        sequence: Sequence,
        rank: RankId,
        descriptor: Descriptor,
        epoch: &EpochState,
    ) -> Result<bool, Failure> {
        let collective = self.collective_or_new(sequence, epoch.number());
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

    /// Announces a local rank's post to all peers in the epoch; `all` says that every local rank
    /// has posted.
    pub fn announce_post(
        &self,
        sequence: Sequence,
        rank: RankId,
        descriptor: Descriptor,
        all: bool,
        cx: &mut Context<'_>,
    ) {
        let epoch = cx.epoch.number();
        let sent = self.live.get(&sequence).and_then(|c| c.counts.sent_by(rank).cloned());
        let message = Message::Announce { epoch, sequence, rank, descriptor, all, sent };
        cx.actions.broadcast(cx.epoch.ready_peers(), &message);
    }

    /// Marks a collective as running once every local rank has posted, unless it failed or waits
    /// for a plan or for counts. On a gateway without ranks all ranks elsewhere must have announced
    /// their posts, so that nothing takes memory here before it can go on. Returns the descriptor,
    /// the counts and the ranks' weights then, else `None`.
    pub fn begin_collective(
        &mut self,
        sequence: Sequence,
        cx: &Context<'_>,
    ) -> Option<(Descriptor, KnownCounts, BTreeMap<RankId, f64>)> {
        let (ranks, is_relay) = (self.ranks.len(), self.is_relay());
        let collective = self.live.get_mut(&sequence)?;
        let waiting = collective.phase == Phase::Waiting && collective.failure.is_none();
        let world_size = cx.epoch.local().fabric().world_size() as usize;
        let announced = !is_relay || collective.announced.len() >= world_size;
        let ready = waiting && collective.posts.len() >= ranks && announced;
        if !cx.epoch.is_active() || !ready || cx.epoch.is_held(sequence) {
            return None;
        }
        let (_, descriptor) = collective.descriptor?;
        if !cx.epoch.knows_counts(sequence, &descriptor, &collective.counts) {
            return None;
        }
        collective.phase = Phase::Running;
        collective.timing = Timing { posted: cx.now, ..Timing::default() };
        let (counts, weights) = (collective.counts.clone(), collective.posts.clone());
        let awaited = self.awaited_gateways(self.live.get(&sequence)?, cx.epoch);
        self.live.get_mut(&sequence)?.awaited = awaited;
        self.note_if_all_posted(sequence, cx);
        Some((descriptor, counts, weights))
    }

    /// Records the time from which all ranks of all gateways are known to have posted. From then on
    /// the stall deadline applies instead of the posters' timeouts.
    fn note_if_all_posted(&mut self, sequence: Sequence, cx: &Context<'_>) {
        let Some(collective) = self.live.get(&sequence) else { return };
        let all_posted = matches!(collective.phase, Phase::Running | Phase::Ready)
            && collective.all_posted_at.is_none()
            && self.awaited_local_ranks(collective).is_empty()
            && self.awaited_gateways(collective, cx.epoch).is_empty();
        if let Some(collective) = self.live.get_mut(&sequence).filter(|_| all_posted) {
            collective.all_posted_at = Some(cx.now);
        }
    }

    /// Returns the local ranks that have not posted a collective.
    pub fn awaited_local_ranks(&self, collective: &LiveCollective) -> Vec<RankId> {
        let missing = self.ranks.keys().filter(|rank| !collective.posts.contains_key(rank));
        missing.copied().collect()
    }

    /// Returns the other gateways that have ranks and are not known to have posted a collective
    /// with all of them.
    pub fn awaited_gateways(
        &self,
        collective: &LiveCollective,
        epoch: &EpochState,
    ) -> Vec<GatewayId> {
        let fabric = epoch.local().fabric();
        let has_ranks = |peer: &GatewayId| !fabric.gateway(*peer).ranks.is_empty();
        let peers = epoch.members().peer_ids().filter(has_ranks);
        peers.filter(|peer| !collective.posted.contains(peer)).collect()
    }

    /// Returns the ranks of other gateways that are not known to have posted a collective.
    pub fn awaited_remote_ranks(
        &self,
        collective: &LiveCollective,
        epoch: &EpochState,
    ) -> Vec<RankId> {
        let fabric = epoch.local().fabric();
        let gateways = self.awaited_gateways(collective, epoch).into_iter();
        let ranks = gateways.flat_map(|id| fabric.gateway(id).ranks.clone()).map(RankId);
        ranks.filter(|rank| !collective.announced.contains(rank)).collect()
    }

    /// Marks a result as ready and notifies the local ranks. `all_posted` says that the result
    /// contains all ranks' contributions. `wan` is from the first segment out to the last one in,
    /// zero without any.
    pub fn deliver_result(
        &mut self,
        sequence: Sequence,
        all_posted: bool,
        wan: Range<TimeNs>,
        cx: &mut Context<'_>,
    ) {
        let is_relay = self.is_relay();
        let Some(collective) = self.live.get_mut(&sequence) else { return };
        collective.phase = Phase::Ready;
        if all_posted {
            collective.posted.extend(cx.epoch.members().peer_ids());
            collective.all_posted_at.get_or_insert(cx.now);
        }
        let posted = collective.timing.posted;
        let wan_end = wan.end.max(posted);
        let wan_begin = if wan.start == TimeNs::default() { wan_end } else { wan.start };
        let timing = Timing { posted, wan_begin, wan_end, ready: cx.now };
        collective.timing = timing;
        for rank in collective.posts.keys() {
            cx.actions.notify(*rank, RankEvent::ResultReady { sequence, timing });
        }
        // The gateways of the ranks count a collective.
        if let Some((_, descriptor)) = collective.descriptor.filter(|_| !is_relay) {
            let begun = collective.begun.unwrap_or(posted);
            let awaited = std::mem::take(&mut collective.awaited);
            let note = SessionNote::Completed { sequence, descriptor, begun, timing, awaited };
            cx.actions.push(Action::Note(note));
        }
    }

    /// Marks a ready collective whose epoch is over, while streams may still read its memory.
    pub fn mark_leaving(&mut self, sequence: Sequence) {
        if let Some(collective) = self.live.get_mut(&sequence) {
            collective.phase = Phase::Leaving;
        }
    }

    /// Removes a complete collective and notifies its ranks that their slots are free.
    ///
    /// `received` are the segments that peers sent for it. They are kept, to repeat their receipts,
    /// if the collective is of the current epoch.
    pub fn remove_collective_and_notify(
        &mut self,
        sequence: Sequence,
        received: ReceivedSegments,
        cx: &mut Context<'_>,
    ) {
        let Some(collective) = self.live.remove(&sequence) else { return };
        self.note_relayed(sequence, &collective, cx.epoch);
        if collective.descriptor.is_some() && cx.epoch.is_current(collective.epoch) {
            self.finished.insert(sequence, received);
        }
        for rank in collective.posts.keys() {
            cx.actions.notify(*rank, RankEvent::ContributionFree { sequence });
        }
    }

    /// Removes a collective without notifying ranks.
    pub fn forget_collective(&mut self, sequence: Sequence, epoch: &EpochState) {
        if let Some(collective) = self.live.remove(&sequence) {
            self.note_relayed(sequence, &collective, epoch);
        }
    }

    /// Notes, on a gateway without ranks, that a collective of the current epoch is over: no post of
    /// a rank here will tell that messages about it are late.
    fn note_relayed(&mut self, sequence: Sequence, ended: &LiveCollective, epoch: &EpochState) {
        let relayed = sequence.series().filter(|_| self.is_relay());
        if let Some(series) = relayed.filter(|_| epoch.is_current(ended.epoch)) {
            self.relayed.entry(series).or_default().insert(sequence..sequence.following());
        }
    }

    /// Begins an epoch whose first collective is `next`: forgets failures and completed
    /// collectives, and resets all ranks.
    pub fn begin_epoch(&mut self, next: Sequence) {
        self.next = next;
        self.failures.clear();
        self.finished.clear();
        self.proposals.clear();
        self.relayed.clear();
        for local in self.ranks.values_mut() {
            local.begin_epoch(next);
        }
    }

    /// Ends an epoch. Collectives still under way keep their sequences, so the next epoch begins
    /// above them.
    pub fn end_epoch(&mut self) {
        self.proposals.clear();
        self.ranks.values_mut().for_each(|rank| rank.posted = false);
        let last = self.live.keys().map(|sequence| sequence.place()).max();
        self.next = self.next.max(Sequence(last.map_or(0, |last| last + 1)));
    }
}
