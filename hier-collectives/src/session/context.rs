//! The surroundings of a call into the session's parts.

use super::action_queue::ActionQueue;
use super::epoch::state::EpochState;
use units::TimeNs;

/// The facts that a part reads and the queue that it fills while it handles an event.
pub(super) struct Context<'a> {
    /// The epoch; only the session itself changes it.
    pub epoch: &'a EpochState,
    /// The time of the event.
    pub now: TimeNs,
    /// The queue of actions.
    pub actions: &'a mut ActionQueue,
}
