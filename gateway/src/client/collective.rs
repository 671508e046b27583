//! Posting collectives.

use super::arena_buffer::ArenaFull;
use super::client_handle::Client;
use super::connection::group_state::OperationReceivers;
use super::connection::lost_client_connection_failure;
use super::operation::Operation;
use super::tensor::Tensor;
use crate::local::protocol::{POSTS_MAX, ProtocolRequest};
use bytemuck::Pod;
use hier_collectives::descriptor::{
    ArrayShape, Counts, Descriptor, Dtype, Pattern, ReduceOp, SlotElements,
};
use hier_collectives::ids::RankId;
use hier_collectives::post::{Failure, Post};
use hier_collectives::sequence::SendSeries;
use units::Span;

/// 30 min: how long a collective, a commit or an attach waits for the other ranks by default. Other
/// ranks may be writing a checkpoint or restarting.
pub const DEFAULT_TIMEOUT: Span = Span::from_secs(30 * 60);

/// Why a collective was not posted. The tensor comes back with it.
#[derive(Debug, thiserror::Error)]
#[error("not posted: {failure}")]
pub struct PostError {
    /// The reason: the connection to the gateway ended, or the epoch did.
    pub failure: Failure,
    /// The tensor. Its contribution is intact.
    pub tensor: Box<Tensor>,
}

/// The parameters of a collective. All ranks give the same pattern and operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CollectiveSpec {
    /// Which ranks contribute, and which get the result.
    pub pattern: Pattern,
    /// How contributions are combined.
    pub op: ReduceOp,
    /// This rank's weight in averages; 1 by default.
    pub weight: f64,
    /// How long to wait for the other ranks to post; [`DEFAULT_TIMEOUT`] by default.
    pub timeout: Span,
}

impl CollectiveSpec {
    /// Makes the parameters of a collective with weight 1 and [`DEFAULT_TIMEOUT`].
    pub fn new(pattern: Pattern, op: ReduceOp) -> Self {
        Self { pattern, op, weight: 1.0, timeout: DEFAULT_TIMEOUT }
    }
}

impl Client {
    /// Starts an all-reduce with weight 1 and [`DEFAULT_TIMEOUT`].
    ///
    /// # Errors
    /// The errors of [`Client::post`].
    pub async fn all_reduce(&self, tensor: Tensor, op: ReduceOp) -> Result<Operation, PostError> {
        self.post(tensor, CollectiveSpec::new(Pattern::AllReduce, op)).await
    }

    /// Starts an all-reduce. `weight` is this rank's weight in averages, and `timeout` is how long
    /// to wait for the other ranks to post.
    ///
    /// # Errors
    /// The errors of [`Client::post`].
    pub async fn all_reduce_with(
        &self,
        tensor: Tensor,
        op: ReduceOp,
        weight: f64,
        timeout: Span,
    ) -> Result<Operation, PostError> {
        self.post(tensor, CollectiveSpec { pattern: Pattern::AllReduce, op, weight, timeout }).await
    }

    /// Starts a reduction to rank `to`, which alone gets the result. On other ranks the operation
    /// is ready once their contributions will reach it.
    ///
    /// # Errors
    /// The errors of [`Client::post`].
    pub async fn reduce(
        &self,
        tensor: Tensor,
        op: ReduceOp,
        to: RankId,
    ) -> Result<Operation, PostError> {
        self.post(tensor, CollectiveSpec::new(Pattern::Reduce { to }, op)).await
    }

    /// Starts a broadcast from rank `from`: every rank's result is that rank's contribution, bit
    /// for bit. Contributions of other ranks are not read.
    ///
    /// # Errors
    /// The errors of [`Client::post`].
    pub async fn broadcast(&self, tensor: Tensor, from: RankId) -> Result<Operation, PostError> {
        self.post(tensor, CollectiveSpec::new(Pattern::Broadcast { from }, ReduceOp::Sum)).await
    }

    /// Waits until every rank has reached its own barrier, at most [`DEFAULT_TIMEOUT`].
    ///
    /// # Errors
    /// The failure of the barrier, also when the arena has no room for two empty slots.
    pub async fn barrier(&self) -> Result<(), Failure> {
        let tensor = self
            .allocate(Dtype::U8, 0)
            .map_err(|full| lost_client_connection_failure(&full.to_string()))?;
        let posted = self.post(tensor, CollectiveSpec::new(Pattern::Barrier, ReduceOp::Sum)).await;
        let mut operation = posted.map_err(|error| error.failure)?;
        operation.ready().await.map(|_| ())
    }

    /// Contributes numbers of 8 bytes to a collective; returns its result, which has `result` numbers.
    ///
    /// # Errors
    /// The arena has no room, the connection ended, or the collective failed.
    pub(super) async fn run_collective_of_numbers<N: Pod, E: From<ArenaFull> + From<Failure>>(
        &self,
        own: &[N],
        result: u64,
        spec: CollectiveSpec,
    ) -> Result<Vec<N>, E> {
        let elements = SlotElements { contribution: own.len() as u64, result };
        let mut tensor = self.allocate_slots(Dtype::I64, elements)?;
        // A gateway that lost the connection before may still send from what lay in these slots.
        if self.disconnect_reason().is_some() {
            return Err(self.connection.lock_state().disconnect_failure().into());
        }
        tensor.write(bytemuck::cast_slice(own));
        let posted = self.post(tensor, spec).await;
        let mut operation = posted.map_err(|error| error.failure)?;
        operation.ready().await?;
        let numbers = bytemuck::pod_collect_to_vec(&operation.result());
        operation.reclaim().await?;
        Ok(numbers)
    }

    /// Starts a collective on the contribution of `tensor`; waits while [`POSTS_MAX`] collectives
    /// of this rank are under way.
    ///
    /// Several collectives may be under way at once; all ranks must post them in the same order.
    /// A call that is dropped before it returns has either posted the collective or not.
    ///
    /// # Errors
    /// [`PostError`] when the connection has ended, or the epoch has to which this rank agreed by
    /// [`Client::agree_to_epoch`]. If ranks disagreed and no collective of this rank failed for it,
    /// its next post returns that failure, once. The tensor comes back, and its contribution is
    /// intact. Every other error is the result of [`Operation::ready`].
    pub async fn post(&self, tensor: Tensor, spec: CollectiveSpec) -> Result<Operation, PostError> {
        self.post_with_counts(tensor, spec, Counts::Even).await
    }

    /// Starts a collective as [`Client::post`] does, with these numbers of elements of its blocks.
    ///
    /// # Errors
    /// The errors of [`Client::post`]. Counts that do not fit the tensor or the job fail the
    /// operation on all ranks.
    pub async fn post_with_counts(
        &self,
        tensor: Tensor,
        spec: CollectiveSpec,
        counts: Counts,
    ) -> Result<Operation, PostError> {
        self.post_collective_in_series(tensor, spec, counts, None).await
    }

    /// Starts a collective as [`Client::post_with_counts`] does: the next of its series if it is a
    /// send, else the next of all others.
    pub(super) async fn post_collective_in_series(
        &self,
        tensor: Tensor,
        spec: CollectiveSpec,
        counts: Counts,
        series: Option<SendSeries>,
    ) -> Result<Operation, PostError> {
        let CollectiveSpec { pattern, op, weight, timeout } = spec;
        let dtype = tensor.dtype;
        let elements = self.elements_of_collective(pattern, &tensor, &counts);
        let (shape, agreed) = (ArrayShape::FLAT, counts.agreed());
        let descriptor =
            Descriptor { op, dtype, elements, layout_hash: 0, shape, pattern, counts: agreed };
        let offsets = [&tensor.contribution, &tensor.result].map(|slot| slot.range().start);
        let number = self.group.number;
        let request = |epoch, sequence| {
            let counts = counts.clone();
            let post = Post { epoch, sequence, descriptor, counts, weight, timeout };
            let [contribution_offset, result_offset] = offsets;
            ProtocolRequest::Post { post, contribution_offset, result_offset }.in_group(number)
        };
        let result = tensor.result.memory().clone();
        let Ok(permit) = self.connection.requests.reserve().await else {
            let failure = self.connection.lock_state().disconnect_failure();
            return Err(PostError { failure, tensor: Box::new(tensor) });
        };
        loop {
            let changed = self.connection.changed.notified();
            {
                let mut state = self.connection.lock_state();
                let is_room = state.operations_under_way() < POSTS_MAX;
                let state = state.group_mut(number);
                if let Some(failure) = state.over.clone() {
                    return Err(PostError { failure, tensor: Box::new(tensor) });
                }
                if let Some(failure) = state.take_untold_failure().or_else(|| state.epoch_failure())
                {
                    return Err(PostError { failure, tensor: Box::new(tensor) });
                }
                // The gateway closes the connection of a rank that posts more than its maximum.
                // After a change of epoch an operation of the old one may still have the number,
                // until its failure arrives.
                let (sequence, epoch) = (state.next_in(series), state.epoch);
                if is_room && !state.operations.contains_key(&sequence) {
                    let OperationReceivers { ready, done } =
                        state.begin_operation(sequence, tensor);
                    permit.send(request(epoch, sequence));
                    return Ok(Operation { sequence, result, ready, outcome: None, done });
                }
            }
            changed.await;
        }
    }

    /// Returns the number of elements that a descriptor names: those of all blocks together, or of
    /// the buffer.
    fn elements_of_collective(&self, pattern: Pattern, tensor: &Tensor, counts: &Counts) -> u64 {
        let (given, got) = (tensor.elements(), tensor.result_elements());
        let ranks = u64::from(self.world_size());
        match (counts, pattern) {
            (Counts::ByRank(list), _) => {
                list.iter().fold(0, |sum: u64, count| sum.saturating_add(*count))
            }
            (Counts::ByPair { .. }, _) => 0,
            (Counts::Even, Pattern::AllGather) => got,
            (Counts::Even, Pattern::Gather { .. }) => given.saturating_mul(ranks),
            (Counts::Even, Pattern::Scatter { .. }) => got.saturating_mul(ranks),
            (Counts::Even, Pattern::Send { from }) if from != self.rank() => got,
            (Counts::Even, _) => given,
        }
    }
}
