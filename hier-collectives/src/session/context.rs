//! The arguments that the methods of all parts of a session share.

use super::action_queue::ActionQueue;
use super::epoch::epoch_state::EpochState;
use units::TimeNs;

/// The epoch and time that a part of the session reads during an event, and the queue that it
/// fills.
pub(super) struct Context<'a> {
    /// The epoch; only the session itself changes it.
    pub epoch: &'a EpochState,
    /// The time of the event.
    pub now: TimeNs,
    /// The queue of actions.
    pub actions: &'a mut ActionQueue,
}
