//! The actions that the session's parts emit, in the order in which they emit them.

use super::action::{Action, Buffer, View};
use crate::ids::{GatewayId, RankId};
use crate::post::RankEvent;
use crate::wire::Message;
use std::collections::VecDeque;

/// Actions that the shell has not taken yet. Every part of the session fills it;
/// `Session::poll_action` drains it. It has no bound: the shell drains it after every call.
#[derive(Debug, Default)]
pub(super) struct ActionQueue(VecDeque<Action>);

impl ActionQueue {
    pub fn push(&mut self, action: Action) {
        self.0.push_back(action);
    }

    pub fn pop(&mut self) -> Option<Action> {
        self.0.pop_front()
    }

    pub fn message(&mut self, to: GatewayId, message: Message) {
        self.push(Action::Message { to, message });
    }

    pub fn messages(&mut self, to: GatewayId, messages: impl IntoIterator<Item = Message>) {
        messages.into_iter().for_each(|message| self.message(to, message));
    }

    /// Sends one message to each of several peers, in their order.
    pub fn broadcast(&mut self, peers: impl IntoIterator<Item = GatewayId>, message: &Message) {
        peers.into_iter().for_each(|to| self.message(to, message.clone()));
    }

    pub fn notify(&mut self, rank: RankId, event: RankEvent) {
        self.push(Action::Notify { rank, event });
    }

    /// Releases a view of our own memory; a slot of a rank is left alone.
    pub fn release(&mut self, view: &View) {
        if let Buffer::Scratch(scratch) = view.buffer {
            self.push(Action::Release(scratch));
        }
    }
}
