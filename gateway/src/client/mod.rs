//! A trainer's side of the local plane: attach, allocate, all-reduce.
//!
//! ```no_run
//! # async fn example(token: [u8; 32]) -> Result<(), Box<dyn std::error::Error>> {
//! use gateway::client::{Attach, Client, Way};
//! use hier_collectives::descriptor::{Dtype, ReduceOp};
//! let way = Way::Socket("/run/landbridge/east-0.sock".into());
//! let client = Client::attach(&way, Attach::new("train", token, 0, 64 << 20)).await?;
//! let mut tensor = client.allocate(Dtype::F32, 1024)?;
//! tensor.write_f32(&[1.0; 1024]);
//! let mut operation = client.all_reduce(tensor, ReduceOp::Sum).await?;
//! operation.ready().await?;
//! let sums: Vec<f32> = operation.result_f32();
//! # Ok(()) }
//! ```

mod attach;
mod batch;
mod slots;

pub use attach::{Attach, AttachError, GATEWAY_PATIENCE, Way};
pub use batch::{BatchShare, StepError};

use crate::local::protocol::POSTS_MAX;
use crate::local::protocol::Request;
use crate::memory::arena::{Arena, MemSlice};
use hier_collectives::descriptor::{Descriptor, Dtype, Pattern, ReduceOp};
use hier_collectives::ids::{Epoch, RankId, Sequence, Step};
use hier_collectives::post::{Commit, Failure, FailureCode, Post, RankEvent, Timing};
use slots::Slots;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use units::Span;

/// How long a rank waits for the others to post, unless it says otherwise.
pub const DEFAULT_TIMEOUT: Span = Span::from_secs(30 * 60);

/// Why a collective was not posted. The tensor comes back with it.
#[derive(Debug, thiserror::Error)]
#[error("not posted: {failure}")]
pub struct PostError {
    /// Why.
    pub failure: Failure,
    /// The tensor, its contribution intact.
    pub tensor: Box<Tensor>,
}

/// There is no room in the arena. The caller's fault; attach with more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the arena has no room for {wanted} bytes twice; attach with a larger one")]
pub struct ArenaFull {
    /// Bytes of one slot.
    pub wanted: u64,
}

/// An attached rank.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    rank: RankId,
    world_size: u32,
    arena: Arc<Arena>,
    slots: Arc<Mutex<Slots>>,
    /// To the gateway, in the order of their numbers: whoever puts one in holds `state`.
    requests: mpsc::Sender<Request>,
    state: Mutex<State>,
    /// Something in `state` changed.
    changed: Notify,
    /// Whether an epoch began, or the connection ended before.
    settled: watch::Sender<bool>,
    /// Nothing more can be said.
    over: CancellationToken,
    /// Ends the reader; and so, once what was posted is said, the connection: that is how the
    /// gateway hears that the trainer has gone.
    _listening: DropGuard,
}

#[derive(Debug, Default)]
struct State {
    epoch: Epoch,
    next: Sequence,
    operations: BTreeMap<Sequence, Entry>,
    /// The epoch of the last post that no commit covers yet.
    uncommitted: Option<Epoch>,
    /// Commits that wait for their answers, in order.
    commits: VecDeque<(Step, oneshot::Sender<Result<(), Failure>>)>,
    /// The last step known to be complete in every region.
    committed: Option<Step>,
    /// Why the connection ended.
    ended: Option<String>,
}

#[derive(Debug)]
struct Entry {
    tensor: Tensor,
    ready: Option<oneshot::Sender<Outcome>>,
    done: oneshot::Sender<Tensor>,
}

/// How a collective ended.
type Outcome = Result<Timing, Failure>;

/// A contribution slot and a result slot in the arena, freed when dropped.
#[derive(Debug)]
pub struct Tensor {
    dtype: Dtype,
    elements: u64,
    contribution: MemSlice,
    result: MemSlice,
    offsets: (u64, u64),
    slots: Arc<Mutex<Slots>>,
}

/// A collective under way.
#[derive(Debug)]
pub struct Operation {
    sequence: Sequence,
    result: MemSlice,
    ready: oneshot::Receiver<Outcome>,
    outcome: Option<Outcome>,
    done: oneshot::Receiver<Tensor>,
}

impl Client {
    /// The rank it speaks for.
    pub fn rank(&self) -> RankId {
        self.inner.rank
    }

    /// Ranks in all.
    pub fn world_size(&self) -> u32 {
        self.inner.world_size
    }

    /// The epoch under way, as far as it has been heard of.
    pub fn epoch(&self) -> Epoch {
        self.inner.lock().epoch
    }

    /// Why the connection to the gateway ended, once it has: attach again.
    pub fn lost(&self) -> Option<String> {
        self.inner.lock().ended.clone()
    }

    /// Reserves a contribution and a result slot.
    ///
    /// # Errors
    /// [`ArenaFull`].
    pub fn allocate(&self, dtype: Dtype, elements: u64) -> Result<Tensor, ArenaFull> {
        let full = ArenaFull { wanted: elements.saturating_mul(dtype.size()) };
        let bytes = elements.checked_mul(dtype.size()).ok_or(full)?;
        let mut slots = lock(&self.inner.slots);
        let contribution = slots.take(bytes).ok_or(full)?;
        let Some(result) = slots.take(bytes) else {
            slots.give(contribution);
            return Err(full);
        };
        drop(slots);
        let whole = self.inner.arena.whole();
        Ok(Tensor {
            dtype,
            elements,
            contribution: whole.slice(contribution..contribution + bytes),
            result: whole.slice(result..result + bytes),
            offsets: (contribution, result),
            slots: Arc::clone(&self.inner.slots),
        })
    }

    /// Starts an all-reduce with weight 1 and [`DEFAULT_TIMEOUT`].
    ///
    /// # Errors
    /// See [`Client::all_reduce_with`].
    pub async fn all_reduce(&self, tensor: Tensor, op: ReduceOp) -> Result<Operation, PostError> {
        self.all_reduce_with(tensor, op, 1.0, DEFAULT_TIMEOUT).await
    }

    /// Starts an all-reduce. `weight` counts in averages; `timeout` is how long to wait for
    /// the other ranks to post. Several may be under way at once; all ranks must post them in
    /// the same order.
    ///
    /// # Errors
    /// [`PostError`] when the gateway is gone; everything else is the operation's outcome. A call
    /// that is dropped before it returns either posted or did not, and never by half.
    pub async fn all_reduce_with(
        &self,
        tensor: Tensor,
        op: ReduceOp,
        weight: f64,
        timeout: Span,
    ) -> Result<Operation, PostError> {
        self.post(tensor, (Pattern::AllReduce, op), weight, timeout).await
    }

    /// Starts a reduction to rank `to`: its operation alone has a result. On other ranks the
    /// operation is ready once what they gave is on its way to it for good.
    ///
    /// # Errors
    /// See [`Client::all_reduce_with`].
    pub async fn reduce(
        &self,
        tensor: Tensor,
        op: ReduceOp,
        to: RankId,
    ) -> Result<Operation, PostError> {
        self.post(tensor, (Pattern::Reduce { to }, op), 1.0, DEFAULT_TIMEOUT).await
    }

    /// Starts a broadcast from rank `from`: every rank's result is what that one wrote, bit for
    /// bit. What others wrote is not read.
    ///
    /// # Errors
    /// See [`Client::all_reduce_with`].
    pub async fn broadcast(&self, tensor: Tensor, from: RankId) -> Result<Operation, PostError> {
        let what = (Pattern::Broadcast { from }, ReduceOp::Sum);
        self.post(tensor, what, 1.0, DEFAULT_TIMEOUT).await
    }

    /// Waits until every rank has come to its own barrier, at most [`DEFAULT_TIMEOUT`].
    ///
    /// # Errors
    /// The failure, also when the arena has no room for two empty slots.
    pub async fn barrier(&self) -> Result<(), Failure> {
        let tensor = self.allocate(Dtype::U8, 0).map_err(|full| lost(&full.to_string()))?;
        let what = (Pattern::Barrier, ReduceOp::Sum);
        let posted = self.post(tensor, what, 1.0, DEFAULT_TIMEOUT).await;
        let mut operation = posted.map_err(|error| error.failure)?;
        operation.ready().await.map(|_| ())
    }

    /// Starts a collective; waits while [`POSTS_MAX`] of this rank are under way.
    ///
    /// # Errors
    /// As [`Client::all_reduce_with`].
    pub async fn post(
        &self,
        tensor: Tensor,
        (pattern, op): (Pattern, ReduceOp),
        weight: f64,
        timeout: Span,
    ) -> Result<Operation, PostError> {
        let (dtype, elements) = (tensor.dtype, tensor.elements);
        let descriptor = Descriptor { op, dtype, elements, layout_hash: 0, pattern };
        let (contribution_offset, result_offset) = tensor.offsets;
        let request = |epoch, sequence| {
            let post = Post { epoch, sequence, descriptor, weight, timeout };
            Request::Post { post, contribution_offset, result_offset }
        };
        let result = tensor.result.clone();
        let Ok(room) = self.inner.requests.reserve().await else {
            let failure = self.inner.lock().lost();
            return Err(PostError { failure, tensor: Box::new(tensor) });
        };
        loop {
            let changed = self.inner.changed.notified();
            {
                let mut state = self.inner.lock();
                if state.ended.is_some() {
                    return Err(PostError { failure: state.lost(), tensor: Box::new(tensor) });
                }
                // One more than a rank may have is refused with its connection. After a change of
                // epoch a number may still be taken by an operation of the old one, whose failure
                // is on its way.
                let is_room = state.operations.len() < POSTS_MAX;
                if is_room && !state.operations.contains_key(&state.next) {
                    let (sequence, epoch) = (state.next, state.epoch);
                    let (ready, done) = state.begin(tensor);
                    room.send(request(epoch, sequence));
                    return Ok(Operation { sequence, result, ready, outcome: None, done });
                }
            }
            changed.await;
        }
    }

    /// Waits, at most [`DEFAULT_TIMEOUT`], until every region has all collectives that this
    /// rank has posted since its last commit, with results on all ranks. `step` is the
    /// caller's number for them, and the same on all ranks. What failed can be posted again
    /// before the commit; if nothing was posted after an epoch ended, it fails too.
    ///
    /// # Errors
    /// See [`Client::commit_with`].
    pub async fn commit(&self, step: Step) -> Result<(), Failure> {
        self.commit_with(step, DEFAULT_TIMEOUT).await
    }

    /// As [`Client::commit`], with a timeout of the caller's.
    ///
    /// # Errors
    /// [`Failure`]: it is not known here whether every region has them; the text says which
    /// region completed what. After a change of epoch [`Client::committed`] says whether some
    /// region knows. What failed is not covered by the next commit.
    pub async fn commit_with(&self, step: Step, timeout: Span) -> Result<(), Failure> {
        let Ok(room) = self.inner.requests.reserve().await else {
            return Err(self.inner.lock().lost());
        };
        let answered = {
            let mut state = self.inner.lock();
            if state.ended.is_some() {
                return Err(state.lost());
            }
            // Answers name the step: two that wait for one could not be told apart.
            if state.commits.iter().any(|(waiting, _)| *waiting == step) {
                let text = format!("step {step} is being committed already");
                return Err(Failure::new(FailureCode::BadPost, text));
            }
            let (answer, answered) = oneshot::channel();
            state.commits.push_back((step, answer));
            // What was posted in an epoch that is over has failed, and in this one there would
            // be nothing to confirm.
            let epoch = state.uncommitted.take().unwrap_or(state.epoch);
            room.send(Request::Commit(Commit { epoch, step, timeout }));
            answered
        };
        answered.await.unwrap_or_else(|_| Err(lost("the client was dropped")))
    }

    /// The last step known to be complete in every region: one that this rank committed, or,
    /// as the epoch began, one that some region knew of.
    pub fn committed(&self) -> Option<Step> {
        self.inner.lock().committed
    }
}

impl Tensor {
    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The number of elements.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Writes the contribution.
    ///
    /// # Panics
    /// When `bytes` is not as long as the slot.
    pub fn write(&mut self, bytes: &[u8]) {
        assert_eq!(bytes.len() as u64, self.contribution.len(), "one contribution");
        self.contribution.copy_from_bytes(0, bytes);
    }

    /// Reads the contribution back.
    pub fn read(&self) -> Vec<u8> {
        read(&self.contribution)
    }

    /// Writes an f32 contribution.
    ///
    /// # Panics
    /// When the dtype is another one, or the length.
    pub fn write_f32(&mut self, values: &[f32]) {
        assert_eq!(self.dtype, Dtype::F32);
        self.write(bytemuck::cast_slice(values));
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        let mut slots = lock(&self.slots);
        slots.give(self.offsets.0);
        slots.give(self.offsets.1);
    }
}

impl Operation {
    /// The collective's number.
    pub fn sequence(&self) -> Sequence {
        self.sequence
    }

    /// Waits until the result is in the result slot.
    ///
    /// # Errors
    /// [`Failure`]: whose fault it was; the contribution is intact.
    pub async fn ready(&mut self) -> Result<Timing, Failure> {
        if self.outcome.is_none() {
            let outcome = (&mut self.ready).await;
            self.outcome = Some(outcome.unwrap_or_else(|_| Err(lost("the client was dropped"))));
        }
        self.outcome.clone().unwrap_or_else(|| Err(lost("the client was dropped")))
    }

    /// The result's bytes, once it is ready.
    pub fn result(&self) -> Vec<u8> {
        read(&self.result)
    }

    /// The result's bytes as f32, once it is ready.
    pub fn result_f32(&self) -> Vec<f32> {
        bytemuck::pod_collect_to_vec(&self.result())
    }

    /// Waits until both slots may be written again, after success or failure.
    ///
    /// # Errors
    /// [`Failure`] when the client was dropped in between.
    pub async fn reclaim(self) -> Result<Tensor, Failure> {
        self.done.await.map_err(|_| lost("the client was dropped"))
    }
}

impl State {
    /// The next collective is this tensor's.
    fn begin(&mut self, tensor: Tensor) -> (oneshot::Receiver<Outcome>, oneshot::Receiver<Tensor>) {
        let ((ready, is_ready), (done, is_done)) = (oneshot::channel(), oneshot::channel());
        let sequence = self.next;
        self.next = Sequence(sequence.0 + 1);
        self.operations.insert(sequence, Entry { tensor, ready: Some(ready), done });
        self.uncommitted = Some(self.epoch);
        (is_ready, is_done)
    }

    fn lost(&self) -> Failure {
        lost(self.ended.as_deref().unwrap_or("the connection ended"))
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn handle(&self, event: RankEvent) {
        let mut state = self.lock();
        match event {
            RankEvent::EpochBegan { epoch, next, committed } => {
                (state.epoch, state.next, state.committed) = (epoch, next, committed);
                self.settled.send_replace(true);
            }
            RankEvent::ResultReady { sequence, timing } => {
                let entry = state.operations.get_mut(&sequence);
                if let Some(ready) = entry.and_then(|entry| entry.ready.take()) {
                    let _ = ready.send(Ok(timing));
                }
            }
            RankEvent::ContributionFree { sequence } => finish(&mut state, sequence, None),
            RankEvent::Failed { sequence, failure } => {
                finish(&mut state, sequence, Some(failure));
            }
            RankEvent::Committed { step } => {
                state.committed = Some(step);
                answer(&mut state, step, Ok(()));
            }
            RankEvent::CommitFailed { step, failure } => answer(&mut state, step, Err(failure)),
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// The connection is gone, and with it everything under way.
    fn end(&self, why: &str) {
        self.over.cancel();
        let mut state = self.lock();
        state.ended.get_or_insert_with(|| why.to_owned());
        let under_way: Vec<Sequence> = state.operations.keys().copied().collect();
        for sequence in under_way {
            finish(&mut state, sequence, Some(lost(why)));
        }
        for (_, answer) in std::mem::take(&mut state.commits) {
            let _ = answer.send(Err(lost(why)));
        }
        drop(state);
        self.settled.send_replace(true);
        self.changed.notify_waiters();
    }
}

fn finish(state: &mut State, sequence: Sequence, failure: Option<Failure>) {
    let Some(mut entry) = state.operations.remove(&sequence) else { return };
    if let (Some(ready), Some(failure)) = (entry.ready.take(), failure) {
        let _ = ready.send(Err(failure));
    }
    let _ = entry.done.send(entry.tensor);
}

fn answer(state: &mut State, step: Step, outcome: Result<(), Failure>) {
    let waits = state.commits.iter().position(|(waiting, _)| *waiting == step);
    if let Some((_, answer)) = waits.and_then(|at| state.commits.remove(at)) {
        let _ = answer.send(outcome);
    }
}

fn lost(why: &str) -> Failure {
    Failure::new(FailureCode::GatewayLost, format!("{why}; contribution intact"))
}

fn read(slice: &MemSlice) -> Vec<u8> {
    let mut bytes = vec![0; slice.len() as usize];
    slice.copy_to(&mut bytes);
    bytes
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("rank", &self.inner.rank).finish_non_exhaustive()
    }
}
