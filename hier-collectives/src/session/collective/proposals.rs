//! Failures of posts that the first gateway decides on, so that all ranks hear one text.
//!
//! Two gateways may find the same disagreement at once, each between other ranks. So a gateway
//! proposes such a failure to the first one and stops the collective; ranks hear the decision.

use super::collectives::Collectives;
use super::live_collective::Phase;
use crate::ids::{Epoch, Sequence};
use crate::post::Failure;
use std::collections::BTreeMap;

impl Collectives {
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
}
