//! The connection of a rank to its gateway: requests out, events in, and the state they share.
//!
//! [`write_requests`] takes requests from a channel of `CLIENT_REQUESTS_MAX` entries (`attach.rs`);
//! a caller that posts waits while the channel is full. [`read_events`] completes operations and
//! commits.

use super::slots::SlotAllocator;
use super::tensor::Tensor;
use crate::local::listener::Duplex;
use crate::local::protocol::{Request, Response, read_local_message, write_local_message};
use crate::memory::arena::Arena;
use crate::sync::lock;
use hier_collectives::ids::{Epoch, RankId, Sequence, Step};
use hier_collectives::post::{Failure, FailureCode, RankEvent, Timing};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The result of a collective: its timestamps, or why it failed.
pub(super) type CollectiveResult = Result<Timing, Failure>;

/// An attached rank's connection, shared by all clones of its client.
pub(super) struct Connection {
    pub rank: RankId,
    pub world_size: u32,
    pub arena: Arc<Arena>,
    pub slots: Arc<Mutex<SlotAllocator>>,
    /// Requests to the gateway, in the order of their numbers: senders hold `state` meanwhile.
    pub requests: mpsc::Sender<Request>,
    pub state: Mutex<ConnectionState>,
    /// Notified whenever `state` changed.
    pub changed: Notify,
    /// Whether the first epoch began, or the connection ended before.
    pub settled: watch::Sender<bool>,
    /// Cancelled when the connection ended: stops the writer.
    pub over: CancellationToken,
    /// Stops the reader when the connection is dropped. The stream closes once the writer has
    /// sent what was posted, and by that the gateway learns that the trainer is gone.
    pub _listening: DropGuard,
}

/// Collectives and commits under way.
#[derive(Debug, Default)]
pub(super) struct ConnectionState {
    /// The current epoch.
    pub epoch: Epoch,
    /// Number of the next collective.
    pub next: Sequence,
    pub operations: BTreeMap<Sequence, PendingOperation>,
    /// The epoch of the last post that no commit covers yet.
    pub uncommitted: Option<Epoch>,
    /// Commits without an answer, oldest first.
    pub commits: VecDeque<PendingCommit>,
    /// The last step known to be complete in every region.
    pub committed: Option<Step>,
    /// Why the connection ended.
    pub ended: Option<String>,
}

/// A collective under way: its tensor, and the channels to its operation.
#[derive(Debug)]
pub(super) struct PendingOperation {
    tensor: Tensor,
    ready: Option<oneshot::Sender<CollectiveResult>>,
    done: oneshot::Sender<Tensor>,
}

/// A commit without an answer.
#[derive(Debug)]
pub(super) struct PendingCommit {
    pub step: Step,
    pub answer: oneshot::Sender<Result<(), Failure>>,
}

/// The receivers of an operation that was begun.
pub(super) struct OperationReceivers {
    pub ready: oneshot::Receiver<CollectiveResult>,
    pub done: oneshot::Receiver<Tensor>,
}

impl ConnectionState {
    /// Adds a collective of `tensor` under the next sequence number; returns the channels by which
    /// its end is reported.
    pub fn begin_operation(&mut self, tensor: Tensor) -> OperationReceivers {
        let (ready, ready_receiver) = oneshot::channel();
        let (done, done_receiver) = oneshot::channel();
        let sequence = self.next;
        self.next = Sequence(sequence.0 + 1);
        self.operations.insert(sequence, PendingOperation { tensor, ready: Some(ready), done });
        self.uncommitted = Some(self.epoch);
        OperationReceivers { ready: ready_receiver, done: done_receiver }
    }

    /// Returns the failure of a request that comes after the end of the connection.
    pub fn disconnect_failure(&self) -> Failure {
        gateway_lost_failure(self.ended.as_deref().unwrap_or("the connection ended"))
    }

    /// Removes a collective, gives its tensor back to the caller, and reports `failure` if no
    /// result was reported before.
    fn finish_operation(&mut self, sequence: Sequence, failure: Option<Failure>) {
        let Some(mut pending) = self.operations.remove(&sequence) else { return };
        if let (Some(ready), Some(failure)) = (pending.ready.take(), failure) {
            let _ = ready.send(Err(failure));
        }
        let _ = pending.done.send(pending.tensor);
    }

    /// Completes the caller's waiting `commit(step)` with the gateway's answer.
    fn answer_commit(&mut self, step: Step, outcome: Result<(), Failure>) {
        let waits = self.commits.iter().position(|commit| commit.step == step);
        if let Some(commit) = waits.and_then(|at| self.commits.remove(at)) {
            let _ = commit.answer.send(outcome);
        }
    }
}

impl Connection {
    /// Locks the state of collectives and commits. Hold the lock for a moment only.
    pub fn lock_state(&self) -> MutexGuard<'_, ConnectionState> {
        lock(&self.state)
    }

    /// Applies an event of the gateway to the state, and wakes the callers that wait for it.
    fn handle_event(&self, event: RankEvent) {
        let mut state = self.lock_state();
        match event {
            RankEvent::EpochBegan { epoch, next, committed } => {
                (state.epoch, state.next, state.committed) = (epoch, next, committed);
                self.settled.send_replace(true);
            }
            RankEvent::ResultReady { sequence, timing } => {
                let pending = state.operations.get_mut(&sequence);
                if let Some(ready) = pending.and_then(|pending| pending.ready.take()) {
                    let _ = ready.send(Ok(timing));
                }
            }
            RankEvent::ContributionFree { sequence } => state.finish_operation(sequence, None),
            RankEvent::Failed { sequence, failure } => {
                state.finish_operation(sequence, Some(failure))
            }
            RankEvent::Committed { step } => {
                state.committed = Some(step);
                state.answer_commit(step, Ok(()));
            }
            RankEvent::CommitFailed { step, failure } => state.answer_commit(step, Err(failure)),
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Ends the connection for the reason `why`: all collectives and commits under way fail.
    fn disconnect(&self, why: &str) {
        self.over.cancel();
        let mut state = self.lock_state();
        state.ended.get_or_insert_with(|| why.to_owned());
        let under_way: Vec<Sequence> = state.operations.keys().copied().collect();
        for sequence in under_way {
            state.finish_operation(sequence, Some(gateway_lost_failure(why)));
        }
        for commit in std::mem::take(&mut state.commits) {
            let _ = commit.answer.send(Err(gateway_lost_failure(why)));
        }
        drop(state);
        self.settled.send_replace(true);
        self.changed.notify_waiters();
    }
}

/// Makes the failure of a collective or commit whose gateway cannot be reached any more.
pub(super) fn gateway_lost_failure(why: &str) -> Failure {
    Failure::new(FailureCode::GatewayLost, format!("{why}; contribution intact"))
}

/// Writes requests to the gateway until the connection ends.
pub(super) async fn write_requests(
    connection: Weak<Connection>,
    mut writer: WriteHalf<Box<dyn Duplex>>,
    mut requests: mpsc::Receiver<Request>,
) {
    while let Some(request) = requests.recv().await {
        if let Err(error) = write_local_message(&mut writer, &request.encode()).await
            && let Some(connection) = connection.upgrade()
        {
            return connection.disconnect(&error.to_string());
        }
    }
}

/// Reads the gateway's events until the connection ends.
pub(super) async fn read_events(
    connection: Weak<Connection>,
    mut reader: ReadHalf<Box<dyn Duplex>>,
) {
    let why = loop {
        let response = match read_local_message(&mut reader).await {
            Ok(bytes) => Response::decode(&bytes),
            Err(error) => break format!("connection to the gateway ended: {error}"),
        };
        let Some(connection) = connection.upgrade() else { return };
        match response {
            Ok(Response::Event(event)) => connection.handle_event(event),
            Ok(Response::Refused(refusal)) => break refusal.why,
            Ok(Response::Attached { .. }) => {
                break "the gateway attached this rank twice".to_owned();
            }
            Err(error) => break format!("malformed message from the gateway: {error}"),
        }
    };
    if let Some(connection) = connection.upgrade() {
        connection.disconnect(&why);
    }
}
