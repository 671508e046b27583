//! One group on one gateway: its epochs, its collectives, its grants and receipts.
//!
//! The session handles names and numbers, never bytes. Call order: any `handle_*`, then
//! [`Session::poll_action`] until `None`, then wait until [`Session::poll_timeout`] and call
//! [`Session::handle_timeout`].

mod action;
mod advance;
mod ahead;
mod arrival;
mod change;
mod collective;
mod commit;
mod deadline;
mod drain;
mod finish;
mod links;
mod membership;
mod outbound;
mod segment;
mod spans;
mod start;
mod status;

pub use action::{
    Action, Arrival, Buffer, Discard, Input, JobId, LeaseId, Note, PeerError, ScratchId, Tail,
    Turn, View,
};
pub use commit::COMMITS_MAX;
pub use deadline::MOVING_EVERY;
pub use status::{CollectiveStatus, CommitStatus, DrainStatus, PeerStatus, SessionStatus};

use crate::descriptor::{Descriptor, Pattern};
use crate::ids::{BootId, Epoch, GatewayId, RankId, Sequence, Step, TreeIndex};
use crate::mutant::{self, Mutant};
use crate::plan::{self, Plan, Role};
use crate::post::{Committed, Failure, FailureCode, Post, RankEvent};
use crate::routes::Routes;
use crate::size_class::SizeClass;
use crate::topology::{Fabric, LinkState};
use crate::wire::{Message, SegmentHeader, SegmentKey};
use change::Changing;
use collective::{Collective, Phase};
use commit::Pending;
use links::Links;
use membership::{EpochStart, Join};
use spans::Spans;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;
use units::{ByteCount, Span, TimeNs};

/// Collectives a peer or a rank may be ahead of the oldest under way.
pub const MAX_AHEAD: u64 = 1024;

/// The largest weight of a rank: weights of all ranks that a fabric may have add up to a
/// finite number.
pub const MAX_WEIGHT: f64 = 1e290;

/// What a session needs to know.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// The deployment.
    pub fabric: Arc<Fabric>,
    /// This gateway.
    pub me: GatewayId,
    /// Drawn at this start.
    pub boot: BootId,
    /// The plan of the epochs that this gateway opens, if it is the first by name.
    pub plan: Plan,
    /// Memory for partials of several local ranks; at least one segment is always used.
    pub partials: ByteCount,
    /// The job's part of a link while all jobs use it: one in so many, rounded up.
    pub one_in: NonZeroU64,
}

/// See the module.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    routes: Routes,
    peers: BTreeMap<GatewayId, Peer>,
    ranks: BTreeMap<RankId, LocalRank>,
    /// The last epoch this gateway was in.
    epoch: Epoch,
    /// The plan, while the epoch lives.
    active: Option<Active>,
    /// One past the highest sequence seen.
    next: Sequence,
    live: BTreeMap<Sequence, Collective>,
    /// What failed in this epoch, the last [`MAX_AHEAD`]: a peer that was not ready yet, or
    /// whose lane took the news with it, is told later.
    failures: BTreeMap<Sequence, Failure>,
    /// What this epoch completed, newest last, for peers that have not heard.
    finished: BTreeMap<Sequence, Descriptor>,
    /// Why the last epoch ended, for peers that have not heard.
    ended: Option<Failure>,
    /// The last step known to be complete in every region, in this epoch or before.
    committed: Option<Committed>,
    links: Links,
    /// When a drain ends at the latest, once one has begun.
    draining: Option<TimeNs>,
    core: Core,
}

/// What the parts of the session share.
#[derive(Debug, Default)]
struct Core {
    actions: VecDeque<Action>,
    ids: u64,
    jobs: BTreeMap<JobId, (SegmentKey, Job)>,
    leases: BTreeMap<LeaseId, (GatewayId, SegmentKey)>,
    /// Bytes of partials of several local ranks, of each class of operations.
    partial_bytes: [u64; SizeClass::ALL.len()],
    /// When a segment, receipt or grant last moved something here, or bytes of a long segment did.
    progress: TimeNs,
    /// When another gateway last said that something moves there.
    elsewhere: TimeNs,
    /// When the others were last told that something moves here.
    told_moving: Option<TimeNs>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Job {
    Local,
    Partial,
    Result,
    Deliver,
}

#[derive(Debug)]
struct Active {
    plan: Plan,
    roles: Vec<Role>,
    /// What may be held of partials of subtrees.
    relayed: ByteCount,
    /// Earlier plans, oldest first, each with the first collective that does not follow it.
    before: Vec<(Sequence, Plan, Vec<Role>)>,
    /// Changes of the plan that are known to have begun.
    changes: u32,
    /// The change under way, on the first gateway.
    changing: Option<Changing>,
    /// The first collective that is not started before the change under way is complete.
    held: Option<Sequence>,
    boots: Vec<BootId>,
    /// The number of the epoch's first collective.
    first: Sequence,
    /// What all local ranks have the results of.
    done: Spans,
    /// From which collective on a gateway that shuts down posts nothing any more, and the
    /// failure that says so.
    closed: Option<(Sequence, Failure)>,
}

#[derive(Debug, Default)]
struct Peer {
    /// The connection to it, or to the neighbour that passes messages on to it, is up.
    up: bool,
    /// The last epoch it said it is ready for.
    ready: Epoch,
    /// The link to it as it said then that its fabric has it.
    link: Option<LinkState>,
    /// Its request to enter the next epoch, as the first gateway sees it.
    joined: Option<Join>,
    /// Segments sent to it beyond its grants, not receipted yet.
    early_out: BTreeMap<SegmentKey, u64>,
    /// Bytes from it beyond our grants or with parity, not consumed yet.
    early_in: u64,
    /// What all its ranks have the results of, as far as it has said.
    done: Spans,
    /// What it asked for and was not told yet.
    asked: BTreeSet<(Sequence, Sequence)>,
    /// The last that it was asked for, and was told.
    ask_sent: Option<(Sequence, Sequence)>,
    done_sent: Option<(Sequence, Sequence)>,
}

#[derive(Debug, Default)]
struct LocalRank {
    attached: bool,
    /// Whether it posted in this epoch.
    posted: bool,
    /// The sequence it posts next.
    next: Sequence,
    /// The first that none of its commits covers.
    covered: Sequence,
    /// Whether it committed anything in this epoch.
    commits_here: bool,
    /// Its commits that wait, in order.
    commits: VecDeque<Pending>,
}

impl Session {
    /// A session outside any epoch, with no peer up and no rank attached.
    pub fn new(config: SessionConfig) -> Self {
        let gateway = config.fabric.gateway(config.me);
        let ranks = gateway.ranks.clone().map(|rank| (RankId(rank), LocalRank::default()));
        let others = config.fabric.gateway_ids().filter(|id| *id != config.me);
        Self {
            routes: Routes::of(&config.fabric, config.me),
            peers: others.map(|id| (id, Peer::default())).collect(),
            ranks: ranks.collect(),
            epoch: Epoch(0),
            active: None,
            next: Sequence(0),
            live: BTreeMap::new(),
            failures: BTreeMap::new(),
            finished: BTreeMap::new(),
            ended: None,
            committed: None,
            links: Links::new(&config.fabric),
            draining: None,
            core: Core::default(),
            config,
        }
    }

    /// The plan, while the epoch lives.
    pub fn plan(&self) -> Option<&Plan> {
        self.active.as_ref().map(|active| &active.plan)
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.core.actions.pop_front()
    }

    /// A rank attached.
    pub fn handle_attach(&mut self, rank: RankId, now: TimeNs) {
        let Some(local) = self.ranks.get_mut(&rank) else {
            return;
        };
        local.attached = true;
        if local.posted {
            let text = format!("{} attached again", self.rank_name(rank));
            self.end_epoch(Failure::new(FailureCode::EpochEnded, text), None, now);
        } else if self.active.is_some() {
            let committed = self.committed.map(|committed| committed.step);
            let event = RankEvent::EpochBegan { epoch: self.epoch, next: local.next, committed };
            self.core.actions.push_back(Action::Notify { rank, event });
        }
    }

    /// A rank's socket closed. What it posted goes on; what waits for it fails.
    pub fn handle_detach(&mut self, rank: RankId, now: TimeNs) {
        let Some(local) = self.ranks.get_mut(&rank) else {
            return;
        };
        local.attached = false;
        local.commits.clear();
        let waiting: Vec<Sequence> = self
            .live
            .iter()
            .filter(|(_, c)| c.phase == Phase::Waiting && !c.posts.contains_key(&rank))
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in waiting {
            self.fail_if_rank_lost(sequence, now);
        }
    }

    /// A rank posted. Every outcome reaches the rank as a [`RankEvent`].
    pub fn handle_post(&mut self, rank: RankId, post: Post, now: TimeNs) {
        let refuse = |core: &mut Core, code, text: String| {
            let event =
                RankEvent::Failed { sequence: post.sequence, failure: Failure::new(code, text) };
            core.actions.push_back(Action::Notify { rank, event });
        };
        let current = self.is_current(post.epoch);
        let Some(local) = self.ranks.get_mut(&rank) else {
            return;
        };
        if !current {
            let text = format!(
                "epoch {} is over; wait for the next and post again, contribution intact",
                post.epoch
            );
            return refuse(&mut self.core, FailureCode::EpochEnded, text);
        }
        if post.sequence != local.next {
            let text = format!("collective {} posted, {} is next", post.sequence, local.next);
            return refuse(&mut self.core, FailureCode::BadPost, text);
        }
        if let Some(text) = self.end_if_too_far_ahead(rank, post.sequence, now) {
            return refuse(&mut self.core, FailureCode::EpochEnded, text);
        }
        let Some(local) = self.ranks.get_mut(&rank) else {
            return;
        };
        local.next = Sequence(local.next.0 + 1);
        local.posted = true;
        self.next = self.next.max(local.next);
        let collective =
            self.live.entry(post.sequence).or_insert_with(|| Collective::new(self.epoch));
        collective.begun.get_or_insert(now);
        collective.posts.insert(rank, post.weight);
        if let Some(failure) = collective.failure.clone() {
            if collective.phase == Phase::Failed {
                let event = RankEvent::Failed { sequence: post.sequence, failure };
                self.core.actions.push_back(Action::Notify { rank, event });
            }
            return self.forget_if_told(post.sequence);
        }
        if let Some(failure) = self.closed_for(post.sequence) {
            return self.fail(post.sequence, failure, None, now);
        }
        if let Err(text) = acceptable(&post, self.config.fabric.world_size()) {
            let text = format!("{}: {text}", self.rank_name(rank));
            let failure = Failure::new(FailureCode::BadPost, text);
            return self.fail(post.sequence, failure, None, now);
        }
        let expiry = now + post.timeout;
        let collective = self.collective(post.sequence);
        collective.expiry = Some(collective.expiry.map_or(expiry, |at| at.min(expiry)));
        let all = collective.posts.len() == self.ranks.len();
        if self.agree(post.sequence, rank, post.descriptor, now) {
            self.announce(post.sequence, rank, post.descriptor, all);
            self.fail_if_rank_lost(post.sequence, now);
            self.activate_if_posted(post.sequence, now);
        }
    }

    /// A control message arrived from a peer.
    ///
    /// # Errors
    /// [`PeerError`]: the message is against the protocol and had no effect.
    pub fn handle_message(
        &mut self,
        from: GatewayId,
        message: Message,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        if !self.peers.contains_key(&from) {
            return Err(PeerError::Stranger(from));
        }
        let heard = self.hear(from, message, now);
        self.tell_if_moving(now);
        heard
    }

    fn hear(&mut self, from: GatewayId, message: Message, now: TimeNs) -> Result<(), PeerError> {
        match message {
            Message::Join { boot, last, next, committed } => {
                self.on_join(from, Join { boot, last, next, committed }, now)
            }
            Message::Begin { epoch, next, boots, plan, committed } => {
                let start = EpochStart { epoch, next, boots, plan, committed };
                self.on_begin(from, start, now)
            }
            Message::Ready { epoch, link } => {
                self.on_ready(from, (epoch, link), now);
                Ok(())
            }
            Message::End { epoch, failure } => {
                if self.is_current(epoch) {
                    self.end_epoch(failure, Some(from), now);
                }
                Ok(())
            }
            Message::Moving { epoch } => {
                if self.is_current(epoch) {
                    self.core.elsewhere = now;
                }
                Ok(())
            }
            Message::Repeat => {
                self.on_repeat();
                Ok(())
            }
            Message::Pause { epoch, change } if self.is_current(epoch) => {
                self.on_pause(from, change)
            }
            Message::Paused { epoch, change, from: held } if self.is_current(epoch) => {
                self.on_paused(from, (change, held), now)
            }
            Message::Change { epoch, change, from: start, plan } if self.is_current(epoch) => {
                self.on_change(from, (change, start), plan, now)
            }
            Message::Link { epoch, to, state } if self.is_current(epoch) => {
                self.on_link(from, to, state)
            }
            Message::Pause { .. } | Message::Paused { .. } | Message::Change { .. } => Ok(()),
            of_collectives => self.on_collectives(from, of_collectives, now),
        }
    }

    /// What a peer says of collectives, rather than of epochs and plans.
    fn on_collectives(
        &mut self,
        from: GatewayId,
        message: Message,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        match message {
            Message::Announce { epoch, sequence, rank, descriptor, all } => {
                if self.admits(epoch, sequence)? {
                    self.on_announce(from, (sequence, all), (rank, descriptor), now);
                } else if epoch == self.epoch {
                    self.repeat_receipts(from, sequence);
                }
                Ok(())
            }
            Message::Grant { epoch, sequence, tree, limit } => {
                if self.admits(epoch, sequence)? {
                    self.on_grant(from, sequence, (tree, limit), now)?;
                }
                Ok(())
            }
            Message::Receipt { epoch, sequence, tree, segments } => {
                if self.is_current(epoch) {
                    self.on_receipts(from, (sequence, tree), segments, now);
                }
                Ok(())
            }
            Message::Fail { epoch, sequence, failure } => {
                if self.is_current(epoch) && self.is_good(sequence) {
                    self.part_over(from, sequence, now);
                } else if self.admits(epoch, sequence)? {
                    self.fail(sequence, failure, Some(from), now);
                }
                Ok(())
            }
            Message::Done { epoch, from: start, below } if self.is_current(epoch) => {
                self.on_done(from, start..below)
            }
            Message::Ask { epoch, from: start, below } if self.is_current(epoch) => {
                self.on_ask(from, start..below)
            }
            Message::Drain { epoch, from: start } if self.is_current(epoch) => {
                self.close(from, start, now);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn on_announce(
        &mut self,
        from: GatewayId,
        (sequence, all): (Sequence, bool),
        (rank, of): (RankId, Descriptor),
        now: TimeNs,
    ) {
        let theirs = self.config.fabric.gateway(from).ranks.contains(&rank.0);
        let collective = self.collective(sequence);
        if theirs {
            collective.announced.insert(rank);
        }
        if all {
            collective.posted.insert(from);
        }
        collective.begun.get_or_insert(now);
        self.note_if_complete(sequence, now);
        if self.agree(sequence, rank, of, now) {
            self.fail_if_rank_lost(sequence, now);
        }
    }

    fn on_grant(
        &mut self,
        from: GatewayId,
        sequence: Sequence,
        (tree, limit): (TreeIndex, u32),
        now: TimeNs,
    ) -> Result<(), PeerError> {
        if !self.may_have(sequence, tree) {
            return Err(PeerError::NoSuchTree(tree));
        }
        let collective = self.collective(sequence);
        // Nobody grants before all its ranks have posted.
        collective.posted.insert(from);
        let granted = collective.grants.entry((from, tree)).or_default();
        // Said again, it moves nothing.
        if limit > *granted {
            *granted = limit;
            self.core.progress = now;
        }
        self.note_if_complete(sequence, now);
        self.send_what_may_go(from, now);
        Ok(())
    }

    /// Whether an epoch is the one under way.
    fn is_current(&self, epoch: Epoch) -> bool {
        self.active.is_some() && (epoch == self.epoch || mutant::is(Mutant::IgnoreEpochs))
    }

    /// Whether a message about a collective is of this epoch and not about one long done.
    fn admits(&self, epoch: Epoch, sequence: Sequence) -> Result<bool, PeerError> {
        let of_another = |c: &Collective| !self.is_current(c.epoch);
        if !self.is_current(epoch)
            || self.is_finished(sequence)
            || self.live.get(&sequence).is_some_and(of_another)
        {
            return Ok(false);
        }
        if sequence.0 >= self.oldest().0 + MAX_AHEAD {
            return Err(PeerError::TooFarAhead { sequence, limit: MAX_AHEAD });
        }
        Ok(true)
    }

    /// The first collective that some local rank has not posted.
    fn oldest(&self) -> Sequence {
        self.ranks.values().map(|rank| rank.next).min().unwrap_or(self.next)
    }

    /// All local ranks posted it and nothing is left of it.
    fn is_finished(&self, sequence: Sequence) -> bool {
        sequence < self.oldest() && !self.live.contains_key(&sequence)
    }

    /// Its result stands on every local rank.
    fn is_good(&self, sequence: Sequence) -> bool {
        let ready = |c: &Collective| c.phase == Phase::Ready;
        self.finished.contains_key(&sequence) || self.live.get(&sequence).is_some_and(ready)
    }

    fn collective(&mut self, sequence: Sequence) -> &mut Collective {
        self.live.entry(sequence).or_insert_with(|| Collective::new(self.epoch))
    }

    /// Records the shape somebody posted; false when the collective failed over it.
    fn agree(
        &mut self,
        sequence: Sequence,
        rank: RankId,
        descriptor: Descriptor,
        now: TimeNs,
    ) -> bool {
        let collective = self.collective(sequence);
        let (first, agreed) = *collective.descriptor.get_or_insert((rank, descriptor));
        let Some(difference) = agreed.difference(&descriptor) else {
            return collective.failure.is_none();
        };
        // Named in rank order, so that all regions tell the same story.
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
            self.rank_name(low),
            self.rank_name(high),
        );
        self.fail(sequence, Failure::new(FailureCode::Disagreement, text), None, now);
        false
    }

    fn announce(&mut self, sequence: Sequence, rank: RankId, descriptor: Descriptor, all: bool) {
        let message = Message::Announce { epoch: self.epoch, sequence, rank, descriptor, all };
        for to in self.ready_peers() {
            self.core.actions.push_back(Action::Message { to, message: message.clone() });
        }
    }

    /// Fails a collective for which a rank that took part in this epoch is gone.
    fn fail_if_rank_lost(&mut self, sequence: Sequence, now: TimeNs) {
        let Some(collective) = self.live.get(&sequence) else {
            return;
        };
        let missing = self.ranks.iter().find(|(rank, local)| {
            local.posted && !local.attached && !collective.posts.contains_key(rank)
        });
        let Some(rank) = missing.map(|(rank, _)| *rank) else {
            return;
        };
        let text = format!(
            "collective {sequence}: {} went away before posting it; contributions intact, \
             post again once it is back",
            self.rank_name(rank)
        );
        self.fail(sequence, Failure::new(FailureCode::RankLost, text), None, now);
    }

    /// Fails a collective here and, except where the news came from, everywhere. Ranks hear
    /// of it once nothing touches their memory any more.
    fn fail(
        &mut self,
        sequence: Sequence,
        failure: Failure,
        except: Option<GatewayId>,
        now: TimeNs,
    ) {
        let collective = self.collective(sequence);
        if collective.failure.is_some() || collective.phase == Phase::Ready {
            return;
        }
        collective.failure = Some(failure.clone());
        collective.phase = Phase::Failing;
        let epoch = collective.epoch;
        let op = collective.descriptor.map(|(_, descriptor)| descriptor.name());
        self.cancel(sequence);
        self.release_memory(sequence);
        if self.is_current(epoch) {
            self.failures.insert(sequence, failure.clone());
            if self.failures.len() as u64 > MAX_AHEAD {
                self.failures.pop_first();
            }
            for to in self.ready_peers().into_iter().filter(|to| Some(*to) != except) {
                let message = Message::Fail { epoch, sequence, failure: failure.clone() };
                self.core.actions.push_back(Action::Message { to, message });
            }
            // The memory that it gave back may be all that others wait for.
            self.start_locals(now);
            self.send_everywhere(now);
        }
        self.fail_commits_of(sequence, &failure);
        self.core.actions.push_back(Action::Note(Note::Failed { sequence, op, failure }));
        self.settle(sequence, now);
    }

    /// Drops a failed collective once every local rank has been told.
    fn forget_if_told(&mut self, sequence: Sequence) {
        let Some(collective) = self.live.get(&sequence) else {
            return;
        };
        let told = collective.phase == Phase::Failed
            && (collective.epoch != self.epoch
                || self.active.is_none()
                || self.ranks.values().all(|rank| rank.next > sequence));
        if told {
            self.live.remove(&sequence);
        }
    }

    fn rank_name(&self, rank: RankId) -> String {
        let region = self.config.fabric.regions().iter().find(|r| r.ranks.contains(&rank.0));
        format!("rank {rank} ({})", region.map_or("no region", |region| &region.name))
    }

    fn gateway_name(&self, gateway: GatewayId) -> &str {
        &self.config.fabric.gateway(gateway).name
    }

    fn ready_peers(&self) -> Vec<GatewayId> {
        let ready = |(id, peer): (&GatewayId, &Peer)| {
            (peer.up && peer.ready == self.epoch && self.active.is_some()).then_some(*id)
        };
        self.peers.iter().filter_map(ready).collect()
    }
}

impl Core {
    fn id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }
    fn scratch(&mut self, bytes: u64) -> View {
        View { buffer: Buffer::Scratch(ScratchId(self.id())), range: 0..bytes }
    }
    /// Where a segment lands before it is added.
    fn landing(&mut self, bytes: u64) -> View {
        if mutant::is(Mutant::ShareLanding) {
            let shared = Buffer::Scratch(ScratchId(u64::MAX - bytes));
            return View { buffer: shared, range: 0..bytes };
        }
        self.scratch(bytes)
    }
    fn job(&mut self, key: SegmentKey, kind: Job) -> JobId {
        let job = JobId(self.id());
        self.jobs.insert(job, (key, kind));
        job
    }
    fn release(&mut self, view: &View) {
        if let Buffer::Scratch(scratch) = view.buffer {
            self.actions.push_back(Action::Release(scratch));
        }
    }
}

fn acceptable(post: &Post, world_size: u32) -> Result<(), String> {
    let Descriptor { op, dtype, elements, pattern, .. } = post.descriptor;
    if let Some(root) = pattern.root().filter(|root| root.0 >= world_size) {
        return Err(format!("{}: rank {root} is not one of {world_size}", pattern.name()));
    }
    if pattern == Pattern::Barrier && elements > 0 {
        return Err(format!("a barrier of {elements} elements; it carries none"));
    }
    if !op.accepts(dtype) {
        return Err(format!("{op} is not defined on {dtype}; use a floating-point dtype"));
    }
    if !(0.0..=MAX_WEIGHT).contains(&post.weight) {
        return Err(format!("weight {} is not a number from 0 to {MAX_WEIGHT:e}", post.weight));
    }
    if elements > 1 << 45 {
        return Err(format!("{elements} elements are more than 2^45"));
    }
    Ok(())
}

#[cfg(test)]
#[path = "session_end_tests.rs"]
mod end_tests;
#[cfg(test)]
#[path = "session_link_tests.rs"]
mod link_tests;
#[cfg(test)]
#[path = "session_peer_tests.rs"]
mod peer_tests;
#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
#[cfg(test)]
#[path = "session_world.rs"]
mod world;
