//! A boundary: the collective from which on ranks go on in another world, since a region leaves or joins.
//!
//! The first gateway of the world decides it: behind the collectives of the step that the first of its
//! ranks commits next, or where its ranks stand if nobody commits steps. Collectives before it finish.

use super::epoch_boundary::EpochBoundary;
use super::epoch_membership::FIRST_GATEWAY;
use super::epoch_state::EpochState;
use crate::post::Failure;
use crate::session::action_queue::ActionQueue;
use crate::wire::Message;

impl EpochState {
    /// Keeps a request for a boundary, on the first gateway, until that is decided. Returns whether it
    /// waits: there is an epoch, and no boundary yet.
    pub fn keep_boundary_request(&mut self, failure: Failure) -> bool {
        let is_first = self.me() == FIRST_GATEWAY;
        let Some(active) = self.active.as_mut().filter(|active| active.boundary.is_none()) else {
            return false;
        };
        active.boundary_request = is_first.then_some(failure);
        is_first
    }

    /// Returns the failure of a boundary that is to be decided here; `None` if none is.
    pub fn boundary_request(&self) -> Option<&Failure> {
        self.active.as_ref()?.boundary_request.as_ref()
    }

    /// Sets the boundary of the epoch, unless it has one; the first gateway tells all others. Returns
    /// whether it is news.
    pub fn set_boundary(&mut self, boundary: EpochBoundary, actions: &mut ActionQueue) -> bool {
        let Some(active) = self.active.as_mut().filter(|active| active.boundary.is_none()) else {
            return false;
        };
        active.boundary_request = None;
        active.boundary = Some(boundary);
        if self.me() == FIRST_GATEWAY {
            let message = self.boundary_message();
            message.iter().for_each(|message| actions.broadcast(self.ready_peers(), message));
        }
        true
    }

    /// Returns the boundary of the epoch under way; `None` without one.
    pub fn boundary(&self) -> Option<&EpochBoundary> {
        self.active.as_ref()?.boundary.as_ref()
    }

    /// Builds the message of the first gateway about the boundary; `None` elsewhere, and without one.
    pub(super) fn boundary_message(&self) -> Option<Message> {
        let EpochBoundary { from, ends_step, failure } = self.boundary()?.clone();
        let epoch = self.number;
        let is_first = self.me() == FIRST_GATEWAY;
        is_first.then_some(Message::Boundary { epoch, from, ends_step, failure })
    }
}
