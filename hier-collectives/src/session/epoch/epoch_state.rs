//! The state of a gateway's epoch, and the events that begin and end epochs.

use super::drain_cutoff::DrainCutoff;
use super::epoch_boundary::EpochBoundary;
use super::epoch_membership::{EpochMembership, EpochStart, FIRST_GATEWAY, JoinRequest};
use super::link_reports::LinkReports;
use super::plan_schedule::PlanSchedule;
use crate::codec::fnv1a_hash;
use crate::descriptor::{AgreedCounts, Descriptor, KnownCounts};
use crate::ids::{BootId, Epoch, GatewayId, RankId, Sequence, TreeIndex};
use crate::mutant::{self, Mutant};
use crate::plan::{Plan, Tree};
use crate::post::{Committed, EpochId, Failure, FailureCode, PreparedSteps};
use crate::session::action::{Action, PeerError, SessionNote};
use crate::session::action_queue::ActionQueue;
use crate::session::local_gateway::LocalGateway;
use crate::session::session_config::SessionConfig;
use crate::topology::{Fabric, Link, LinkState};
use crate::wire::Message;
use std::sync::Arc;
use units::{ByteCount, TimeNs};

/// 2^62: a peer's Join or Begin with an epoch from 2^62 on, or a first collective from
/// [`Sequence::PLACES_BOUND`] on, is refused as a peer's error. No job counts so far, and the numbers
/// that follow still fit.
/// Tested by `numbers_that_nobody_reaches_are_refused`.
const PEER_EPOCHS_BOUND: u64 = 1 << 62;

/// The epoch as this gateway sees it.
#[derive(Debug)]
pub(in crate::session) struct EpochState {
    pub(super) local: LocalGateway,
    boot: BootId,
    /// The plan for the whole fabric, as this gateway was started with it.
    pub(super) own_plan: Plan,
    /// The plan of the epochs that this gateway opens, if it is the first by name.
    pub(super) next_plan: Plan,
    pub(super) members: EpochMembership,
    /// The number of the term in which epochs begin; 0 where the quorum is all regions.
    term: u64,
    /// The number of the last epoch this gateway was in.
    pub(super) number: Epoch,
    /// Present while the epoch lives.
    pub(super) active: Option<ActiveEpoch>,
    /// The failure that ended the last epoch, for peers that have not received it.
    ended: Option<Failure>,
    /// The last epoch that ended here, and why, for ranks that post in it.
    last_end: Option<(Epoch, Failure)>,
    pub(super) links: LinkReports,
    /// The time when a drain ends at the latest, once one has begun.
    pub(super) draining: Option<TimeNs>,
    /// Whether others are the job's world for now, so that this gateway enters no epoch here.
    suspended: bool,
    /// The most bytes of an unsolicited window, so that many groups together stay bounded.
    unsolicited_max: ByteCount,
}

/// The part that lives as long as the epoch.
#[derive(Debug)]
pub(super) struct ActiveEpoch {
    pub(super) plans: PlanSchedule,
    boots: Vec<BootId>,
    /// The number of the epoch's first collective.
    first: Sequence,
    pub(super) closing: Option<DrainCutoff>,
    /// The collective from which on ranks go on in another world, once it is known.
    pub(super) boundary: Option<EpochBoundary>,
    /// The failure of a boundary that this gateway has to decide.
    pub(super) boundary_request: Option<Failure>,
}

/// The answer to a peer's request to enter the next epoch.
#[derive(Debug)]
pub(in crate::session) enum JoinReply {
    /// The peer asked before it received Begin of this epoch: repeat Begin.
    RepeatBegin,
    /// The peer left the epoch, which ends here as well.
    EndEpoch(Failure),
    /// No epoch is under way: keep the request.
    Keep,
}

impl EpochState {
    /// Creates the state before the first epoch, with no peer up.
    pub fn new(config: SessionConfig) -> Self {
        let SessionConfig { fabric, me, gateways, boot, plan, last_epoch, .. } = config;
        let local = LocalGateway::new(fabric, me);
        Self {
            members: EpochMembership::new(local.fabric(), local.id(), gateways),
            links: LinkReports::new(local.fabric()),
            local,
            boot,
            next_plan: plan.clone(),
            own_plan: plan,
            term: 0,
            number: last_epoch,
            active: None,
            ended: None,
            last_end: None,
            draining: None,
            suspended: false,
            unsolicited_max: config.unsolicited_max,
        }
    }

    /// Returns the most bytes of an unsolicited window.
    pub fn unsolicited_max(&self) -> ByteCount {
        self.unsolicited_max
    }

    /// Returns this gateway's place in the fabric.
    pub fn local(&self) -> &LocalGateway {
        &self.local
    }

    /// Returns the id of this gateway.
    pub fn me(&self) -> GatewayId {
        self.local.id()
    }

    /// Returns the other gateways, with their reachability and requests.
    pub fn members(&self) -> &EpochMembership {
        &self.members
    }

    /// Returns the other gateways, to record their events.
    pub fn members_mut(&mut self) -> &mut EpochMembership {
        &mut self.members
    }

    /// Returns the number of the last epoch that this gateway was in.
    pub fn number(&self) -> Epoch {
        self.number
    }

    /// Returns the last epoch that this gateway was in, told from those of other terms.
    pub fn id(&self) -> EpochId {
        self.id_of(self.number)
    }

    /// Returns the epoch of a number in the term, told from those of other terms.
    pub fn id_of(&self, number: Epoch) -> EpochId {
        let term = if mutant::is_mutant_active(Mutant::ForgetTerms) { 0 } else { self.term };
        EpochId { term, number }
    }

    /// Whether this gateway is in an epoch now.
    pub fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// Returns the number of the first collective of the epoch under way; `None` outside an epoch.
    pub fn first_collective(&self) -> Option<Sequence> {
        self.active.as_ref().map(|active| active.first)
    }

    /// Whether a number is that of the epoch under way.
    pub fn is_current(&self, epoch: Epoch) -> bool {
        self.is_active() && (epoch == self.number || mutant::is_mutant_active(Mutant::IgnoreEpochs))
    }

    /// Returns the plans of the epoch under way; `None` outside an epoch.
    pub fn plans(&self) -> Option<&PlanSchedule> {
        self.active.as_ref().map(|active| &active.plans)
    }

    /// Returns the plan in force; `None` outside an epoch.
    pub fn plan(&self) -> Option<&Plan> {
        self.plans().map(PlanSchedule::plan)
    }

    /// Whether a collective is held back, since it may follow a plan that is not known here yet.
    pub fn is_held(&self, sequence: Sequence) -> bool {
        self.plans().is_some_and(|plans| plans.is_held(sequence))
    }

    /// Whether the counts of a collective suffice to carry out its parts here. An all-to-all with
    /// counts by pair passes blocks between other gateways on only once their ranks' counts are
    /// known; ranks here know the counts of all other blocks.
    pub fn knows_counts(
        &self,
        sequence: Sequence,
        descriptor: &Descriptor,
        counts: &KnownCounts,
    ) -> bool {
        let (me, fabric) = (self.me(), self.local.fabric());
        let Some(plans) = self.plans() else { return false };
        let others = || fabric.gateway_ids().filter(|id| *id != me);
        let is_relay = |tree: &Tree| tree.parents.values().any(|parent| *parent == me);
        let is_known = |owner: GatewayId| {
            let mut ranks = fabric.gateway(owner).ranks.clone().map(RankId);
            ranks.all(|rank| counts.sent_by(rank).is_some())
        };
        let trees = &plans.plan_of(sequence).owner_trees;
        descriptor.counts != AgreedCounts::ByPair
            || others().all(|owner| !trees.own(owner).any(is_relay) || is_known(owner))
    }

    /// Whether a collective's plan has a tree, or may have it if the plan is not known here yet.
    pub fn may_have_tree(&self, sequence: Sequence, tree: TreeIndex) -> bool {
        let may = |plans: &PlanSchedule| {
            plans.may_have_tree(sequence, tree, &self.next_plan, &self.local)
        };
        self.plans().is_some_and(may)
    }

    /// Returns the peers that can be reached and are in this gateway's epoch; none outside an
    /// epoch.
    pub fn ready_peers(&self) -> Vec<GatewayId> {
        if !self.is_active() {
            return vec![];
        }
        self.members.peers_ready_for(self.number).collect()
    }

    /// Whether a peer is in this gateway's epoch, whether or not the peer can be reached.
    pub fn has_member(&self, peer: GatewayId) -> bool {
        self.is_active() && self.members.sent_ready(peer, self.number)
    }

    /// Returns the link to a peer by this gateway's fabric file; none inside a region.
    pub fn link_to(&self, peer: GatewayId) -> Option<&Link> {
        self.local.link_to(peer)
    }
}

/// Entering and leaving.
impl EpochState {
    /// Asks the first gateway for the next epoch (Join) if all peers can be reached now. Does
    /// nothing in an epoch, in a drain or on the first gateway. `next` is one past the highest
    /// sequence known here.
    pub fn request_entry(
        &self,
        next: Sequence,
        committed: Option<Committed>,
        prepared: &PreparedSteps,
        actions: &mut ActionQueue,
    ) {
        if self.is_active() || !self.may_enter() || self.me() == FIRST_GATEWAY {
            return;
        }
        if self.members.all_up() {
            let (boot, last) = (self.boot, self.number);
            let prepared = prepared.clone();
            let join = Message::Join { boot, last, next, committed, prepared };
            actions.push_message(FIRST_GATEWAY, join);
        }
    }

    /// Returns the start of the next epoch, on the first gateway. All peers must have asked for it,
    /// and a plan must exist for the links that are up. `None` before, and in an epoch, a drain or
    /// while suspended. A step that all members of the last epoch have prepared counts as complete:
    /// a lost gateway may have confirmed it.
    pub fn next_epoch_start(
        &mut self,
        next: Sequence,
        committed: Option<Committed>,
        prepared: &PreparedSteps,
        actions: &mut ActionQueue,
    ) -> Option<EpochStart> {
        if self.me() != FIRST_GATEWAY || self.is_active() || !self.may_enter() {
            return None;
        }
        let joins = self.members.all_joined()?;
        if !self.has_plan_without_cut_links(actions) {
            return None;
        }
        let last = joins.iter().map(|join| join.last).max().unwrap_or_default();
        let all_prepared = joins.iter().map(|join| &join.prepared).chain([prepared]);
        let in_doubt = PreparedSteps::last_common(all_prepared)
            .filter(|_| !mutant::is_mutant_active(Mutant::ForgetPrepared));
        let known = joins.iter().map(|join| join.committed).chain([in_doubt]);
        let boots = [self.boot].into_iter().chain(joins.iter().map(|join| join.boot));
        Some(EpochStart {
            epoch: Epoch(self.number.max(last).0 + 1),
            next: joins.iter().map(|join| join.next).fold(next, Ord::max),
            boots: boots.collect(),
            plan: self.next_plan.clone(),
            committed: known.fold(committed, Ord::max),
        })
    }

    /// Enters an epoch and sends Ready to all peers, after Begin on the first gateway. `committed`
    /// is the last step known to be complete.
    pub fn enter_epoch(
        &mut self,
        start: EpochStart,
        committed: Option<Committed>,
        actions: &mut ActionQueue,
    ) {
        let EpochStart { epoch, next, boots, plan, .. } = start;
        self.number = epoch;
        self.links.forget_others(self.local.id());
        self.ended = None;
        actions.push(Action::Note(SessionNote::EpochBegan {
            epoch,
            next,
            algorithm: plan.algorithm.name(),
            reason: plan.reason.clone(),
            plan_hash: plan.encoding_hash(),
            boots_hash: hash_of_epoch_boots(&boots),
        }));
        let plans = PlanSchedule::new(plan, &self.local);
        let (closing, boundary, boundary_request) = (None, None, None);
        let first = next;
        let active = ActiveEpoch { plans, boots, first, closing, boundary, boundary_request };
        self.active = Some(active);
        for to in self.members.reachable_peers() {
            let begin =
                (self.me() == FIRST_GATEWAY).then(|| self.begin_message(committed)).flatten();
            actions.push_messages(to, begin);
            actions.push_message(to, self.ready_message(to));
        }
    }

    /// Whether this gateway enters epochs: it neither shuts down nor is suspended.
    fn may_enter(&self) -> bool {
        self.draining.is_none() && !self.suspended
    }

    /// Replaces the fabric between epochs by one with other rates, round trips or losses, and the plan by
    /// one for that fabric. Segments keep their size. Reports about links are void: they were compared
    /// with the fabric before.
    pub fn replace_fabric(&mut self, fabric: Arc<Fabric>, plan: Plan) {
        let segment = self.own_plan.segment;
        self.own_plan = Plan { segment, ..plan }.with_express_limit(&fabric);
        self.next_plan = self.own_plan.clone();
        self.links = LinkReports::new(&fabric);
        self.local = LocalGateway::new(fabric, self.local.id());
    }

    /// Enters no epoch from now on.
    pub fn suspend(&mut self) {
        self.suspended = true;
    }

    /// Enters epochs again, in a term and all with numbers above `last`. `ended` is the last epoch of the
    /// job that ended, and why, for ranks that post in it. Requests to enter that came before are void.
    pub fn resume(&mut self, term: u64, last: Epoch, ended: Option<(Epoch, Failure)>) {
        (self.suspended, self.ended, self.term) = (false, None, term);
        self.number = self.number.max(last);
        self.last_end = ended.or(self.last_end.take());
        self.members.end_epoch();
    }

    /// Returns the last epoch that ended here, and why; `None` before.
    pub fn last_end(&self) -> Option<&(Epoch, Failure)> {
        self.last_end.as_ref()
    }

    /// Skips an epoch that ended before it began.
    pub fn skip_epoch(&mut self, epoch: Epoch) {
        self.number = epoch;
    }

    /// Sends End to all ready peers except the one that the failure came from. The epoch lives on
    /// until [`EpochState::leave_epoch`].
    pub fn announce_end(
        &self,
        failure: &Failure,
        except: Option<GatewayId>,
        actions: &mut ActionQueue,
    ) {
        let message = Message::End { epoch: self.number, failure: failure.clone() };
        let others = self.ready_peers().into_iter().filter(|to| Some(*to) != except);
        actions.broadcast(others, &message);
    }

    /// Leaves the epoch, and drops its plans and all requests to enter.
    pub fn leave_epoch(&mut self) {
        self.active = None;
        self.members.end_epoch();
    }

    /// Keeps the failure that ended the epoch, for peers that have not received End and for ranks
    /// that post late.
    pub fn keep_end_failure(&mut self, failure: Failure) {
        self.last_end = Some((self.number, failure.clone()));
        self.ended = Some(failure);
    }

    /// Returns why the last epoch ended that this gateway was in; none before.
    pub fn last_end_failure(&self) -> Option<&Failure> {
        self.last_end.as_ref().map(|(_, failure)| failure)
    }

    /// Returns why an epoch ended, if it is the last one that ended here.
    pub fn end_failure_of(&self, epoch: Epoch) -> Option<&Failure> {
        let of_it = self.last_end.as_ref().filter(|(ended, _)| *ended == epoch);
        of_it.map(|(_, failure)| failure)
    }

    /// Builds the failure of a post in an epoch that is over. Ranks whose posts ended the epoch, or
    /// would fail again, hear that reason itself.
    pub fn late_post_failure(&self, epoch: Epoch) -> Failure {
        let text =
            format!("epoch {epoch} is over; recover the group and post again, contribution intact");
        match self.end_failure_of(epoch) {
            Some(end) if end.code.replaces_epoch_ended() => end.clone(),
            Some(end) => {
                Failure::new(FailureCode::EpochEnded, format!("{text}; it ended: {}", end.text))
            }
            None => Failure::new(FailureCode::EpochEnded, text),
        }
    }

    /// Tells a peer again that this gateway entered the epoch, with Begin and Ready, or left it,
    /// with End.
    pub fn repeat_entry(
        &self,
        peer: GatewayId,
        committed: Option<Committed>,
        actions: &mut ActionQueue,
    ) {
        if !self.is_active() {
            actions.push_messages(peer, self.end_message());
            return;
        }
        if self.me() == FIRST_GATEWAY {
            actions.push_messages(peer, self.begin_message(committed));
        }
        actions.push_message(peer, self.ready_message(peer));
    }

    /// Builds the message that tells a peer that the last epoch is over; `None` if this gateway has
    /// been in no epoch since it started.
    pub fn end_message(&self) -> Option<Message> {
        let failure = self.ended.clone()?;
        Some(Message::End { epoch: self.number, failure })
    }

    /// Builds Begin of the epoch under way; none outside an epoch.
    pub fn begin_message(&self, committed: Option<Committed>) -> Option<Message> {
        let active = self.active.as_ref()?;
        let (boots, plan) = (active.boots.clone(), active.plans.plan().clone());
        let (epoch, next) = (self.number, active.first);
        Some(Message::Begin { epoch, next, boots, plan, committed })
    }

    /// Builds Ready for a peer, with the link to it by this gateway's fabric file.
    fn ready_message(&self, to: GatewayId) -> Message {
        Message::Ready { epoch: self.number, link: self.link_to(to).map(LinkState::from_fabric) }
    }

    /// Decides how to answer a peer's request to enter the next epoch (Join): outside an epoch it
    /// is kept. In one, Begin is repeated to a member that asked before it heard of the epoch; any
    /// other request ends the epoch.
    ///
    /// # Errors
    /// [`PeerError`]: this gateway opens no epochs, or a number is too large.
    pub fn check_join(&self, from: GatewayId, join: &JoinRequest) -> Result<JoinReply, PeerError> {
        if self.me() != FIRST_GATEWAY {
            return Err(PeerError::NotYours("join to a gateway that is not the first"));
        }
        check_epoch_numbers(join.last, join.next)?;
        let prepared = join.prepared.steps.iter().map(|(below, _)| *below);
        let steps_end = prepared.chain(join.committed.map(|committed| committed.below)).max();
        let committed_in = join.committed.map_or(Epoch(0), |committed| committed.epoch.number);
        if steps_end.is_some_and(|end| end > join.next)
            || join.prepared.epoch.number.max(committed_in) > join.last
        {
            return Err(PeerError::NotYours("steps of epochs that are to come"));
        }
        let Some(active) = &self.active else { return Ok(JoinReply::Keep) };
        let known = active.boots.get(usize::from(from.0)) == Some(&join.boot);
        if known && join.last < self.number {
            return Ok(JoinReply::RepeatBegin);
        }
        let text = format!("gateway {} left the epoch", self.local.gateway_name(from));
        Ok(JoinReply::EndEpoch(Failure::new(FailureCode::EpochEnded, text)))
    }

    /// Whether this gateway enters an epoch that the first gateway begins. The epoch must be later
    /// than the last one here and name this start of the gateway. In a drain or suspended, the
    /// gateway enters none.
    ///
    /// # Errors
    /// [`PeerError`]: the sender may not begin epochs, or the message is malformed.
    pub fn check_begin(&self, from: GatewayId, start: &EpochStart) -> Result<bool, PeerError> {
        if from != FIRST_GATEWAY {
            return Err(PeerError::NotYours("begin"));
        }
        check_epoch_numbers(start.epoch, start.next)?;
        let gateways = u16::try_from(self.local.fabric().gateways().len()).unwrap_or(u16::MAX);
        if start.boots.len() != usize::from(gateways) {
            return Err(PeerError::BadPlan("not one boot id for each gateway".to_owned()));
        }
        self.check_plan(&start.plan)?;
        let mine = start.boots[usize::from(self.me().0)];
        Ok(start.epoch > self.number && mine == self.boot && self.may_enter())
    }

    /// Checks a peer's plan. Its segments may be at most 16 times shorter or longer than ours, its
    /// trees no more than this fabric can need. It must be valid as `Plan::prove` says, with edges
    /// only between connected gateways.
    pub(super) fn check_plan(&self, plan: &Plan) -> Result<(), PeerError> {
        let fabric = self.local.fabric();
        plan.prove_near(&self.next_plan, fabric).map_err(PeerError::BadPlan)?;
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

/// The messages that bring a peer up to date.
impl EpochState {
    /// Builds the messages about drain, boundary, plans and links that bring a peer up to date.
    pub fn catch_up_messages(&self, peer: GatewayId) -> Vec<Message> {
        let Some(active) = &self.active else { return vec![] };
        let (me, epoch) = (self.me(), self.number);
        let closing = active.closing.as_ref().filter(|_| self.draining.is_some());
        let drain = closing.map(|closing| Message::Drain { epoch, from: closing.first_sequence() });
        let mut facts: Vec<Message> = drain.into_iter().chain(self.boundary_message()).collect();
        facts.extend(active.plans.catch_up_messages(peer, me, epoch));
        if peer == FIRST_GATEWAY {
            facts.extend(self.links.own_messages(me, epoch));
        }
        facts
    }
}

/// Refuses epochs and sequences so large that nobody reaches them by counting.
///
/// # Errors
/// [`PeerError::Uncountable`]: a number is not below its bound.
fn check_epoch_numbers(epoch: Epoch, next: Sequence) -> Result<(), PeerError> {
    if epoch.0 >= PEER_EPOCHS_BOUND || next.0 >= Sequence::PLACES_BOUND {
        return Err(PeerError::Uncountable { epoch, next });
    }
    Ok(())
}

/// Returns the digest of the boot ids of an epoch's gateways, in the order of the gateways.
fn hash_of_epoch_boots(boots: &[BootId]) -> u64 {
    let bytes: Vec<u8> = boots.iter().flat_map(|boot| boot.0.to_be_bytes()).collect();
    fnv1a_hash(&bytes)
}
