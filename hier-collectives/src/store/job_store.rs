//! The store of one job at one gateway: requests and messages in, messages and answers out.

use super::pending_requests::{PendingStoreRequests, StoreCaller};
use super::repeat_timer::StoreRepeatTimer;
use super::replication::{
    STORE_LEADER, StoreLeader, StoreMessage, StorePromise, StoreReplica, StoreViolation,
};
use super::request::{StoreAnswer, StoreRequest};
use super::state::StoreEntry;
use crate::ids::{BootId, GatewayId};
use crate::topology::Fabric;
use std::collections::VecDeque;
use std::sync::Arc;
use units::{Span, TimeNs};

/// An action of a store that the gateway carries out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreAction {
    /// Send a message to another gateway of the job.
    Message {
        /// The gateway.
        to: GatewayId,
        /// The message.
        message: StoreMessage,
    },
    /// Answer a request of a trainer.
    Answer {
        /// The request.
        caller: StoreCaller,
        /// The answer.
        answer: StoreAnswer,
    },
}

/// The store of a job at one gateway.
#[derive(Debug)]
pub struct JobStore {
    fabric: Arc<Fabric>,
    me: GatewayId,
    boot: BootId,
    replica: StoreReplica,
    /// The leader, at the first gateway.
    leader: Option<StoreLeader>,
    requests: PendingStoreRequests,
    repeat: StoreRepeatTimer,
    actions: VecDeque<StoreAction>,
}

impl JobStore {
    /// Makes the store of a gateway that was just started.
    pub fn new(fabric: Arc<Fabric>, me: GatewayId, boot: BootId) -> Self {
        let others = fabric.gateway_ids().filter(|id| *id != me);
        let leader = (me == STORE_LEADER).then(|| StoreLeader::new(boot, others));
        Self {
            me,
            boot,
            replica: StoreReplica::new(boot),
            leader,
            requests: PendingStoreRequests::new(me, boot),
            repeat: StoreRepeatTimer::default(),
            actions: VecDeque::new(),
            fabric,
        }
    }

    /// Returns the replica of this gateway.
    pub fn replica(&self) -> &StoreReplica {
        &self.replica
    }

    /// Removes and returns the next action; `None` when all are taken.
    pub fn poll_action(&mut self) -> Option<StoreAction> {
        self.actions.pop_front()
    }

    /// Returns the time at which [`JobStore::handle_timeout`] has something to do; `None` while it
    /// has nothing.
    pub fn poll_timeout(&self) -> Option<TimeNs> {
        [self.requests.deadline(), self.repeat.due()].into_iter().flatten().min()
    }

    /// Takes a trainer's request, whose keys and values the caller has checked, and answers it as
    /// far as it can. The answer is a failure if too many requests wait. The first request wakes
    /// the store.
    pub fn handle_request(
        &mut self,
        caller: StoreCaller,
        request: StoreRequest,
        timeout: Span,
        now: TimeNs,
    ) {
        let refused = self.requests.add(caller, request, timeout, now);
        self.answer(refused);
        if self.replica.state().is_none() {
            match &mut self.leader {
                Some(leader) => leader.wake(&mut self.replica),
                None if self.repeat.due().is_none() => self.announce(),
                None => {}
            }
        }
        self.go_on(now);
    }

    /// Forgets the requests of a trainer whose connection is gone.
    pub fn handle_detach(&mut self, attachment: u64, now: TimeNs) {
        self.requests.forget(attachment);
        self.go_on(now);
    }

    /// Repeats probes, announcements and commands, because other gateways may have missed messages
    /// or been started anew.
    pub fn handle_connections(&mut self, now: TimeNs) {
        match &mut self.leader {
            Some(leader) => leader.probe_all(&mut self.replica),
            None if self.replica.state().is_some() || !self.requests.is_empty() => self.announce(),
            None => {}
        }
        self.requests.repeat_commands();
        self.repeat = StoreRepeatTimer::default();
        self.go_on(now);
    }

    /// Repeats messages that were not answered, and answers requests whose time is over.
    pub fn handle_timeout(&mut self, now: TimeNs) {
        if self.requests.deadline().is_some_and(|deadline| deadline <= now) {
            let has_state = self.replica.state().is_some();
            let expired = self.requests.expire(&self.awaited_names(), has_state, now);
            self.answer(expired);
        }
        if self.repeat.is_over(now) {
            self.requests.repeat_commands();
            match &mut self.leader {
                Some(leader) => {
                    let lagging = leader.lagging(&self.replica);
                    leader.probe(&lagging, &mut self.replica);
                }
                None => self.announce(),
            }
        }
        self.go_on(now);
    }

    /// Checks and handles a message of another gateway.
    ///
    /// # Errors
    /// [`StoreViolation`]: the message is against the rules.
    pub fn handle_message(
        &mut self,
        from: GatewayId,
        message: StoreMessage,
        now: TimeNs,
    ) -> Result<(), StoreViolation> {
        let handled = if self.leader.is_some() {
            self.handle_follower_message(from, message)
        } else if from == STORE_LEADER {
            self.handle_leader_message(message)
        } else {
            Err(StoreViolation("a store message between two gateways that do not lead"))
        };
        self.go_on(now);
        handled
    }

    /// Handles, at the leader, a message of another gateway. Pieces and their requests have no
    /// effect if they are for another start of this gateway, and neither has a Promise with numbers
    /// beyond count. A message that only the leader sends is an error.
    fn handle_follower_message(
        &mut self,
        from: GatewayId,
        message: StoreMessage,
    ) -> Result<(), StoreViolation> {
        let Self { leader: Some(leader), replica, .. } = self else { return Ok(()) };
        match message {
            StoreMessage::Present { .. } => leader.handle_present(from, replica),
            StoreMessage::Command { boot, number, below, command } => {
                let entry = StoreEntry { origin: from, boot, number, below, command };
                leader.handle_command(from, entry, replica);
            }
            StoreMessage::Promise { asked, probe, boot, promised, held } => {
                let promise = StorePromise { asked, probe, boot, promised, held };
                // The sender may have it from a gateway that is at fault. Then only this store waits.
                if !leader.is_beyond_count(&promise, replica) {
                    leader.handle_promise(from, promise, replica);
                }
            }
            StoreMessage::Held { boot, version } => {
                leader.handle_held(from, boot, version, replica);
            }
            StoreMessage::Fetch { to, version, offset } if to == self.boot => {
                leader.handle_fetch(from, version, offset);
            }
            StoreMessage::Piece { to, version, offset, total, bytes } if to == self.boot => {
                return leader.handle_piece(from, version, (offset, total), &bytes, replica);
            }
            StoreMessage::Fetch { .. } | StoreMessage::Piece { .. } => {}
            StoreMessage::Prepare { .. }
            | StoreMessage::Offer { .. }
            | StoreMessage::Append { .. }
            | StoreMessage::Commit { .. } => {
                return Err(StoreViolation("a message of the leader of a store from another"));
            }
        }
        Ok(())
    }

    /// Handles, at a gateway that does not lead, a message of the leader, and queues the answers. A
    /// message for an earlier start of this gateway has no effect; one that only the leader
    /// receives is an error.
    fn handle_leader_message(&mut self, message: StoreMessage) -> Result<(), StoreViolation> {
        let replica = &mut self.replica;
        let answers = match message {
            StoreMessage::Prepare { ballot, probe } => vec![replica.handle_prepare(ballot, probe)],
            StoreMessage::Offer { to, version, content } if to == self.boot => {
                replica.handle_offer(version, content)
            }
            StoreMessage::Piece { to, version, offset, total, bytes } if to == self.boot => {
                replica.handle_piece(version, (offset, total), &bytes)?
            }
            StoreMessage::Fetch { to, version, offset } if to == self.boot => {
                replica.handle_fetch(version, offset).into_iter().collect()
            }
            StoreMessage::Append { to, version, commit, entry } if to == self.boot => {
                replica.handle_append(version, commit, entry).into_iter().collect()
            }
            StoreMessage::Commit { to, version } if to == self.boot => {
                replica.handle_commit(version);
                vec![]
            }
            // It was meant for an earlier start of this gateway.
            StoreMessage::Offer { .. }
            | StoreMessage::Piece { .. }
            | StoreMessage::Fetch { .. }
            | StoreMessage::Append { .. }
            | StoreMessage::Commit { .. } => vec![],
            StoreMessage::Present { .. }
            | StoreMessage::Command { .. }
            | StoreMessage::Promise { .. }
            | StoreMessage::Held { .. } => {
                return Err(StoreViolation("a message to the leader of a store from the leader"));
            }
        };
        self.actions.extend(answers.into_iter().map(leader_message_of_job_store));
        Ok(())
    }

    /// Queues the message `Present`, by which the leader learns that this gateway uses the store.
    fn announce(&mut self) {
        let present = StoreMessage::Present { boot: self.boot };
        self.actions.push_back(leader_message_of_job_store(present));
    }

    /// Answers requests whose outcome is known, and hands due commands to the leader, until neither
    /// has anything to do. Then collects outgoing messages.
    fn go_on(&mut self, now: TimeNs) {
        loop {
            let answers = self.requests.follow(&self.replica);
            let has_answers = !answers.is_empty();
            self.answer(answers);
            let due = self.requests.take_due_commands();
            if due.is_empty() && !has_answers {
                break;
            }
            for entry in due {
                match &mut self.leader {
                    Some(leader) => leader.append(entry, &mut self.replica),
                    None => {
                        let StoreEntry { boot, number, below, command, .. } = entry;
                        let command = StoreMessage::Command { boot, number, below, command };
                        self.actions.push_back(leader_message_of_job_store(command));
                    }
                }
            }
        }
        let is_waiting = match &mut self.leader {
            Some(leader) => {
                let messages = leader.take_messages().into_iter();
                self.actions
                    .extend(messages.map(|(to, message)| StoreAction::Message { to, message }));
                // Commands that found no room are repeated, too.
                leader.is_waiting(&self.replica)
                    || self.requests.is_waiting_for_gateways(&self.replica)
            }
            None => self.requests.is_waiting_for_gateways(&self.replica),
        };
        self.repeat.run_while(is_waiting, now);
    }

    /// Queues answers for the trainers.
    fn answer(&mut self, answers: impl IntoIterator<Item = (StoreCaller, StoreAnswer)>) {
        let answers = answers.into_iter();
        self.actions.extend(answers.map(|(caller, answer)| StoreAction::Answer { caller, answer }));
    }

    /// Returns the names of the gateways that the store waits for, as far as this gateway knows,
    /// for a text. A gateway that does not lead knows only that it waits for the leader.
    fn awaited_names(&self) -> String {
        let awaited = match &self.leader {
            Some(leader) => leader.lagging(&self.replica),
            None if self.requests.is_waiting_for_gateways(&self.replica) => vec![STORE_LEADER],
            None => vec![],
        };
        let names = awaited.iter().map(|id| format!("gateway {}", self.fabric.gateway(*id).name));
        let names: Vec<String> = names.collect();
        match (names.is_empty(), self.me == STORE_LEADER) {
            (false, false) => format!("{} or those that it waits for", names.join(", ")),
            _ => names.join(", "),
        }
    }
}

/// Makes the action that sends a message to the leader.
fn leader_message_of_job_store(message: StoreMessage) -> StoreAction {
    StoreAction::Message { to: STORE_LEADER, message }
}
