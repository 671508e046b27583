//! Regions that leave the world of all jobs and join it again, at an operator's request, at a boundary.
//!
//! Intents travel to all gateways. The first gateway of the term that stays asks all gateways of the
//! term to bring their jobs to a boundary. When they have, or after the time that the operator gave, it
//! proposes the next term. A change that is called off after that began (`overdue_leaves`) still ends
//! with a new term, since ranks wait for it.

use super::region_intents::{RegionIntent, RegionIntentError};
use super::term::{Term, TermId};
use super::term_agreement::{NEWCOMERS_AWAITED, TermAction, TermAgreement};
use super::term_message::TermMessage;
use super::term_proposal::{AskedPause, TermPause, proposal_gateways};
use crate::ids::{GatewayId, RegionId};
use crate::mesh::Routes;
use crate::mutant::{self, Mutant};
use crate::post::{Failure, FailureCode};
use crate::session::PeerError;
use std::collections::BTreeSet;
use std::sync::Arc;
use units::{Span, TimeNs};

/// Requests of operators.
impl TermAgreement {
    /// Begins to take a region out of the world of all jobs, or into it, at a step's boundary; after
    /// `within` without one. Does nothing if that is intended already.
    ///
    /// # Errors
    /// [`RegionIntentError`]: the others could not go on, or this gateway cannot tell.
    pub fn request_change(
        &mut self,
        region: RegionId,
        leaves: bool,
        within: Span,
        now: TimeNs,
    ) -> Result<(), RegionIntentError> {
        let own = self.fabric.gateway(self.me).region;
        if self.intents.has_left(own) && region != own {
            return Err(RegionIntentError::LeftItself);
        }
        if leaves && !self.intents.has_left(region) {
            let term = self.term.as_ref().ok_or(RegionIntentError::NoTerm)?;
            let mut staying = &term.regions - &self.intents.left();
            staying.remove(&region);
            self.check_staying_regions(&staying)?;
        }
        if let Some(intent) = self.intents.following(region, leaves, within) {
            self.intents.record(intent, now);
            self.note_met_intents();
            self.tell_all_intents(now);
            self.advance(now);
        }
        Ok(())
    }

    /// Checks that regions can go on without all others.
    ///
    /// # Errors
    /// They are no quorum, or do not reach each other.
    pub(super) fn check_staying_regions(
        &self,
        staying: &BTreeSet<RegionId>,
    ) -> Result<(), RegionIntentError> {
        let names = || match staying.is_empty() {
            true => "no regions".to_owned(),
            false => self.region_names(&staying.iter().copied().collect::<Vec<_>>()),
        };
        if !self.may_go_on(staying) {
            return Err(RegionIntentError::NoQuorum(names()));
        }
        let gateways: Vec<GatewayId> = proposal_gateways(&self.fabric, staying).collect();
        let graph = self.graph.restricted_to(&gateways);
        let routes = Routes::from_gateway(&graph, GatewayId(0));
        let mut others = (1..gateways.len()).map(|at| GatewayId(at as u16));
        if others.all(|number| routes.reaches(number)) {
            Ok(())
        } else {
            Err(RegionIntentError::Unlinked(names()))
        }
    }

    /// Returns the regions that have left: this gateway knows of a term that began without them.
    pub fn left_regions(&self) -> BTreeSet<RegionId> {
        self.intents.made_leaves()
    }

    /// Returns the regions that are to leave, and are not known to have left.
    pub fn leaving_regions(&self) -> BTreeSet<RegionId> {
        &self.intents.left() - &self.intents.made_leaves()
    }

    /// Returns the regions that are to join, and are not known to be in a term.
    pub fn joining_regions(&self) -> BTreeSet<RegionId> {
        self.intents.not_joined()
    }

    /// Whether all jobs are to come to a boundary, and have not done so yet.
    pub fn awaits_boundary(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| !asked.is_reached)
    }

    /// Notes that all jobs have come to the boundary that [`TermAction::Pause`] asked for.
    pub fn handle_boundary(&mut self, now: TimeNs) {
        if let Some(asked) = &mut self.asked {
            asked.is_reached = true;
            self.answer_pause(now);
        }
    }
}

/// Intents, and the regions of the next term.
impl TermAgreement {
    /// Records intents of another gateway, and goes on with the agreement if some are news. Tells it
    /// those that it lacks.
    pub(super) fn handle_intents(
        &mut self,
        from: GatewayId,
        intents: &[RegionIntent],
        now: TimeNs,
    ) -> Result<(), PeerError> {
        let ranked = self.fabric.ranked_region_count();
        if intents.iter().any(|intent| usize::from(intent.region.0) >= ranked) {
            return Err(PeerError::NotYours("an intent for a region without ranks"));
        }
        if self.intents.has_news_for(intents) {
            self.tell_intents(from, now);
        }
        let news = intents.iter().filter(|intent| self.intents.record(**intent, now)).count();
        if news > 0 {
            self.note_met_intents();
            self.advance(now);
        }
        Ok(())
    }

    /// Notes the intents that the term meets already.
    fn note_met_intents(&mut self) {
        if let Some(term) = &self.term {
            let _ = self.intents.note_term(&term.regions);
        }
    }

    /// Tells another gateway with ranks the intents, if there are any and it is reached.
    pub(super) fn tell_intents(&mut self, to: GatewayId, now: TimeNs) {
        let intents = self.intents.to_send(now);
        let is_told = to != self.me && self.fabric.witness() != Some(to);
        if is_told && self.routes.reaches(to) && !intents.is_empty() {
            self.send(to, TermMessage::Intents(intents));
        }
    }

    /// Tells the intents to all gateways that are reached now and were not over the routes before.
    pub(super) fn tell_intents_to_new(&mut self, before: &Routes, now: TimeNs) {
        let fabric = Arc::clone(&self.fabric);
        let new = fabric.gateway_ids().filter(|id| !before.reaches(*id));
        new.for_each(|to| self.tell_intents(to, now));
    }

    /// Answers the standing of another gateway by the intents that it may lack, as it may have been
    /// started again since: if its region has left, and if it waits for a leader. A leader tells the
    /// intents with its proposal.
    pub(super) fn answer_standing(&mut self, from: GatewayId, is_in_term: bool, now: TimeNs) {
        let has_left = self.intents.has_left(self.fabric.gateway(from).region);
        let leads = self.leader_among(&self.target_regions(), now) == Some(self.me);
        if !is_in_term && !leads && !has_left {
            self.tell_intents(from, now);
        }
        self.answer_left_region(from, is_in_term, now);
    }

    /// Tells a gateway whose region has left that it did so, as it may have been started again since,
    /// and that it is alone if it believes to be in a term.
    pub(super) fn answer_left_region(&mut self, from: GatewayId, is_in_term: bool, now: TimeNs) {
        let region = self.fabric.gateway(from).region;
        let is_here = self.term.as_ref().is_some_and(|term| term.regions.contains(&region));
        if self.intents.has_left(region) && !is_here {
            self.tell_intents(from, now);
            if is_in_term {
                self.send(from, TermMessage::Standing(self.standing()));
            }
        }
    }

    /// Returns the regions of the next term as far as they are reached: all but those that have left.
    /// Regions whose leave is overdue are in it if the others cannot go on.
    pub(super) fn target_regions(&self) -> BTreeSet<RegionId> {
        let left = self.intents.left();
        let staying = self.regions_without(&left);
        let overdue = self.intents.overdue();
        if overdue.is_empty() || self.may_be_next(&staying) || self.is_left_by_others(&left) {
            return staying;
        }
        self.regions_without(&(&left - &overdue))
    }

    /// Returns the gateway that proposes the next term: the first, but none of a region that joins at
    /// a boundary, since it does not know when that is reached.
    pub(super) fn leader_among(
        &self,
        target: &BTreeSet<RegionId>,
        now: TimeNs,
    ) -> Option<GatewayId> {
        let settled = target - &self.intents.joining(now);
        let leading = if settled.is_empty() { target } else { &settled };
        proposal_gateways(&self.fabric, leading).next()
    }

    /// Whether this gateway is in a term that has all these regions, and none that is to leave.
    pub(super) fn is_in_term_of(&self, target: &BTreeSet<RegionId>) -> bool {
        let Some(term) = &self.term else { return false };
        let leaving = &self.intents.left() - target;
        target.is_subset(&term.regions) && term.regions.is_disjoint(&leaving)
    }

    /// Whether this gateway keeps its term, or none, in place of one that a gateway of the region
    /// `theirs` proposes.
    pub(super) fn keeps_term_against(&self, term: &Term, theirs: RegionId, now: TimeNs) -> bool {
        let left = self.intents.left();
        if !term.regions.is_disjoint(&self.regions_kept_out()) {
            return true;
        }
        let Some(own) = &self.term else { return false };
        let is_early =
            !own.regions.contains(&theirs) && self.intents.joining(now).contains(&theirs);
        is_early || !term.regions.is_superset(&(&own.regions - &left))
    }

    /// Whether the term, if there is one, may be replaced now by one of these regions, which are reached.
    /// Newcomers are awaited first, and a boundary if an operator is the cause.
    pub(super) fn may_replace_term(&mut self, target: &BTreeSet<RegionId>, now: TimeNs) -> bool {
        let Some(term) = self.term.clone() else { return true };
        let staying = &term.regions - &(&self.intents.left() - target);
        // The gateway that asked jobs to wait leads no more once the leave of a first region is called off.
        let is_paused = self.pause.is_some() || self.asked.is_some();
        let gets_fabric = self.is_fabric_ready();
        let is_change = *target != term.regions || is_paused || gets_fabric;
        if !is_change || !target.is_superset(&staying) {
            let asks = self.asks_for_fabric(now);
            (self.newcomers, self.due) = (None, self.due.filter(|_| asks));
            self.ask_for_fabric(target, now);
            return false;
        }
        let leaves = staying != term.regions;
        let is_asked = leaves || is_paused || gets_fabric;
        if !is_asked && !self.have_newcomers_stayed(target, now) {
            return false;
        }
        let joins = !(target - &term.regions).is_disjoint(&self.intents.joining(now))
            && !mutant::is_mutant_active(Mutant::JoinEarly);
        if is_asked || joins {
            return self.pause_jobs(&term, target, now);
        }
        true
    }

    /// Whether these regions, more than those of the term, have been reached for long enough.
    fn have_newcomers_stayed(&mut self, reached: &BTreeSet<RegionId>, now: TimeNs) -> bool {
        let since = match &self.newcomers {
            Some((regions, since)) if regions == reached => *since,
            _ => now,
        };
        self.newcomers = Some((reached.clone(), since));
        now >= since + NEWCOMERS_AWAITED
    }
}

/// Pauses.
impl TermAgreement {
    /// Asks all gateways of the term to bring their jobs to a boundary, again if that is due. Returns
    /// whether they have, or have had the time for it.
    fn pause_jobs(&mut self, term: &Term, target: &BTreeSet<RegionId>, now: TimeNs) -> bool {
        let failure = self.intent_failure(term, target);
        if self.pause.as_ref().is_none_or(|pause| pause.failure != failure) {
            let changed = (&term.regions ^ target).into_iter();
            let before = self.pause.as_ref().map(|pause| pause.until);
            let of_fabric = self.fabric_deadline(now);
            let of_leave = self.leave_deadline(term);
            let until = self.intents.deadline(changed).or(before).or(of_leave).or(of_fabric);
            // A leave that is called off keeps its time, also where another gateway asked for it.
            let asked = self.asked.as_ref().and_then(|asked| asked.until);
            let until = until.or(asked).unwrap_or(now);
            let paused = BTreeSet::new();
            let failure = failure.clone();
            self.pause = Some(TermPause { failure, until, paused, is_over: false });
            self.due = None;
        }
        let fabric = Arc::clone(&self.fabric);
        let Some(pause) = &mut self.pause else { return true };
        let missing = proposal_gateways(&fabric, &term.regions);
        let missing: Vec<GatewayId> = missing.filter(|id| !pause.paused.contains(id)).collect();
        let is_early = mutant::is_mutant_active(Mutant::ChangeEarly);
        if missing.is_empty() || now >= pause.until || is_early {
            if !std::mem::replace(&mut pause.is_over, true) {
                self.due = None;
            }
            return true;
        }
        if self.due.is_none() {
            self.due = Some(now + self.repeated_after());
            for to in missing {
                let (id, failure) = (term.id, failure.clone());
                if to == self.me {
                    self.ask_pause(to, failure);
                } else {
                    self.tell_intents(to, now);
                    self.send(to, TermMessage::Pause { term: id, failure });
                }
            }
        }
        false
    }

    /// Returns when the time of leaves from the term is over; `None` if no region is to leave it.
    fn leave_deadline(&self, term: &Term) -> Option<TimeNs> {
        self.intents.deadline((&term.regions & &self.intents.left()).into_iter())
    }

    /// Handles the word of a gateway that it is about to replace the term.
    pub(super) fn handle_pause(
        &mut self,
        from: GatewayId,
        term: TermId,
        failure: Failure,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        if failure.code != FailureCode::MembershipChanged {
            return Err(PeerError::NotYours("a pause that is no change of members"));
        }
        let region = self.fabric.gateway(from).region;
        let own = self.term.as_ref();
        if own.is_some_and(|own| own.id == term && own.regions.contains(&region)) {
            self.ask_pause(from, failure);
            self.answer_pause(now);
        }
        Ok(())
    }

    /// Records that the gateway of a term has brought its jobs to a boundary.
    pub(super) fn handle_paused(&mut self, from: GatewayId, term: TermId, now: TimeNs) {
        let is_of_term = self.term.as_ref().is_some_and(|own| own.id == term);
        if let Some(pause) = self.pause.as_mut().filter(|_| is_of_term) {
            pause.paused.insert(from);
            self.advance(now);
        }
    }

    /// Asks the jobs here to come to a boundary, unless they have done so.
    fn ask_pause(&mut self, from: GatewayId, failure: Failure) {
        let before = self.asked.take();
        let until = before.as_ref().and_then(|asked| asked.until);
        let until = until.or(self.term.as_ref().and_then(|term| self.leave_deadline(term)));
        let before = before.filter(|asked| asked.failure == failure);
        let is_reached = before.is_some_and(|asked| asked.is_reached);
        if !is_reached {
            self.actions.push_back(TermAction::Pause(failure.clone()));
        }
        self.asked = Some(AskedPause { failure, from, until, is_reached });
    }

    /// Tells whoever asked that all jobs here are at a boundary, if they are.
    fn answer_pause(&mut self, now: TimeNs) {
        let (Some(asked), Some(term)) = (&self.asked, &self.term) else { return };
        let (from, id) = (asked.from, term.id);
        if !asked.is_reached {
            return;
        }
        if from == self.me {
            self.handle_paused(from, id, now);
        } else {
            self.send(from, TermMessage::Paused(id));
        }
    }

    /// Returns what ranks hear at the boundary that was asked for; `None` if none was.
    pub(super) fn asked_failure(&self) -> Option<Failure> {
        self.asked.as_ref().map(|asked| asked.failure.clone())
    }

    /// Makes what ranks hear when operators change the regions of the term to these.
    fn intent_failure(&self, term: &Term, target: &BTreeSet<RegionId>) -> Failure {
        let named = |regions: BTreeSet<RegionId>, one: &str, several: &str| {
            let regions: Vec<RegionId> = regions.into_iter().collect();
            let verb = if regions.len() == 1 { one } else { several };
            let names = self.region_names(&regions);
            (!regions.is_empty()).then(|| format!("{names} {verb}, as an operator asked"))
        };
        let left = named(&term.regions - target, "leaves", "leave");
        let joined = named(target - &term.regions, "joins", "join");
        let is_left = left.is_some();
        let is_ready = self.is_fabric_ready();
        let number = self.newest_fabric().number;
        let fabric = is_ready.then(|| format!("version {number} of the fabric comes into force"));
        let causes: Vec<String> = left.into_iter().chain(joined).chain(fabric).collect();
        let cause = match causes.is_empty() {
            true => "a change that an operator asked for is called off".to_owned(),
            false => causes.join(", and "),
        };
        let mut failure = self.change_failure(&cause, target);
        if is_left {
            failure.text += "; ranks of a region that leaves wait until it joins again";
        }
        Failure::new(failure.code, failure.text)
    }
}

/// Failures, and their texts.
impl TermAgreement {
    /// Returns the failure of collectives under way if a member of the term cannot be reached. Its
    /// text says who, why, and with whom this gateway would go on. `None` while all are reached,
    /// and outside a term.
    pub(super) fn loss_failure(&self, why: &str) -> Option<Failure> {
        let term = self.term.as_ref()?;
        let reached = self.reached_regions();
        let lost: Vec<RegionId> = term.regions.difference(&reached).copied().collect();
        if lost.is_empty() {
            return None;
        }
        let verb = if lost.len() == 1 { "is" } else { "are" };
        let text = format!("{} {verb} lost ({why})", self.region_names(&lost));
        Some(self.change_failure(&text, &self.target_regions()))
    }

    /// Makes the failure of collectives under way when the world changes to these regions, because of
    /// `cause`.
    pub(super) fn change_failure(&self, cause: &str, regions: &BTreeSet<RegionId>) -> Failure {
        let needs_witness = !self.fabric.is_quorum(regions);
        let condition = if needs_witness { " if the witness votes for it" } else { "" };
        let regions: Vec<RegionId> = regions.iter().copied().collect();
        let ranks: usize = regions.iter().map(|id| self.fabric.region(*id).ranks.len()).sum();
        let (verb, plural) =
            (if regions.len() == 1 { "goes" } else { "go" }, if ranks == 1 { "" } else { "s" });
        let names = self.region_names(&regions);
        let text = format!(
            "{cause}: {names} {verb} on with {ranks} rank{plural}{condition}; contribution intact; \
             recover the group and begin the step again"
        );
        Failure::new(FailureCode::MembershipChanged, text)
    }

    /// Names some regions for a text: "region a", or "regions a, b".
    pub(super) fn region_names(&self, regions: &[RegionId]) -> String {
        let names: Vec<&str> = regions.iter().map(|id| &*self.fabric.region(*id).name).collect();
        match names[..] {
            [name] => format!("region {name}"),
            _ => format!("regions {}", names.join(", ")),
        }
    }
}
