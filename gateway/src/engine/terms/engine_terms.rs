//! The engine's part in the agreement on terms: who goes on when regions are lost.
//!
//! A fabric whose quorum is all regions has no terms. In others the event loop calls
//! [`Engine::follow_terms`] after each event, and all jobs leave and enter terms together.

use crate::engine::engine_task::Engine;
use crate::engine::job::job_terms::lost_quorum_term_failure;
use crate::warn_if_due;
use crate::warnings::WarningCause;
use hier_collectives::ids::{GatewayId, GroupId};
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
        while let Some(action) = self.terms.as_mut().and_then(|terms| terms.poll_action()) {
            match action {
                TermAction::Message { to, message } => self.send_term_message(to, message),
                TermAction::Leave(failure) => self.leave_term(failure, why, now),
                TermAction::Enter(term) => self.enter_term(&term, now),
            }
        }
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
        let graph = Arc::clone(self.shared.peers.connection_graph());
        for job in self.jobs.values_mut().filter(|job| !job.removed) {
            job.enter_term(term, &graph, &self.shared, now);
            job.perform_actions(&self.shared);
        }
    }
}
