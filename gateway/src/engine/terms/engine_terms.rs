//! The engine's part in the agreement on terms: who goes on when regions are lost.
//!
//! A fabric whose quorum is all regions has no terms. In others the event loop calls
//! [`Engine::follow_terms`] after each event, and all jobs leave and enter terms together.

use crate::engine::engine_task::Engine;
use crate::engine::job::Job;
use crate::engine::job::job_terms::lost_quorum_term_failure;
use crate::events::{MembershipChange, MembershipChangeError};
use crate::observe::membership_report::MembershipReport;
use crate::warn_if_due;
use crate::warnings::WarningCause;
use hier_collectives::ids::{GatewayId, GroupId, RegionId};
use hier_collectives::membership::{Term, TermAction, TermMessage};
use hier_collectives::post::Failure;
use hier_collectives::session::PeerError;
use hier_collectives::wire::Message;
use std::sync::Arc;
use tracing::info;
use units::TimeNs;

/// The greatest group id. Messages about terms, the agreements on which regions go on, carry this
/// id, as they are of no job. A gateway that gets a message about terms knows it by its kind, and
/// does not read the id.
const TERMS_GROUP: GroupId = GroupId(u64::MAX);

impl Engine {
    /// Handles a message of another gateway about terms.
    ///
    /// # Errors
    /// [`PeerError::NotYours`]: this gateway's fabric has no terms, or the gateway may not send it.
    pub(in crate::engine) fn handle_term_message(
        &mut self,
        from: GatewayId,
        message: TermMessage,
        now: TimeNs,
    ) -> Result<(), PeerError> {
        if let Some(witness) = &mut self.witness {
            if let Some(answer) = witness.handle_message(from, message)? {
                self.send_term_message(from, answer);
            }
            return Ok(());
        }
        let Some(terms) = &mut self.terms else {
            return Err(PeerError::NotYours("a message about terms"));
        };
        let handled = terms.handle_message(from, message, now);
        self.follow_terms("", now);
        handled
    }

    /// Hands changed connections to the agreement, before the sessions see them.
    pub(in crate::engine) fn follow_term_connections(&mut self, why: &str, now: TimeNs) {
        let graph = Arc::clone(self.shared.peers.connection_graph());
        if let Some(terms) = &mut self.terms {
            terms.handle_connections(&graph, why, now);
            self.follow_terms(why, now);
        }
        if let Some(witness) = &mut self.witness {
            let reached = witness.handle_connections(&graph);
            let standing = witness.standing();
            reached.into_iter().for_each(|to| self.send_term_message(to, standing.clone()));
        }
    }

    /// Sends a message about terms to another gateway.
    fn send_term_message(&self, to: GatewayId, message: TermMessage) {
        self.shared.peers.send_job_message(to, TERMS_GROUP, &Message::Term(message));
    }

    /// Tells the agreement of epochs that have begun, calls it if it is due, and does what it asks
    /// for. `why` is the reason for which connections are lost.
    pub(in crate::engine) fn follow_terms(&mut self, why: &str, now: TimeNs) {
        let Some(terms) = &mut self.terms else { return };
        if self.jobs.values().any(|job| job.current_world().session.plan().is_some()) {
            terms.handle_epoch(now);
        }
        if terms.poll_timeout().is_some_and(|due| due <= now) {
            terms.handle_timeout(now);
        }
        while let Some(action) = self.next_term_action(now) {
            match action {
                TermAction::Message { to, message } => self.send_term_message(to, message),
                TermAction::Leave(failure) => self.leave_term(failure, why, now),
                TermAction::Enter(term) => self.enter_term(&term, now),
                TermAction::Pause(failure) => self.pause_term(&failure, now),
                TermAction::CheckFabric { fabric, within } => self.check_fabric(fabric, within),
            }
        }
    }

    /// Returns the next action of the agreement. If there is none, tells it of a boundary that all jobs
    /// have come to, which may lead to one.
    fn next_term_action(&mut self, now: TimeNs) -> Option<TermAction> {
        let terms = self.terms.as_mut()?;
        if let Some(action) = terms.poll_action() {
            return Some(action);
        }
        let is_at_boundary =
            |job: &Job| job.removed || job.current_world().session.is_at_boundary();
        if terms.awaits_boundary() && self.jobs.values().all(is_at_boundary) {
            terms.handle_boundary(now);
        }
        terms.poll_action()
    }

    /// Brings all jobs to a boundary, at which ranks hear `failure`.
    fn pause_term(&mut self, failure: &Failure, now: TimeNs) {
        for job in self.jobs.values_mut().filter(|job| !job.removed) {
            let id = job.current_world().id;
            if let Some(world) = job.group_mut(id) {
                world.session.handle_boundary_request(failure.clone(), now);
            }
            job.perform_actions(&self.shared);
        }
    }

    /// Begins to take a region out of the world of all jobs, or into it, if `change` says so. Returns who
    /// goes on together now.
    ///
    /// # Errors
    /// [`MembershipChangeError`]: the region is unknown, or nobody would go on.
    pub(in crate::engine) fn change_membership(
        &mut self,
        change: Option<&MembershipChange>,
        now: TimeNs,
    ) -> Result<MembershipReport, MembershipChangeError> {
        let Some(MembershipChange { region, leaves, within }) = change else {
            return Ok(self.membership_report());
        };
        let ranked = &self.fabric.regions()[..self.fabric.ranked_region_count()];
        let Some(index) = ranked.iter().position(|known| known.name == *region) else {
            let known = ranked.iter().map(|known| &*known.name).collect::<Vec<_>>().join(", ");
            return Err(MembershipChangeError::NoRegion { region: region.clone(), known });
        };
        if self.witness.is_some() {
            return Err(MembershipChangeError::AtWitness);
        }
        let Some(terms) = &mut self.terms else {
            return Err(MembershipChangeError::AllNeeded(region.clone()));
        };
        let id = RegionId(u16::try_from(index).unwrap_or(u16::MAX));
        let requested = terms.request_change(id, *leaves, *within, now);
        let refused = |error| MembershipChangeError::Intent { region: region.clone(), error };
        requested.map_err(refused)?;
        let verb = if *leaves { "leaves" } else { "joins" };
        info!(region = %region, "region {region}: {verb}, as an operator asks here");
        self.follow_terms("", now);
        Ok(self.membership_report())
    }

    /// Lets all jobs leave their term. Without a failure they fail as their sessions say.
    fn leave_term(&mut self, failure: Option<Failure>, why: &str, now: TimeNs) {
        let graph = Arc::clone(self.shared.peers.connection_graph());
        let text = failure.as_ref().map_or("the quorum is lost", |failure| &failure.text);
        let is_due = self.metrics.warnings.is_due(WarningCause::Epoch, "term", now);
        warn_if_due!(is_due, "the term ends: {text}");
        for job in self.jobs.values_mut() {
            if failure.is_none() {
                let id = job.current_world().id;
                if let Some(world) = job.group_mut(id) {
                    world.session.handle_connections(&graph, why, now);
                }
            }
            let failure = failure.clone().unwrap_or_else(lost_quorum_term_failure);
            job.leave_term(&failure, now);
            job.perform_actions(&self.shared);
        }
    }

    /// Lets all jobs enter a term, but those that the region file has no more.
    fn enter_term(&mut self, term: &Term, now: TimeNs) {
        let names = term.regions.iter().map(|id| &*self.fabric.region(*id).name);
        let names = names.collect::<Vec<_>>().join(", ");
        let (number, count, all) =
            (term.id.number, term.regions.len(), self.fabric.ranked_region_count());
        info!(term = number, "term {number}: {count} of {all} regions go on: {names}");
        self.adopt_fabric(term.fabric);
        let graph = Arc::clone(self.shared.peers.connection_graph());
        for job in self.jobs.values_mut().filter(|job| !job.removed) {
            job.enter_term(term, &graph, &self.shared, now);
            job.perform_actions(&self.shared);
        }
    }
}
