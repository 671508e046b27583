//! The connection of a rank to its gateway: requests out, events in, and the state they share.
//!
//! [`write_client_connection_requests`] takes requests from a queue (`request_queue`); a caller that posts
//! waits while it is full. [`read_client_connection_events`] completes operations, commits and requests to
//! the store.

pub(super) mod call_deadline;
pub(super) mod group_handle;
pub(super) mod group_state;
pub(super) mod request_queue;

use super::arena_buffer::ArenaBufferAllocator;
use super::attach::arena_handover::ArenaHandover;
use super::recorder::RankRecorderHold;
use crate::events::GroupNumber;
use crate::local::protocol::{
    ProtocolRequest, ProtocolResponse, frame_protocol_message, read_protocol_message,
    write_protocol_message,
};
use crate::local::remote::pieces::{PieceReceiver, append_contribution_piece, piece_ranges};
use crate::local::trainer_listener::{TrainerStream, Transport};
use crate::lock::lock_ignoring_poison;
use group_state::GroupState;
use hier_collectives::ids::{RankId, Sequence};
use hier_collectives::post::{Failure, FailureCode, RankEvent};
use hier_collectives::store::StoreAnswer;
use request_queue::{QueuedContribution, RequestQueue, RequestQueueReader};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

/// An attached rank's connection, shared by all clones of its client.
pub(super) struct ClientConnection {
    pub rank: RankId,
    pub world_size: u32,
    /// The arena, and the way by which another connection hands it over.
    pub handover: Arc<ArenaHandover>,
    pub slots: Arc<Mutex<ArenaBufferAllocator>>,
    pub recorder: Arc<RankRecorderHold>,
    /// Requests to the gateway, in the order of their numbers: senders hold `state` meanwhile.
    pub requests: RequestQueue,
    pub state: Mutex<ClientConnectionState>,
    /// Room for requests to the store.
    pub store_places: Arc<Semaphore>,
    /// Room for those among them that wait for keys.
    pub store_waits: Arc<Semaphore>,
    /// Held while a call makes a group of two ranks for their sends.
    pub pair_making: tokio::sync::Mutex<()>,
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

/// The groups that a rank is in, the job itself among them, and its requests to the job's store.
#[derive(Debug)]
pub(super) struct ClientConnectionState {
    groups: BTreeMap<GroupNumber, GroupState>,
    /// The highest number of a group so far.
    last_number: GroupNumber,
    /// Requests to the store without an answer, by number.
    store_requests: BTreeMap<u64, PendingStoreRequest>,
    /// Number of the next request to the store.
    next_store_request: u64,
    /// Why the connection ended.
    pub ended: Option<String>,
}

/// A request to the store without an answer. Its places are free once it is answered.
#[derive(Debug)]
pub(super) struct PendingStoreRequest {
    pub answer: oneshot::Sender<StoreAnswer>,
    pub _places: Vec<OwnedSemaphorePermit>,
}

impl ClientConnectionState {
    /// Makes the state of an attached rank, which is in no group but its job.
    pub fn of_rank(rank: RankId) -> Self {
        let groups = BTreeMap::from([(GroupNumber::JOB, GroupState::of_rank(rank))]);
        let (last_number, store_requests) = (GroupNumber::JOB, BTreeMap::new());
        Self { groups, last_number, store_requests, next_store_request: 0, ended: None }
    }

    /// Returns the state of the group with this number, which stays until its last handle is
    /// dropped.
    pub fn group_mut(&mut self, number: GroupNumber) -> &mut GroupState {
        self.groups.get_mut(&number).expect("a group stays until its last handle is dropped")
    }

    /// Returns the number of collectives of all groups that are under way.
    pub fn operations_under_way(&self) -> usize {
        self.groups.values().map(|group| group.operations.len()).sum()
    }

    /// Adds the state of a group in which the caller has this rank; returns the number by which the
    /// connection knows it.
    pub fn add_group(&mut self, rank: RankId) -> GroupNumber {
        self.last_number.0 += 1;
        self.groups.insert(self.last_number, GroupState::of_rank(rank));
        self.last_number
    }

    /// Adds a request to the store that awaits its answer; returns the number that the answer will
    /// have.
    pub fn add_store_request(&mut self, request: PendingStoreRequest) -> u64 {
        let number = self.next_store_request;
        self.next_store_request += 1;
        self.store_requests.insert(number, request);
        number
    }

    /// Completes a request to the store with the gateway's answer.
    fn answer_store_request(&mut self, number: u64, answer: StoreAnswer) {
        if let Some(pending) = self.store_requests.remove(&number) {
            let _ = pending.answer.send(answer);
        }
    }

    /// Returns the failure of a request that comes after the end of the connection.
    pub fn disconnect_failure(&self) -> Failure {
        lost_client_connection_failure(self.ended.as_deref().unwrap_or("the connection ended"))
    }
}

impl ClientConnection {
    /// Locks the state of groups and of requests to the store. Hold the lock for a moment only.
    pub fn lock_state(&self) -> MutexGuard<'_, ClientConnectionState> {
        lock_ignoring_poison(&self.state)
    }

    /// Appends a piece of a contribution to `out`. Returns false once the collective has ended: the
    /// slot is the caller's again, and the gateway expects nothing more.
    fn append_piece_if_under_way(
        &self,
        contribution: &QueuedContribution,
        range: Range<u64>,
        out: &mut Vec<u8>,
    ) -> bool {
        // The slot cannot be given back meanwhile.
        let _state = self.lock_state();
        let is_under_way = contribution.under_way.is_under_way();
        if is_under_way {
            append_contribution_piece(out, &contribution.bytes, range);
        }
        is_under_way
    }

    /// Returns whether `bytes` bytes at `offset` of a result slot lie within the slot of a
    /// collective under way. False where the gateway writes results into shared memory.
    fn expects_result(
        &self,
        (number, sequence): (GroupNumber, Sequence),
        offset: u64,
        bytes: u32,
    ) -> bool {
        let end = offset.checked_add(bytes.into());
        let state = self.lock_state();
        let operation = state.groups.get(&number).and_then(|group| group.operations.get(&sequence));
        let slot = operation.map(|operation| operation.tensor.result.memory());
        let fits = slot.zip(end).is_some_and(|(slot, end)| end <= slot.len());
        fits && self.handover.transport() == Transport::Streamed
    }

    /// Writes bytes of a result at `offset` of its slot. The slot is the caller's again if the
    /// collective has ended, and then nothing is written.
    fn write_result(&self, (number, sequence): (GroupNumber, Sequence), offset: u64, bytes: &[u8]) {
        let state = self.lock_state();
        let group = state.groups.get(&number);
        if let Some(operation) = group.and_then(|group| group.operations.get(&sequence)) {
            operation.tensor.result.memory().copy_from_bytes(offset, bytes);
        }
    }

    /// Applies an event of the gateway, and wakes the callers that wait for it. Events of groups that
    /// the caller has left have no effect.
    fn handle_event(&self, number: GroupNumber, event: RankEvent) {
        let mut state = self.lock_state();
        if let RankEvent::StoreAnswered { number, answer } = event {
            return state.answer_store_request(number, answer);
        }
        let begins = matches!(event, RankEvent::EpochBegan { .. });
        let failed = match &event {
            RankEvent::Failed { failure, .. } => Some(failure.code),
            _ => None,
        };
        if let RankEvent::WorldChanged { ranks } = &event {
            self.recorder.note_world_size(u32::try_from(ranks.len()).unwrap_or(u32::MAX));
        }
        if let Some(group) = state.groups.get_mut(&number) {
            group.handle_event(event);
        }
        self.leave_if_idle(number, &mut state);
        drop(state);
        if let Some(code) = failed {
            self.recorder.note_failure(code);
        }
        if begins && number == GroupNumber::JOB {
            self.settled.send_replace(true);
        }
        self.changed.notify_waiters();
    }

    /// Leaves a group whose last handle was dropped, now or once nothing of it is under way.
    pub fn leave_group(&self, number: GroupNumber) {
        let mut state = self.lock_state();
        if let Some(group) = state.groups.get_mut(&number) {
            group.is_leaving = true;
        }
        self.leave_if_idle(number, &mut state);
    }

    /// Leaves a group that is to be left, if nothing of it is under way.
    fn leave_if_idle(&self, number: GroupNumber, state: &mut ClientConnectionState) {
        let is_idle = |group: &GroupState| {
            group.is_leaving && group.operations.is_empty() && group.commits.is_empty()
        };
        if state.groups.get(&number).is_some_and(is_idle) {
            state.groups.remove(&number);
            self.requests.leave_group(number);
        }
    }

    /// Ends the connection without a wait for what was posted on it, which fails for the caller's
    /// reason `why`.
    pub fn give_up(&self, why: &str) {
        self.listening.cancel();
        self.end(why);
    }

    /// Ends the connection as [`Self::end`] does, and has collectives dumped that fail by it.
    fn disconnect(&self, why: &str) {
        if self.end(why) {
            self.recorder.note_failure(FailureCode::GatewayLost);
        }
    }

    /// Ends the connection for the reason `why`: all collectives, commits and requests to the store
    /// fail that are under way. Returns whether there were collectives.
    fn end(&self, why: &str) -> bool {
        self.over.cancel();
        let mut state = self.lock_state();
        let fails_collectives = state.operations_under_way() > 0;
        state.ended.get_or_insert_with(|| why.to_owned());
        let failure = lost_client_connection_failure(why);
        state.groups.values_mut().for_each(|group| group.end_with_connection(&failure));
        // Their callers see that no answer comes any more.
        state.store_requests.clear();
        drop(state);
        self.settled.send_replace(true);
        self.changed.notify_waiters();
        fails_collectives
    }
}

/// Makes the failure of a collective or commit whose gateway cannot be reached any more.
pub(super) fn lost_client_connection_failure(why: &str) -> Failure {
    Failure::new(FailureCode::GatewayLost, format!("{why}; contribution intact"))
}

/// Writes the queued requests to the gateway, as a task, until the connection ends. The bytes of a
/// contribution are written behind its post.
pub(super) async fn write_client_connection_requests(
    connection: Weak<ClientConnection>,
    mut writer: WriteHalf<Box<dyn TrainerStream>>,
    mut requests: RequestQueueReader,
) {
    while let Some((request, contribution)) = requests.next().await {
        let written = async {
            match contribution {
                Some(contribution) => {
                    send_client_connection_post(&connection, &mut writer, &request, &contribution)
                        .await
                }
                None => write_protocol_message(&mut writer, &request.encode()).await,
            }
        };
        if let Err(error) = written.await
            && let Some(connection) = connection.upgrade()
        {
            return connection.disconnect(&error.to_string());
        }
    }
}

/// Sends a post, and the bytes of its contribution in pieces; outside the arena there is one piece at
/// a time. Leaves out the rest once the collective has failed.
async fn send_client_connection_post(
    connection: &Weak<ClientConnection>,
    writer: &mut WriteHalf<Box<dyn TrainerStream>>,
    request: &ProtocolRequest,
    contribution: &QueuedContribution,
) -> io::Result<()> {
    let mut out = frame_protocol_message(&request.encode());
    for range in piece_ranges(contribution.bytes.len()) {
        // Without a client nobody can have the slot, whose memory this task holds.
        let is_under_way = match connection.upgrade() {
            Some(connection) => connection.append_piece_if_under_way(contribution, range, &mut out),
            None => {
                append_contribution_piece(&mut out, &contribution.bytes, range);
                true
            }
        };
        if !is_under_way {
            break;
        }
        writer.write_all(&out).await?;
        out.clear();
    }
    writer.write_all(&out).await?;
    writer.flush().await
}

/// Reads the gateway's events and applies them, as a task, until the connection ends.
pub(super) async fn read_client_connection_events(
    connection: Weak<ClientConnection>,
    mut reader: ReadHalf<Box<dyn TrainerStream>>,
) {
    let mut pieces = PieceReceiver::new();
    let ended = |error: io::Error| format!("connection to the gateway ended: {error}");
    let why = loop {
        let response = match read_protocol_message(&mut reader).await {
            Ok(bytes) => ProtocolResponse::decode(&bytes),
            Err(error) => break ended(error),
        };
        let Some(connection) = connection.upgrade() else { return };
        let (number, response) = match response {
            Ok(ProtocolResponse::InGroup(number, response)) => (number, Ok(*response)),
            response => (GroupNumber::JOB, response),
        };
        match response {
            Ok(ProtocolResponse::Event(event)) => connection.handle_event(number, event),
            Ok(ProtocolResponse::ResultPiece { sequence, offset, bytes }) => {
                if !connection.expects_result((number, sequence), offset, bytes) {
                    break format!("the gateway sent bytes for no result of collective {sequence}");
                }
                let put = |at: u64, part: &[u8]| {
                    connection.write_result((number, sequence), offset + at, part);
                };
                if let Err(error) = pieces.receive(&mut reader, bytes, put).await {
                    break ended(error);
                }
            }
            Ok(ProtocolResponse::Refused(refusal)) => break refusal.why,
            Ok(ProtocolResponse::Attached { .. } | ProtocolResponse::InGroup(..)) => {
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
mod tests;
