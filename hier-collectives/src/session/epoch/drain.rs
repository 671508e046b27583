//! An orderly shutdown: posted collectives finish, new ones fail, and peers are notified.

use super::drain_cutoff::DrainCutoff;
use super::epoch_state::EpochState;
use crate::ids::{GatewayId, Sequence};
use crate::post::{Failure, FailureCode};
use crate::session::action_queue::ActionQueue;
use crate::wire::Message;
use units::TimeNs;

impl EpochState {
    /// Returns the time at which a drain ends at the latest; none before a drain.
    pub fn drain_end(&self) -> Option<TimeNs> {
        self.draining
    }

    /// Begins a drain that ends at `until`, or shortens the drain under way. Returns whether a
    /// drain began.
    pub fn begin_drain(&mut self, until: TimeNs) -> bool {
        let began = self.draining.is_none();
        self.draining = Some(self.draining.map_or(until, |before| before.min(until)));
        began
    }

    /// Sends Drain to the peers: no rank of this gateway posts anything from sequence `from` on.
    pub fn announce_drain(&self, from: Sequence, actions: &mut ActionQueue) {
        actions.broadcast(self.ready_peers(), &Message::Drain { epoch: self.number, from });
    }

    /// Closes collectives from sequence `from` on, since no rank of `gateway` posts them. Returns
    /// their failure; none when they were closed before, or outside an epoch.
    pub fn close_from_drain(&mut self, gateway: GatewayId, from: Sequence) -> Option<Failure> {
        let active = self.active.as_mut()?;
        if active.closing.as_ref().is_some_and(|closing| closing.first_sequence() <= from) {
            return None;
        }
        let closing =
            active.closing.insert(DrainCutoff::new(self.local.gateway_name(gateway), from));
        Some(closing.failure().clone())
    }

    /// Returns the failure of a collective that a drain has closed; none if it may be posted.
    pub fn drain_failure(&self, sequence: Sequence) -> Option<Failure> {
        self.active.as_ref()?.closing.as_ref()?.failure_for(sequence)
    }
}

/// Builds the failure with which a drain ends the epoch. `unfinished` is the number of collectives
/// that are left.
pub(in crate::session) fn drain_end_failure(gateway: &str, unfinished: usize) -> Failure {
    let rest = if unfinished == 0 {
        "what was posted is finished".to_owned()
    } else {
        format!("{unfinished} collectives could not be finished in time")
    };
    let text = format!("gateway {gateway} shut down; {rest}");
    Failure::new(FailureCode::ShuttingDown, text)
}
