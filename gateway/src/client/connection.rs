//! The connection of a rank to its gateway: requests out, events in, and the state they share.
//!
//! [`write_connection_requests`] takes requests from a channel of `CLIENT_REQUESTS_MAX` entries
//! (`attach.rs`); a caller that posts waits while the channel is full. [`read_connection_events`]
//! completes operations and commits.

use super::attach::handover::ArenaHandover;
use super::slots::SlotAllocator;
use super::tensor::Tensor;
use crate::local::listener::{TrainerStream, Transport};
use crate::local::protocol::{Request, Response, read_local_message, write_local_message};
use crate::local::remote::pieces::{
    PieceReceiver, append_contribution_piece, is_contribution_sent_in_pieces, piece_ranges,
};
use crate::memory::mem_slice::MemSlice;
use crate::sync::lock;
use hier_collectives::ids::{Epoch, RankId, Sequence, Step};
use hier_collectives::post::{Failure, FailureCode, RankEvent, Timing};
use hier_collectives::store::StoreAnswer;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The result of a collective: its timestamps, or why it failed.
pub(super) type CollectiveResult = Result<Timing, Failure>;

/// An attached rank's connection, shared by all clones of its client.
pub(super) struct Connection {
    pub rank: RankId,
    pub world_size: u32,
    /// The arena, and the way by which another connection hands it over.
    pub handover: Arc<ArenaHandover>,
    pub slots: Arc<Mutex<SlotAllocator>>,
    /// Requests to the gateway, in the order of their numbers: senders hold `state` meanwhile.
    pub requests: mpsc::Sender<Request>,
    pub state: Mutex<ConnectionState>,
    /// Room for requests to the store.
    pub store_places: Arc<Semaphore>,
    /// Notified whenever `state` changed.
    pub changed: Notify,
    /// Whether the first epoch began, or the connection ended before.
    pub settled: watch::Sender<bool>,
    /// Cancelled when the connection ended: stops the writer.
    pub over: CancellationToken,
    /// Stops the reader, also when the connection is dropped. The stream closes once the writer has
    /// sent what was posted, and by that the gateway learns that the trainer is gone.
    pub listening: CancellationToken,
    pub _stop_listening: DropGuard,
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
    /// Requests to the store without an answer, by number.
    pub store_requests: BTreeMap<u64, PendingStoreRequest>,
    /// Number of the next request to the store.
    pub next_store_request: u64,
    /// Commits without an answer, oldest first.
    pub commits: VecDeque<PendingCommit>,
    /// The last step known to be complete in every region.
    pub committed: Option<Step>,
    /// The last failure of a collective of this rank.
    last_failure: Option<Failure>,
    /// The reason of the last epoch's end, if posts of ranks were at fault and no collective of
    /// this rank failed for it.
    untold: Option<Failure>,
    /// The reason why no epoch is under way, in the words of the gateway.
    pub awaited: Option<String>,
    /// Why the connection ended.
    pub ended: Option<String>,
    /// The epochs in which the caller may post.
    allowed: AllowedEpochs,
}

/// The epochs in which a rank may post and commit.
#[derive(Debug, Clone, Copy, Default)]
enum AllowedEpochs {
    /// Each, as it comes.
    #[default]
    All,
    /// The current one only.
    Current,
    /// None, since the one that was allowed has ended. A number is not enough to tell: it may come
    /// again after all gateways were started again.
    Ended(Epoch),
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

/// A request to the store without an answer. Its place is free once it is answered.
#[derive(Debug)]
pub(super) struct PendingStoreRequest {
    pub answer: oneshot::Sender<StoreAnswer>,
    pub _place: OwnedSemaphorePermit,
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

    /// Takes the reason why posts of ranks ended the last epoch, if no collective of this rank
    /// failed for it. The next post of this rank would be the wrong one, too.
    pub fn take_untold_failure(&mut self) -> Option<Failure> {
        self.untold.take()
    }

    /// Restricts posts and commits to the current epoch, which is returned.
    pub fn agree_to_epoch(&mut self) -> Epoch {
        self.allowed = AllowedEpochs::Current;
        // The caller begins anew, so that posts of the epoch before are no concern of it.
        self.untold = None;
        self.epoch
    }

    /// Whether the connection stands and the epoch that the caller agreed to goes on.
    pub fn is_epoch_agreed(&self) -> bool {
        self.ended.is_none() && matches!(self.allowed, AllowedEpochs::Current)
    }

    /// Returns the failure of a post or commit, if the caller has agreed to an epoch that ended.
    pub fn epoch_failure(&self) -> Option<Failure> {
        let AllowedEpochs::Ended(agreed) = self.allowed else { return None };
        let text = format!("epoch {agreed} ended; contribution intact; begin the step again");
        Some(Failure::new(FailureCode::EpochEnded, text))
    }

    /// Takes up a new epoch, whose first collective has the number `next`. `ended` is the reason why
    /// the one before ended.
    fn begin_epoch(&mut self, epoch: Epoch, next: Sequence, ended: Option<Failure>) {
        self.note_epoch_end(ended);
        if matches!(self.allowed, AllowedEpochs::Current) {
            self.allowed = AllowedEpochs::Ended(self.epoch);
        }
        (self.epoch, self.next, self.awaited) = (epoch, next, None);
    }

    /// Notes why the epoch before ended; `None` if this rank was not in it.
    fn note_epoch_end(&mut self, ended: Option<Failure>) {
        let was_member = self.epoch != Epoch::default();
        // A collective of that epoch without a result fails for the same reason, a little later.
        let fails = self.operations.values().any(|pending| pending.ready.is_some());
        let untold = ended.filter(|failure| {
            failure.code.is_fault_of_posts() && self.last_failure.as_ref() != Some(failure)
        });
        self.untold = untold.filter(|_| was_member && !fails);
    }

    /// Returns the failure of a request that comes after the end of the connection.
    pub fn disconnect_failure(&self) -> Failure {
        lost_connection_failure(self.ended.as_deref().unwrap_or("the connection ended"))
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

    /// Returns the bytes that have to be sent before a request, and their offset in the arena; `None`
    /// where the gateway has them or reads none.
    fn contribution_to_send(&self, request: &Request) -> Option<(MemSlice, u64)> {
        let Request::Post { post, contribution_offset, .. } = request else { return None };
        if self.handover.transport() == Transport::Shared
            || !is_contribution_sent_in_pieces(post.descriptor.pattern, self.rank)
        {
            return None;
        }
        // A collective that has failed meanwhile is of an old epoch, whose posts nobody reads.
        let state = self.lock_state();
        let operation = state.operations.get(&post.sequence)?;
        Some((operation.tensor.contribution.memory().clone(), *contribution_offset))
    }

    /// Returns whether `bytes` bytes at `offset` lie in the result slot of a collective under way.
    fn expects_result(&self, sequence: Sequence, offset: u64, bytes: u32) -> bool {
        let end = offset.checked_add(bytes.into());
        let state = self.lock_state();
        let slot =
            state.operations.get(&sequence).map(|operation| operation.tensor.result.memory());
        let fits = slot.zip(end).is_some_and(|(slot, end)| end <= slot.len());
        fits && self.handover.transport() == Transport::Streamed
    }

    /// Writes bytes of a result. The slot is the caller's again if the collective has ended, and then
    /// nothing is written.
    fn write_result(&self, sequence: Sequence, offset: u64, bytes: &[u8]) {
        let state = self.lock_state();
        if let Some(operation) = state.operations.get(&sequence) {
            operation.tensor.result.memory().copy_from_bytes(offset, bytes);
        }
    }

    /// Applies an event of the gateway to the state, and wakes the callers that wait for it.
    fn handle_event(&self, event: RankEvent) {
        let mut state = self.lock_state();
        match event {
            RankEvent::EpochBegan { epoch, next, committed, ended } => {
                state.begin_epoch(epoch, next, ended);
                state.committed = committed;
                self.settled.send_replace(true);
            }
            RankEvent::EpochAwaited { why } => state.awaited = Some(why),
            RankEvent::ResultReady { sequence, timing } => {
                let pending = state.operations.get_mut(&sequence);
                if let Some(ready) = pending.and_then(|pending| pending.ready.take()) {
                    let _ = ready.send(Ok(timing));
                }
            }
            RankEvent::ContributionFree { sequence } => state.finish_operation(sequence, None),
            RankEvent::Failed { sequence, failure } => {
                state.last_failure = Some(failure.clone());
                state.finish_operation(sequence, Some(failure));
            }
            RankEvent::Committed { step } => {
                state.committed = Some(step);
                state.answer_commit(step, Ok(()));
            }
            RankEvent::CommitFailed { step, failure } => state.answer_commit(step, Err(failure)),
            RankEvent::StoreAnswered { number, answer } => {
                if let Some(pending) = state.store_requests.remove(&number) {
                    let _ = pending.answer.send(answer);
                }
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Ends the connection at once, with what was posted on it, for the caller's reason `why`.
    pub fn give_up(&self, why: &str) {
        self.listening.cancel();
        self.disconnect(why);
    }

    /// Ends the connection for the reason `why`: all collectives and commits under way fail.
    fn disconnect(&self, why: &str) {
        self.over.cancel();
        let mut state = self.lock_state();
        state.ended.get_or_insert_with(|| why.to_owned());
        let under_way: Vec<Sequence> = state.operations.keys().copied().collect();
        for sequence in under_way {
            state.finish_operation(sequence, Some(lost_connection_failure(why)));
        }
        for commit in std::mem::take(&mut state.commits) {
            let _ = commit.answer.send(Err(lost_connection_failure(why)));
        }
        // Their callers see that no answer comes any more.
        state.store_requests.clear();
        drop(state);
        self.settled.send_replace(true);
        self.changed.notify_waiters();
    }
}

/// Makes the failure of a collective or commit whose gateway cannot be reached any more.
pub(super) fn lost_connection_failure(why: &str) -> Failure {
    Failure::new(FailureCode::GatewayLost, format!("{why}; contribution intact"))
}

/// Writes requests to the gateway until the connection ends, each behind the bytes that it needs.
pub(super) async fn write_connection_requests(
    connection: Weak<Connection>,
    mut writer: WriteHalf<Box<dyn TrainerStream>>,
    mut requests: mpsc::Receiver<Request>,
) {
    while let Some(request) = requests.recv().await {
        let bytes = connection.upgrade().and_then(|of| of.contribution_to_send(&request));
        let written = async {
            if let Some((contribution, offset)) = bytes {
                send_contribution_over_connection(&mut writer, &contribution, offset).await?;
            }
            write_local_message(&mut writer, &request.encode()).await
        };
        if let Err(error) = written.await
            && let Some(connection) = connection.upgrade()
        {
            return connection.disconnect(&error.to_string());
        }
    }
}

/// Sends the bytes of a contribution, of which one piece at a time is held beside the arena.
async fn send_contribution_over_connection(
    writer: &mut WriteHalf<Box<dyn TrainerStream>>,
    contribution: &MemSlice,
    slot_offset: u64,
) -> io::Result<()> {
    let mut piece = Vec::new();
    for range in piece_ranges(contribution.len()) {
        piece.clear();
        append_contribution_piece(&mut piece, contribution, slot_offset, range);
        writer.write_all(&piece).await?;
    }
    Ok(())
}

/// Reads the gateway's events until the connection ends.
pub(super) async fn read_connection_events(
    connection: Weak<Connection>,
    mut reader: ReadHalf<Box<dyn TrainerStream>>,
) {
    let mut pieces = PieceReceiver::new();
    let ended = |error: io::Error| format!("connection to the gateway ended: {error}");
    let why = loop {
        let response = match read_local_message(&mut reader).await {
            Ok(bytes) => Response::decode(&bytes),
            Err(error) => break ended(error),
        };
        let Some(connection) = connection.upgrade() else { return };
        match response {
            Ok(Response::Event(event)) => connection.handle_event(event),
            Ok(Response::ResultPiece { sequence, offset, bytes }) => {
                if !connection.expects_result(sequence, offset, bytes) {
                    break format!("the gateway sent bytes for no result of collective {sequence}");
                }
                let put = |at: u64, part: &[u8]| {
                    connection.write_result(sequence, offset + at, part);
                };
                if let Err(error) = pieces.receive(&mut reader, bytes, put).await {
                    break ended(error);
                }
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn posts_keep_to_the_epoch_that_the_caller_began() {
        let mut state = ConnectionState::default();
        state.begin_epoch(Epoch(1), Sequence(0), None);
        assert!(!state.is_epoch_agreed() && state.epoch_failure().is_none(), "any epoch will do");
        assert_eq!(state.agree_to_epoch(), Epoch(1));
        assert!(state.is_epoch_agreed() && state.epoch_failure().is_none());
        // All gateways were started again, so that the number is the same.
        state.begin_epoch(Epoch(1), Sequence(0), None);
        let failure = state.epoch_failure().expect("the step belongs to the epoch before");
        assert_eq!(failure.code, FailureCode::EpochEnded);
        state.begin_epoch(Epoch(2), Sequence(0), None);
        let again = state.epoch_failure().expect("until the caller agrees");
        assert!(again.text.starts_with("epoch 1 ended"), "{again}");
        assert_eq!(state.agree_to_epoch(), Epoch(2));
        assert!(state.is_epoch_agreed() && state.epoch_failure().is_none());
        state.ended = Some("for this test".to_owned());
        assert!(!state.is_epoch_agreed());
    }
}
