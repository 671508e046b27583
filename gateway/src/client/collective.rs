//! Posting collectives.
//!
//! In collectives on blocks each rank has, or gets, a part of the whole. A tensor of such a collective
//! has slots of different lengths: [`Client::allocate_slots`]. In an all-gather of blocks of `n` elements
//! over `w` ranks the contribution has `n` and the result `n x w`; in a reduce-scatter it is the other
//! way round. Blocks stand in rank order.

use super::arena_buffer::ArenaFull;
use super::client_handle::Client;
use super::collective_spec::{CollectiveSpec, PostError, PostErrorKind, collective_spec_of_blocks};
use super::connection::call_deadline::CallDeadline;
use super::connection::group_state::OperationReceivers;
use super::connection::lost_client_connection_failure;
use super::connection::request_queue::QueuedContribution;
use super::operation::Operation;
use super::recorder::flight_recorder::RecordedPost;
use super::tensor::Tensor;
use crate::local::protocol::{POSTS_MAX, ProtocolRequest};
use crate::local::remote::pieces::is_contribution_sent_in_pieces;
use crate::local::trainer_listener::Transport;
use crate::memory::mem_slice::MemSlice;
use bytemuck::Pod;
use hier_collectives::descriptor::{
    ArrayShape, Counts, Descriptor, Dtype, Pattern, ReduceOp, SlotElements,
};
use hier_collectives::ids::RankId;
use hier_collectives::post::{Failure, Post};
use hier_collectives::sequence::SendSeries;
use units::Span;

impl Client {
    /// Starts an all-reduce with weight 1 and [`DEFAULT_TIMEOUT`](super::DEFAULT_TIMEOUT).
    ///
    /// # Errors
    /// The errors of [`Client::post`].
    pub async fn all_reduce(&self, tensor: Tensor, op: ReduceOp) -> Result<Operation, PostError> {
        self.post(tensor, CollectiveSpec::new(Pattern::AllReduce, op)).await
    }

    /// Starts an all-reduce. `weight` is this rank's weight in averages, and `timeout` is how long
    /// to wait for room and for the other ranks to post.
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
    /// is ready once their contributions are on their way, whether or not `to` has posted.
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

    /// Waits until every rank has reached its own barrier, at most
    /// [`DEFAULT_TIMEOUT`](super::DEFAULT_TIMEOUT).
    ///
    /// # Errors
    /// The failure of the barrier, also when the arena has no room for two empty slots.
    pub async fn barrier(&self) -> Result<(), Failure> {
        let tensor = self
            .allocate(Dtype::U8, 0)
            .map_err(|full| lost_client_connection_failure(&full.to_string()))?;
        let posted = self.post(tensor, CollectiveSpec::new(Pattern::Barrier, ReduceOp::Sum)).await;
        let mut operation = posted.map_err(PostError::into_failure)?;
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
        let mut operation = posted.map_err(PostError::into_failure)?;
        operation.ready().await?;
        let numbers = bytemuck::pod_collect_to_vec(&operation.result());
        operation.reclaim().await?;
        Ok(numbers)
    }

    /// Starts a collective as [`Client::post_with_counts`] does: the next of its series if it is a
    /// send, else the next of all others. The gateway gets the time that is left when it is posted.
    pub(super) async fn post_collective_in_series(
        &self,
        tensor: Tensor,
        spec: CollectiveSpec,
        counts: Counts,
        series: Option<SendSeries>,
    ) -> Result<Operation, PostError> {
        let CollectiveSpec { pattern, op, weight, timeout } = spec;
        let deadline = CallDeadline::after(timeout);
        let dtype = tensor.dtype;
        let elements = self.elements_of_collective(pattern, &tensor, &counts);
        let (shape, agreed) = (ArrayShape::FLAT, counts.agreed());
        let descriptor =
            Descriptor { op, dtype, elements, layout_hash: 0, shape, pattern, counts: agreed };
        let offsets = [&tensor.contribution, &tensor.result].map(|slot| slot.range().start);
        let number = self.group.number;
        let request = |epoch, sequence, streamed_bytes| {
            let (counts, timeout) = (counts.clone(), deadline.left());
            let post = Post { epoch, sequence, descriptor, counts, weight, timeout };
            let [contribution_offset, result_offset] = offsets;
            ProtocolRequest::Post { post, contribution_offset, result_offset, streamed_bytes }
                .in_group(number)
        };
        let is_streamed = self.connection.handover.transport() == Transport::Streamed;
        let result = tensor.result.memory().clone();
        let refuse =
            |kind: PostErrorKind, tensor| Err(PostError { kind, tensor: Box::new(tensor) });
        let permit = match deadline.wait(self.connection.requests.reserve()).await {
            Some(Ok(permit)) => permit,
            Some(Err(_)) => {
                return refuse(self.connection.lock_state().disconnect_failure().into(), tensor);
            }
            None => return refuse(PostErrorKind::TimedOut, tensor),
        };
        loop {
            let changed = self.connection.changed.notified();
            {
                let mut state = self.connection.lock_state();
                let is_room = state.operations_under_way() < POSTS_MAX;
                let state = state.group_mut(number);
                if let Some(failure) = state.over.clone() {
                    return refuse(failure.into(), tensor);
                }
                if let Some(failure) = state.take_untold_failure().or_else(|| state.epoch_failure())
                {
                    state.forget_uncommitted();
                    return refuse(failure.into(), tensor);
                }
                // The gateway closes the connection of a rank that posts more than its maximum.
                // After a change of epoch an operation of the old one may still have the number,
                // until its failure arrives.
                let (sequence, epoch) = (state.next_in(series), state.epoch);
                if is_room && !state.operations.contains_key(&sequence) {
                    let rank = state.rank_in_world();
                    let is_sent = is_streamed && is_contribution_sent_in_pieces(pattern, rank);
                    let bytes = is_sent.then(|| tensor.contribution.memory().clone());
                    let streamed_bytes = bytes.as_ref().map_or(0, MemSlice::len);
                    let (group, elements) = (number, tensor.elements);
                    let post =
                        RecordedPost { group, epoch, sequence, pattern, op, dtype, elements };
                    let record = self.connection.recorder.record_post(post);
                    let OperationReceivers { ready, done, under_way } =
                        state.begin_operation(sequence, tensor, record);
                    let contribution = bytes.map(|bytes| QueuedContribution { under_way, bytes });
                    let request = request(epoch, sequence, streamed_bytes);
                    permit.send_with_contribution(request, contribution);
                    return Ok(Operation { sequence, result, ready, outcome: None, done });
                }
            }
            if deadline.wait(changed).await.is_none() {
                return refuse(PostErrorKind::TimedOut, tensor);
            }
        }
    }

    /// Returns the number of elements that a descriptor names: those of all blocks together, or of
    /// the buffer. It is 0 for counts by pair of ranks, on which ranks need not agree.
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

    /// Starts an all-gather: every rank's result is the contributions of all ranks, in rank order.
    ///
    /// With [`Counts::ByRank`] each rank contributes as many elements as the list says.
    ///
    /// # Errors
    /// The errors of [`Client::post_with_counts`].
    pub async fn all_gather(&self, tensor: Tensor, counts: Counts) -> Result<Operation, PostError> {
        self.post_with_counts(tensor, collective_spec_of_blocks(Pattern::AllGather), counts).await
    }

    /// Starts a reduce-scatter: each rank's result is its own block of the reduction of all
    /// contributions.
    ///
    /// # Errors
    /// The errors of [`Client::post_with_counts`].
    pub async fn reduce_scatter(
        &self,
        tensor: Tensor,
        op: ReduceOp,
        counts: Counts,
    ) -> Result<Operation, PostError> {
        self.post_with_counts(tensor, CollectiveSpec::new(Pattern::ReduceScatter, op), counts).await
    }

    /// Starts a gather to rank `to`, whose result is the contributions of all ranks, in rank order.
    /// Results of other ranks have no elements.
    ///
    /// # Errors
    /// The errors of [`Client::post_with_counts`].
    pub async fn gather(
        &self,
        tensor: Tensor,
        to: RankId,
        counts: Counts,
    ) -> Result<Operation, PostError> {
        self.post_with_counts(tensor, collective_spec_of_blocks(Pattern::Gather { to }), counts)
            .await
    }

    /// Starts a scatter from rank `from`: each rank's result is its own block of that rank's
    /// contribution. Contributions of other ranks have no elements.
    ///
    /// # Errors
    /// The errors of [`Client::post_with_counts`].
    pub async fn scatter(
        &self,
        tensor: Tensor,
        from: RankId,
        counts: Counts,
    ) -> Result<Operation, PostError> {
        self.post_with_counts(tensor, collective_spec_of_blocks(Pattern::Scatter { from }), counts)
            .await
    }

    /// Starts an all-to-all: block `j` of this rank's contribution becomes block `i` of the result
    /// of rank `j`, where this rank is `i`.
    ///
    /// With [`Counts::ByPair`] each rank gives the elements that it sends to each rank, and those
    /// that it receives from each; ranks that contradict each other fail with both named. Blocks
    /// may be empty.
    ///
    /// # Errors
    /// The errors of [`Client::post_with_counts`].
    pub async fn all_to_all(&self, tensor: Tensor, counts: Counts) -> Result<Operation, PostError> {
        self.post_with_counts(tensor, collective_spec_of_blocks(Pattern::AllToAll), counts).await
    }
}
