//! Operations on blocks: each rank has, or gets, a part of the whole.
//!
//! A tensor of such an operation has slots of different lengths: [`Client::allocate_slots`]. In an
//! all-gather of blocks of `n` elements over `w` ranks the contribution has `n` and the result
//! `n x w`; in a reduce-scatter it is the other way round. Blocks stand in rank order.

use super::client_handle::Client;
use super::collective::{CollectiveSpec, PostError};
use super::operation::Operation;
use super::tensor::Tensor;
use hier_collectives::descriptor::{Counts, Pattern, ReduceOp};
use hier_collectives::ids::RankId;

impl Client {
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

/// Returns the parameters of an operation that moves blocks and reduces nothing.
fn collective_spec_of_blocks(pattern: Pattern) -> CollectiveSpec {
    CollectiveSpec::new(pattern, ReduceOp::Sum)
}
