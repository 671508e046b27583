//! The actions that the session's parts emit, in the order in which they emit them.

use super::action::{Action, Buffer, BufferView};
use crate::ids::{GatewayId, RankId};
use crate::post::RankEvent;
use crate::wire::Message;
use std::collections::VecDeque;

/// Actions that the gateway's engine has not taken yet. Every part of the session adds some, and
/// `Session::poll_action` removes them. The queue has no bound: it is drained after every call.
#[derive(Debug, Default)]
pub(super) struct ActionQueue(VecDeque<Action>);

impl ActionQueue {
    /// Appends an action for the engine.
    pub fn push(&mut self, action: Action) {
        self.0.push_back(action);
    }

    /// Removes and returns the oldest action; `None` when there is none.
    pub fn pop(&mut self) -> Option<Action> {
        self.0.pop_front()
    }

    /// Queues a control message to a gateway.
    pub fn push_message(&mut self, to: GatewayId, message: Message) {
        self.push(Action::Message { to, message });
    }

    /// Queues several control messages to one gateway, in order.
    pub fn push_messages(&mut self, to: GatewayId, messages: impl IntoIterator<Item = Message>) {
        messages.into_iter().for_each(|message| self.push_message(to, message));
    }

    /// Queues one control message to each of several gateways.
    pub fn broadcast(&mut self, peers: impl IntoIterator<Item = GatewayId>, message: &Message) {
        peers.into_iter().for_each(|to| self.push_message(to, message.clone()));
    }

    /// Queues an event for a local rank.
    pub fn notify(&mut self, rank: RankId, event: RankEvent) {
        self.push(Action::Notify { rank, event });
    }

    /// Queues the release of a view of gateway scratch; does nothing for a view of a rank's slot.
    pub fn release_scratch(&mut self, view: &BufferView) {
        if let Buffer::Scratch(scratch) = view.buffer {
            self.push(Action::Release(scratch));
        }
    }
}
