//! One gateway's part in the agreement on terms.

use super::fabric_version::{FabricVersion, HeldFabrics, SignedFabric};
use super::region_intents::RegionIntents;
use super::term::{Term, TermId};
use super::term_message::{TermMessage, TermStanding};
use super::term_proposal::{
    AskedPause, ProposalSupport, TermPause, TermProposal, is_quorum_with_witness, proposal_gateways,
};
use super::witness_notice::WitnessNotice;
use crate::ids::{BootId, GatewayId, RegionId};
use crate::mesh::{MeshConnectionState, MeshGraph, Routes};
use crate::post::Failure;
use crate::session::PeerError;
use crate::topology::Fabric;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use units::{Span, TimeNs};

/// 1 s: a question or proposal about the next term, the regions that go on, is repeated without all
/// answers. The wait is max(1 s, 3 round trips of the longest link). 1 s is chosen, well above a
/// round trip, so that answers come first.
const REPEATED_AFTER_MIN: Span = Span::from_secs(1);

/// 3 round trips of the longest link: a question or proposal about the next term, the regions that
/// go on, is repeated then without all answers. 1 s counts where it is longer. A message may take
/// two links each way.
const REPEATED_AFTER_ROUND_TRIPS: u64 = 3;

/// 2 s: regions that were away must be reached for 2 s without a change before a term with them is
/// proposed. Each new term interrupts a step of the others, so a link that comes and goes shall not
/// cause many. The time is chosen.
pub(super) const NEWCOMERS_AWAITED: Span = Span::from_secs(2);

/// An action of a gateway that follows from the agreement, to be performed in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TermAction {
    /// Send a message to another gateway.
    Message {
        /// The receiver.
        to: GatewayId,
        /// The message.
        message: TermMessage,
    },
    /// Leave the term: collectives under way fail with this failure. Without one the quorum is lost,
    /// and they fail as their session says.
    Leave(Option<Failure>),
    /// Enter a term.
    Enter(Term),
    /// Bring all jobs to a boundary, at which ranks hear this failure, and call
    /// [`TermAgreement::handle_boundary`] then. Asked again, as an epoch may have begun meanwhile.
    Pause(Failure),
    /// Check the signature of a fabric and whether this gateway could put it in force, and call
    /// [`TermAgreement::offer_fabric`] if so.
    CheckFabric {
        /// The fabric.
        fabric: SignedFabric,
        /// The time for which a boundary is awaited.
        within: Span,
    },
}

/// The agreement on terms, as one gateway takes part in it.
#[derive(Debug)]
pub struct TermAgreement {
    pub(super) fabric: Arc<Fabric>,
    pub(super) me: GatewayId,
    pub(super) boot: BootId,
    pub(super) graph: MeshGraph,
    pub(super) routes: Routes,
    /// The greatest number of a term that this gateway knows of.
    latest: u64,
    /// The term that this gateway has voted for last and has not left.
    pub(super) voted: Option<Term>,
    /// The term that it is in.
    pub(super) term: Option<Term>,
    /// The last term of which an epoch has begun here since its start.
    begun: Option<TermId>,
    notice: WitnessNotice,
    /// The last words of other gateways about themselves, of those that can be reached.
    pub(super) standings: BTreeMap<GatewayId, TermStanding>,
    proposal: Option<TermProposal>,
    /// Whether another gateway refused the last proposal, so that the next one waits until it is due,
    /// if anything is due.
    is_refused: bool,
    /// Since when more regions than those of the term are reached, and which.
    pub(super) newcomers: Option<(BTreeSet<RegionId>, TimeNs)>,
    /// The operators' intents for regions.
    pub(super) intents: RegionIntents,
    /// The fabric in force, and the newest one.
    pub(super) fabrics: HeldFabrics,
    /// The pause of the term that this gateway is about to replace.
    pub(super) pause: Option<TermPause>,
    /// The pause of its term that this gateway was asked for.
    pub(super) asked: Option<AskedPause>,
    /// When the next question, proposal or standing is due.
    pub(super) due: Option<TimeNs>,
    pub(super) actions: VecDeque<TermAction>,
}

impl TermAgreement {
    /// Makes the part of a gateway that has just started, and reaches nobody. `version` is that of its
    /// fabric.
    pub fn new(fabric: Arc<Fabric>, version: FabricVersion, me: GatewayId, boot: BootId) -> Self {
        let graph = MeshGraph::uniform(&fabric, MeshConnectionState::Awaited);
        Self {
            fabric,
            me,
            boot,
            graph,
            routes: Routes::none(),
            latest: 0,
            voted: None,
            term: None,
            begun: None,
            notice: WitnessNotice::default(),
            standings: BTreeMap::new(),
            proposal: None,
            is_refused: false,
            newcomers: None,
            intents: RegionIntents::default(),
            fabrics: HeldFabrics::of_file(version),
            pause: None,
            asked: None,
            due: None,
            actions: VecDeque::new(),
        }
    }

    /// Returns the term that this gateway is in; `None` while it is in none.
    pub fn term(&self) -> Option<&Term> {
        self.term.as_ref()
    }

    /// Whether the witness is reached and counts: it remembers which terms may have gone on.
    pub fn is_witness_ready(&self) -> bool {
        let Some(witness) = self.fabric.witness() else { return false };
        let standing = self.standings.get(&witness).filter(|_| self.routes.reaches(witness));
        standing.is_some_and(|standing| standing.remembers)
    }

    /// Removes and returns the oldest action that is not performed yet; `None` when all are.
    pub fn poll_action(&mut self) -> Option<TermAction> {
        self.actions.pop_front()
    }

    /// Returns the time of the next [`TermAgreement::handle_timeout`]; `None` without one.
    pub fn poll_timeout(&self) -> Option<TimeNs> {
        // Once newcomers are proposed, the proposal is due.
        let taken_in = || self.newcomers.as_ref().map(|(_, since)| *since + NEWCOMERS_AWAITED);
        let of_term = self.due.or_else(taken_in).into_iter();
        let others = [self.notice.poll_timeout(), self.fabrics.compared_again];
        let others = others.into_iter().flatten().chain(self.intents.next_deadline());
        of_term.chain(others).min()
    }

    /// Adopts the connections between all gateways, leaves the term if a member cannot be reached
    /// any more, and goes on with the agreement. `why` is the reason for which some are lost, for
    /// the text of a failure.
    pub fn handle_connections(&mut self, graph: &MeshGraph, why: &str, now: TimeNs) {
        self.graph = graph.clone();
        let routes = Routes::from_gateway(graph, self.me);
        let before = std::mem::replace(&mut self.routes, routes);
        self.tell_intents_to_new(&before, now);
        self.tell_fabric_to_new(&before);
        let routes = &self.routes;
        self.standings.retain(|id, _| routes.reaches(*id));
        self.leave_term_if_lost(why);
        self.advance(now);
        self.tell_witness(now);
    }

    /// Repeats what is due, and takes in regions that have been back for long enough.
    pub fn handle_timeout(&mut self, now: TimeNs) {
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            // Votes that are missing by now may never come.
            (self.proposal, self.is_refused) = (None, false);
        }
        self.intents.note_time(now);
        self.advance(now);
        self.tell_witness(now);
    }

    /// Notes that an epoch has begun in the term: this gateway knows now what the members knew.
    pub fn handle_epoch(&mut self, now: TimeNs) {
        let Some(term) = &self.term else { return };
        if self.begun != Some(term.id) {
            self.begun = Some(term.id);
            self.tell_witness(now);
        }
    }

    /// Handles a message of another gateway. Answers a question by this gateway's standing, and a
    /// proposal by its vote or refusal. Records standings, votes and refusals, and enters a term
    /// that begins if it has voted for that last and is in none.
    ///
    /// # Errors
    /// [`PeerError`]: the gateway proposes a term that it may not propose.
    pub fn handle_message(
        &mut self,
        from: GatewayId,
        message: TermMessage,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        match message {
            TermMessage::Ask => {
                self.answer_left_region(from, false, now);
                self.send(from, TermMessage::Standing(self.standing()));
            }
            TermMessage::Standing(standing) => self.handle_standing(from, standing, now),
            TermMessage::Propose { term, to } => return self.handle_proposal(from, term, to, now),
            TermMessage::Vote { term, boot, remembers } => {
                let is_known = self.standings.get(&from).is_some_and(|known| known.boot == boot);
                let proposal = self.proposal.as_mut().filter(|proposal| proposal.term.id == term);
                if let Some(proposal) = proposal.filter(|_| is_known) {
                    proposal.add_vote(from, remembers);
                    self.begin_term_if_carried(now);
                }
            }
            TermMessage::Refuse { term, latest } => {
                self.latest = self.latest.max(latest);
                if self.proposal.as_ref().is_some_and(|proposal| proposal.term.id == term) {
                    // Whoever refuses may see more.
                    (self.proposal, self.is_refused) = (None, true);
                    self.due.get_or_insert(now + self.repeated_after());
                }
            }
            TermMessage::Begin(term) => {
                let voted = self.voted.as_ref().filter(|voted| voted.id == term.id);
                if voted.is_some_and(|voted| *voted != term) {
                    return Err(PeerError::NotYours("a term of other regions than proposed"));
                }
                if voted.is_some() && self.term.is_none() {
                    self.enter_term(term, now);
                }
            }
            TermMessage::Intents(intents) => return self.handle_intents(from, &intents, now),
            TermMessage::Pause { term, failure } => {
                return self.handle_pause(from, term, failure, now);
            }
            TermMessage::Paused(term) => self.handle_paused(from, term, now),
            TermMessage::Fabric { fabric, within } => self.handle_fabric(fabric, within),
            TermMessage::ProposeToWitness { .. } | TermMessage::Begun { .. } => {
                return Err(PeerError::NotYours("a message to a witness"));
            }
        }
        Ok(())
    }

    /// Records what another gateway says about itself. A member that has voted for this gateway's
    /// term and is not in it hears again that the term begins. A member that has not voted for it
    /// ends it.
    fn handle_standing(&mut self, from: GatewayId, standing: TermStanding, now: TimeNs) {
        self.latest = self.latest.max(standing.latest);
        if self.routes.reaches(from) {
            let before = self.standings.insert(from, standing);
            if before.is_some_and(|before| before.boot != standing.boot) {
                // Its vote was of the start before.
                self.proposal = None;
            }
        }
        let region = self.fabric.gateway(from).region;
        if let Some(term) = self.term.clone().filter(|term| term.regions.contains(&region)) {
            let has_voted = standing.voted == term.id;
            if has_voted && !standing.is_in_term {
                self.send(from, TermMessage::Begin(term));
            } else if !has_voted && standing.latest < term.id.number {
                // Said before its vote for the term, or by another start: it is asked which.
                self.send(from, TermMessage::Standing(self.standing()));
                self.send(from, TermMessage::Ask);
            } else if !has_voted {
                let name = &self.fabric.gateway(from).name;
                let text = format!("gateway {name} was started again, or has left the term");
                let failure = self.asked_failure();
                let failure = failure.unwrap_or_else(|| self.change_failure(&text, &term.regions));
                self.leave_term(Some(failure));
            }
        }
        self.answer_fabric_of(from, standing.newest);
        self.answer_standing(from, standing.is_in_term, now);
        if self.fabric.witness() == Some(from) {
            self.notice.handle_standing(standing);
            self.tell_witness(now);
        }
        self.advance(now);
    }

    /// Tells the witness of an epoch that has begun here, until it has noted that.
    fn tell_witness(&mut self, now: TimeNs) {
        let Some(witness) = self.fabric.witness() else { return };
        let is_reached = self.routes.reaches(witness);
        let begun = self.term.as_ref().filter(|term| is_reached && self.begun == Some(term.id));
        let boot = self.standings.get(&witness).map(|standing| standing.boot);
        let repeated_after = self.repeated_after();
        if let Some(message) = self.notice.next_message(begun, boot, now, repeated_after) {
            self.send(witness, message);
        }
    }

    /// Votes for a term that another gateway proposes, or refuses it. A term is refused if its number
    /// is not above all known ones, or if it lacks a region of this gateway's term that has not left.
    /// A term is also refused if one of its regions is out of reach or has left, if it comes from a
    /// region that joins at a boundary, or if this gateway does not hold its fabric. A proposal to another start of this gateway is answered by its standing.
    ///
    /// # Errors
    /// [`PeerError`]: the term has no quorum, an unknown region, or not the regions of both
    /// gateways.
    fn handle_proposal(
        &mut self,
        from: GatewayId,
        term: Term,
        to: BootId,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        let regions = self.fabric.ranked_region_count();
        let own = self.fabric.gateway(self.me).region;
        let theirs = self.fabric.gateway(from).region;
        let is_known = term.regions.iter().all(|id| usize::from(id.0) < regions);
        if !is_known
            || !term.regions.contains(&own)
            || !term.regions.contains(&theirs)
            || !is_quorum_with_witness(&self.fabric, &term.regions)
        {
            return Err(PeerError::NotYours("a term without a quorum, or without its gateways"));
        }
        if to != self.boot {
            self.send(from, TermMessage::Standing(self.standing()));
            return Ok(());
        }
        let keeps = self.keeps_term_against(&term, theirs, now);
        // Whoever cannot reach a member would leave the term at once.
        let reaches_all = self.reached_regions().is_superset(&term.regions);
        let has_fabric = self.has_fabric(term.fabric);
        if term.id.number <= self.latest || keeps || !reaches_all || !has_fabric {
            self.tell_intents(from, now);
            if !has_fabric {
                // Whichever of both is behind is told what it lacks.
                self.answer_fabric_of(from, term.fabric);
                self.send(from, TermMessage::Standing(self.standing()));
            }
            self.latest = self.latest.max(term.id.number);
            let refusal = TermMessage::Refuse { term: term.id, latest: self.latest };
            self.send(from, refusal);
            return Ok(());
        }
        self.proposal = None;
        self.vote_for(&term);
        let remembers = self.begun.is_some();
        let vote = TermMessage::Vote { term: term.id, boot: self.boot, remembers };
        self.send(from, vote);
        self.due = Some(now + self.repeated_after());
        Ok(())
    }

    /// Records this gateway's vote for a term, and leaves the term that it is in.
    fn vote_for(&mut self, term: &Term) {
        if let Some(before) = self.term.clone() {
            let new: Vec<RegionId> = term.regions.difference(&before.regions).copied().collect();
            let text = match new[..] {
                [] => "the gateways form a new term".to_owned(),
                _ => format!("{} can be reached again", self.region_names(&new)),
            };
            let failure = self.asked_failure();
            let failure = failure.unwrap_or_else(|| self.change_failure(&text, &term.regions));
            self.leave_term(Some(failure));
            self.voted = Some(term.clone());
            // Those that are in it no more hear that from nobody else.
            let out: BTreeSet<RegionId> =
                before.regions.difference(&term.regions).copied().collect();
            let fabric = Arc::clone(&self.fabric);
            for to in proposal_gateways(&fabric, &out) {
                self.send(to, TermMessage::Standing(self.standing()));
            }
        }
        self.latest = self.latest.max(term.id.number);
        self.voted = Some(term.clone());
    }

    /// Begins the proposed term once all its gateways have voted, and enough of them remember a
    /// term.
    fn begin_term_if_carried(&mut self, now: TimeNs) {
        let fabric = Arc::clone(&self.fabric);
        let Some(proposal) = self.proposal.take_if(|proposal| proposal.is_carried(&fabric)) else {
            return;
        };
        for to in proposal_gateways(&fabric, &proposal.term.regions) {
            if to != self.me {
                self.send(to, TermMessage::Begin(proposal.term.clone()));
            }
        }
        self.enter_term(proposal.term, now);
    }

    /// Enters a term that all its gateways have voted for, unless one of them is lost by now.
    fn enter_term(&mut self, term: Term, now: TimeNs) {
        self.due = None;
        self.newcomers = None;
        self.settle_intents(&term, now);
        self.adopt_fabric_of(&term);
        self.actions.push_back(TermAction::Enter(term.clone()));
        self.term = Some(term);
        self.leave_term_if_lost("it was lost meanwhile");
        self.advance(now);
    }

    /// Leaves the term if a member cannot be reached: with a failure that says so if this gateway may
    /// go on with those that are left.
    fn leave_term_if_lost(&mut self, why: &str) {
        let Some(failure) = self.loss_failure(why) else { return };
        let target = self.target_regions();
        let goes_on =
            target.contains(&self.fabric.gateway(self.me).region) && self.may_go_on(&target);
        self.leave_term(goes_on.then_some(failure));
    }

    /// Leaves the term, if this gateway is in one.
    fn leave_term(&mut self, failure: Option<Failure>) {
        if self.term.take().is_some() {
            // Nobody enters a term again that it has left.
            (self.voted, self.newcomers) = (None, None);
            (self.pause, self.asked) = (None, None);
            self.actions.push_back(TermAction::Leave(failure));
        }
    }

    /// Takes the next step of the agreement. The first gateway of the regions that may go on
    /// proposes a term of them, if they are a quorum and its own term is another. In a term it
    /// first awaits that newcomers stay reached, and that jobs come to a boundary if an operator
    /// is the cause. Every other gateway tells that one its standing until it is in such a term.
    pub(super) fn advance(&mut self, now: TimeNs) {
        self.end_parted_leaves(now);
        let target = self.target_regions();
        let leader = self.leader_among(&target, now);
        let is_quorum = self.may_go_on(&target);
        self.compare_fabrics(now);
        if leader != Some(self.me) || !is_quorum {
            (self.proposal, self.newcomers) = (None, None);
            // In a smaller term, too: the one that leads may not know of it.
            match leader.filter(|_| is_quorum && !self.is_in_term_of(&target)) {
                None => self.due = None,
                Some(leader) if self.due.is_none() => {
                    self.due = Some(now + self.repeated_after());
                    self.tell_intents(leader, now);
                    self.send(leader, TermMessage::Standing(self.standing()));
                }
                Some(_) => {}
            }
            return;
        }
        if self.may_replace_term(&target, now) {
            self.propose_term(target, now);
        }
    }

    /// Proposes a term of these regions, unless that is done, once it is known how their gateways
    /// stand and enough remember a term. Until then asks the gateways for their standing.
    fn propose_term(&mut self, regions: BTreeSet<RegionId>, now: TimeNs) {
        let version = self.next_fabric();
        let is_same = |proposal: &TermProposal| {
            proposal.term.regions == regions && proposal.term.fabric == version
        };
        if self.proposal.as_ref().is_some_and(is_same) {
            return;
        }
        let (me, fabric) = (self.me, Arc::clone(&self.fabric));
        let support =
            ProposalSupport::of_regions(&fabric, &regions, |id| self.knows_to_remember(id));
        let witness = fabric.witness().filter(|_| support != ProposalSupport::Enough);
        let others = || proposal_gateways(&fabric, &regions).filter(|id| *id != me).chain(witness);
        let mut unknown: Vec<GatewayId> = others().collect();
        unknown.retain(|id| !self.standings.contains_key(id));
        let may_go_on = match support {
            ProposalSupport::Enough => true,
            ProposalSupport::WithWitness(_) => witness.is_some_and(|id| self.knows_to_remember(id)),
            ProposalSupport::TooLittle => false,
        };
        if !may_go_on && unknown.is_empty() && self.drop_forgotten_leaves(now) {
            return self.advance(now);
        }
        if !unknown.is_empty() || !may_go_on {
            // Those that nobody may go on with yet are asked again: they may remember by then.
            let asked: Vec<GatewayId> = if may_go_on { unknown } else { others().collect() };
            if self.due.is_none() {
                self.due = Some(now + self.repeated_after());
                asked.into_iter().for_each(|to| self.ask(to));
            }
            return;
        }
        if self.is_refused && self.due.is_some() {
            return;
        }
        self.is_refused = false;
        let id = TermId { number: self.latest + 1, boot: self.boot };
        self.invite_to(Term { id, regions, fabric: version }, &support);
        self.due = Some(now + self.repeated_after());
        self.begin_term_if_carried(now);
    }

    /// Votes for a term of its own, and proposes it to all whose votes it needs.
    fn invite_to(&mut self, term: Term, support: &ProposalSupport) {
        let fabric = Arc::clone(&self.fabric);
        let mut proposal = TermProposal::of_term(term.clone());
        proposal.add_vote(self.me, self.begun.is_some());
        self.vote_for(&term);
        let boot = |id: GatewayId| self.standings.get(&id).map(|standing| standing.boot);
        let to_members = proposal_gateways(&fabric, &term.regions).filter_map(|id| {
            let message = TermMessage::Propose { term: term.clone(), to: boot(id)? };
            Some((id, message))
        });
        let mut invitations: Vec<(GatewayId, TermMessage)> = to_members.collect();
        if let (ProposalSupport::WithWitness(remembering), Some(witness)) =
            (support, fabric.witness())
        {
            let (term, remembering) = (term.clone(), remembering.clone());
            let message = |to| TermMessage::ProposeToWitness { term, to, remembering };
            invitations.extend(boot(witness).map(|to| (witness, message(to))));
        }
        for (to, message) in invitations {
            self.send(to, message);
        }
        self.proposal = Some(proposal);
    }
}

/// Facts that this gateway knows, and says of itself.
impl TermAgreement {
    /// Returns what this gateway says about itself.
    pub(super) fn standing(&self) -> TermStanding {
        TermStanding {
            boot: self.boot,
            latest: self.latest,
            voted: self.voted.as_ref().map_or_else(TermId::default, |term| term.id),
            is_in_term: self.term.is_some(),
            remembers: self.begun.is_some(),
            in_force: self.fabrics.in_force,
            newest: self.fabrics.newest_version(),
            refused: self.fabrics.refused.unwrap_or_default(),
        }
    }

    /// Whether this gateway knows that a gateway remembers a term.
    fn knows_to_remember(&self, gateway: GatewayId) -> bool {
        if gateway == self.me {
            return self.begun.is_some();
        }
        self.standings.get(&gateway).is_some_and(|standing| standing.remembers)
    }

    /// Whether these regions may be a quorum, if need be with the witness, if that is reached.
    pub(super) fn may_go_on(&self, regions: &BTreeSet<RegionId>) -> bool {
        let is_witness_reached = self.fabric.witness().is_some_and(|id| self.routes.reaches(id));
        self.fabric.is_quorum(regions)
            || is_witness_reached && is_quorum_with_witness(&self.fabric, regions)
    }

    /// Queues a message.
    pub(super) fn send(&mut self, to: GatewayId, message: TermMessage) {
        self.actions.push_back(TermAction::Message { to, message });
    }

    /// Returns the time until a question or proposal is repeated.
    pub(super) fn repeated_after(&self) -> Span {
        let longest = self.fabric.links().iter().map(|link| link.rtt.ns()).max().unwrap_or(0);
        REPEATED_AFTER_MIN.max(Span::from_ns(REPEATED_AFTER_ROUND_TRIPS * longest))
    }

    /// Returns the regions that this gateway reaches: all their gateways, over connections between
    /// gateways of such regions alone.
    pub(super) fn reached_regions(&self) -> BTreeSet<RegionId> {
        let count = u16::try_from(self.fabric.ranked_region_count()).unwrap_or(u16::MAX);
        self.reached_among((0..count).map(RegionId).collect())
    }

    /// Returns those of some regions that this gateway reaches, over connections between gateways of
    /// such regions alone; none if its own is not one of them.
    pub(super) fn reached_among(&self, mut regions: BTreeSet<RegionId>) -> BTreeSet<RegionId> {
        loop {
            let gateways: Vec<GatewayId> = proposal_gateways(&self.fabric, &regions).collect();
            let Ok(me) = gateways.binary_search(&self.me) else { return BTreeSet::new() };
            let number = |index: usize| GatewayId(u16::try_from(index).unwrap_or(u16::MAX));
            let graph = self.graph.restricted_to(&gateways);
            let routes = Routes::from_gateway(&graph, number(me));
            let missing =
                (0..gateways.len()).filter(|at| *at != me && !routes.reaches(number(*at)));
            let missing: BTreeSet<RegionId> =
                missing.map(|index| self.fabric.gateway(gateways[index]).region).collect();
            if missing.is_empty() {
                return regions;
            }
            regions.retain(|id| !missing.contains(id));
        }
    }
}
