//! Failures of collectives: proposed, announced, finished, and told to ranks.
//!
//! Two gateways may find the same disagreement of posts at once, each between other ranks. So a
//! gateway proposes such a failure to the first one and stops the collective; ranks hear the
//! decision, and all hear one text.

use super::collectives::Collectives;
use super::live_collective::Phase;
use crate::ids::{Epoch, GatewayId, RankId, Sequence};
use crate::post::{Failure, FailureCode, RankEvent};
use crate::session::action::{Action, SessionNote};
use crate::session::action_queue::ActionQueue;
use crate::session::context::Context;
use crate::session::epoch::epoch_state::EpochState;
use crate::session::local_gateway::LocalGateway;
use crate::wire::Message;
use std::collections::BTreeMap;

impl Collectives {
    /// Marks a collective as failing, from its first event on if need be. Returns its epoch; none
    /// when its result is ready or it has failed before. A failure that was only proposed gives way
    /// to the one decided.
    pub fn begin_failure(
        &mut self,
        sequence: Sequence,
        failure: &Failure,
        epoch: Epoch,
    ) -> Option<Epoch> {
        let has_undecided_proposal = self.has_undecided_proposal(sequence);
        let collective = self.collective_or_new(sequence, epoch);
        let has_failed = collective.failure.is_some() && !has_undecided_proposal;
        if has_failed || collective.phase == Phase::Ready {
            return None;
        }
        collective.failure = Some(failure.clone());
        collective.phase = Phase::Failing;
        let epoch = collective.epoch;
        self.proposals.remove(&sequence);
        Some(epoch)
    }

    /// Keeps a failure of this epoch for later repeats, and sends Fail to all ready peers except
    /// the one that the failure came from.
    pub fn announce_failure(
        &mut self,
        sequence: Sequence,
        failure: &Failure,
        except: Option<GatewayId>,
        cx: &mut Context<'_>,
    ) {
        self.failures.insert(sequence, failure.clone());
        let Some(collective) = self.live.get(&sequence) else { return };
        let message = Message::Fail { epoch: collective.epoch, sequence, failure: failure.clone() };
        let others = cx.epoch.ready_peers().into_iter().filter(|to| Some(*to) != except);
        cx.actions.broadcast(others, &message);
    }

    /// Queues a note for the log that a collective failed, unless this gateway only passes it on.
    pub fn log_failure(&self, sequence: Sequence, failure: Failure, cx: &mut Context<'_>) {
        if self.is_relay() {
            return;
        }
        let live = self.live.get(&sequence);
        let posted = live.and_then(|collective| collective.descriptor);
        let descriptor = posted.map(|(_, descriptor)| descriptor);
        let begun = live.and_then(|collective| collective.begun);
        let awaited = live.map(|collective| self.awaited_gateways(collective, cx.epoch));
        let awaited = awaited.unwrap_or_default();
        let note = SessionNote::Failed { sequence, descriptor, begun, failure, awaited };
        cx.actions.push(Action::Note(note));
    }

    /// Marks a failing collective as failed and notifies the ranks that posted it, once nothing
    /// touches their memory.
    pub fn finish_failure(&mut self, sequence: Sequence, actions: &mut ActionQueue) {
        let Some(collective) = self.live.get_mut(&sequence) else { return };
        collective.phase = Phase::Failed;
        let Some(failure) = &collective.failure else { return };
        for rank in collective.posts.keys() {
            let event = RankEvent::Failed { sequence, failure: failure.clone() };
            actions.notify(*rank, event);
        }
    }

    /// Whether a failed collective can be forgotten: every local rank has posted it, or its epoch
    /// is over.
    pub fn can_forget_failure(&self, sequence: Sequence, epoch: &EpochState) -> bool {
        let Some(collective) = self.live.get(&sequence) else { return false };
        collective.phase == Phase::Failed
            && (collective.epoch != epoch.number()
                || !epoch.is_active()
                || self.ranks.values().all(|rank| rank.next_like(sequence) > sequence))
    }

    /// Notes that this gateway proposes a failure of a collective, and marks the collective as
    /// failing unless its result is ready. Returns false, without effect, when a failure is
    /// proposed already or the collective has failed without a result.
    pub fn propose_failure(&mut self, sequence: Sequence, failure: &Failure, epoch: Epoch) -> bool {
        let (is_complete, has_undecided_proposal) =
            (self.has_result(sequence), self.has_undecided_proposal(sequence));
        if has_undecided_proposal {
            return false;
        }
        if !is_complete {
            let collective = self.collective_or_new(sequence, epoch);
            if collective.failure.is_some() {
                return false;
            }
            collective.failure = Some(failure.clone());
            collective.phase = Phase::Failing;
        }
        self.proposals.insert(sequence, failure.clone());
        true
    }

    /// Whether this gateway has proposed a collective's failure, and the first gateway has not
    /// decided yet.
    pub fn has_undecided_proposal(&self, sequence: Sequence) -> bool {
        self.proposals.contains_key(&sequence)
    }

    /// Returns the failures that this gateway has proposed and the first gateway has not decided
    /// on.
    pub fn proposals(&self) -> &BTreeMap<Sequence, Failure> {
        &self.proposals
    }

    /// Returns the failure of a collective whose epoch ends: that of the epoch. A proposed failure
    /// stays, unless posts ended the epoch too.
    pub fn proposed_failure_at_end(&self, sequence: Sequence, end: &Failure) -> Failure {
        let proposed = self.proposals.get(&sequence).filter(|_| !end.code.is_fault_of_posts());
        proposed.unwrap_or(end).clone()
    }

    /// Returns the failures of this epoch, the last `COLLECTIVES_AHEAD_MAX` of them.
    pub fn failures(&self) -> &BTreeMap<Sequence, Failure> {
        self.failures.facts()
    }

    /// Builds the failure of a collective for which a rank and another one posted different counts of
    /// the elements between them; none while they agree as far as they are known.
    pub fn counts_failure(
        &self,
        sequence: Sequence,
        rank: RankId,
        local: &LocalGateway,
    ) -> Option<Failure> {
        let (from, to, sent, received) = self.live.get(&sequence)?.counts.contradiction(rank)?;
        let text = format!(
            "collective {sequence}: ranks disagree on counts: {} sends {sent} elements to {}, \
             which receives {received}; contributions intact",
            local.rank_name(from),
            local.rank_name(to),
        );
        Some(Failure::new(FailureCode::Disagreement, text))
    }

    /// Builds the failure of a collective that awaits a rank which is lost, or which posted in this
    /// epoch and then detached. None if there is no such rank.
    pub fn lost_rank_failure(&self, sequence: Sequence, local: &LocalGateway) -> Option<Failure> {
        let collective = self.live.get(&sequence)?;
        let missing = self.ranks.iter().find(|(rank, local)| {
            (local.posted || local.lost) && !local.attached && !collective.posts.contains_key(rank)
        });
        let (rank, _) = missing?;
        Some(gone_rank_failure(sequence, *rank, "posting it", local))
    }
}

/// Builds the failure of a collective whose rank detached while bytes of its contribution were
/// still to come.
pub(in crate::session) fn cut_contribution_failure(
    sequence: Sequence,
    rank: RankId,
    local: &LocalGateway,
) -> Failure {
    gone_rank_failure(sequence, rank, "all of its contribution had come", local)
}

/// Builds the failure of a collective whose rank went away `before` something.
fn gone_rank_failure(
    sequence: Sequence,
    rank: RankId,
    before: &str,
    local: &LocalGateway,
) -> Failure {
    // The session does not know whether it is that of a job or of a group.
    let advice = match sequence.series() {
        Some(_) => "then send again",
        None => "every rank then recovers the job, makes its groups again, and posts again",
    };
    let text = format!(
        "collective {sequence}: {} went away before {before}; contributions intact, \
         start it again; {advice}",
        local.rank_name(rank)
    );
    Failure::new(FailureCode::RankLost, text)
}
