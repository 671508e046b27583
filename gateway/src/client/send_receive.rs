//! Sends and receives: a tensor from one rank to another, matched by a tag.
//!
//! Two ranks that send to each other have a group of their own, which the first send or receive makes.
//! So others neither wait for them nor hear of their failures.

use super::client_handle::Client;
use super::collective_spec::{CollectiveSpec, DEFAULT_TIMEOUT, PostError};
use super::operation::Operation;
use super::tensor::Tensor;
use crate::client::connection::call_deadline::CallDeadline;
use crate::client::connection::group_handle::GroupHandle;
use crate::events::GroupPlace;
use crate::lock::lock_ignoring_poison;
use hier_collectives::descriptor::{Counts, Pattern, ReduceOp};
use hier_collectives::ids::{RankId, Tag};
use hier_collectives::post::{Failure, FailureCode};
use hier_collectives::sequence::SendSeries;
use std::sync::Arc;
use units::Span;

/// The other end of a send or receive, and its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendSpec {
    /// The other rank, by its number in the group.
    pub peer: RankId,
    /// The tag: the first receive with a tag gets the first send with it, and so on.
    pub tag: Tag,
    /// How long to wait for room and for the other rank, together; [`DEFAULT_TIMEOUT`] by default.
    pub timeout: Span,
}

/// The end of a send that a rank posts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendEnd {
    Sender,
    Receiver,
}

impl SendSpec {
    /// Makes the parameters of a send to rank `peer`, or of a receive from it, with
    /// [`DEFAULT_TIMEOUT`].
    pub fn new(peer: RankId, tag: Tag) -> Self {
        Self { peer, tag, timeout: DEFAULT_TIMEOUT }
    }
}

impl Client {
    /// Starts to send the contribution of `tensor` to another rank, which receives it with the same
    /// tag. The operation is ready once that rank has it. The tensor needs no result slot.
    ///
    /// Both ranks give the same dtype and number of elements, or both hear that they differ. Of a tag
    /// the first send meets the first receive, the second the second, and so on, also where one of
    /// them fails. Sends with different tags wait for nothing of each other. A rank may use at most
    /// 1,024 tags to another one, and as many from it; with one more, all that the two have under way
    /// fails.
    ///
    /// After a failure call again; where the epoch of the two ended, the call waits for their next one.
    ///
    /// To look for a message from time to time, post one receive and wait for it again and again. A
    /// receive that fails by its timeout, or is dropped, still has its place: it uses up one send.
    ///
    /// The first send or receive of two ranks takes a round trip more. It makes a group of these
    /// two, which counts among the 4,096 groups of both. Where their gateways have no connection, gateways
    /// on the way pass the data on.
    ///
    /// # Errors
    /// [`PostError`] when there is no such rank, the connection ended, or there was no room or the
    /// gateways did not meet in time. Every other error is the result of [`Operation::ready`].
    pub async fn send(&self, tensor: Tensor, spec: SendSpec) -> Result<Operation, PostError> {
        self.post_send_end(tensor, spec, SendEnd::Sender).await
    }

    /// Starts to receive into the result of `tensor` what another rank sends with the same tag. The
    /// tensor needs no contribution slot. See [`Client::send`].
    ///
    /// # Errors
    /// The errors of [`Client::send`].
    pub async fn receive(&self, tensor: Tensor, spec: SendSpec) -> Result<Operation, PostError> {
        self.post_send_end(tensor, spec, SendEnd::Receiver).await
    }

    /// Posts one end of a send, once the gateways of both ranks have met.
    async fn post_send_end(
        &self,
        tensor: Tensor,
        spec: SendSpec,
        end: SendEnd,
    ) -> Result<Operation, PostError> {
        let SendSpec { peer, tag, timeout } = spec;
        let deadline = CallDeadline::after(timeout);
        let met = deadline.wait(self.send_pair_with(peer)).await;
        let pair = match met.unwrap_or_else(|| Err(self.unmet_send_pair_failure(peer, timeout))) {
            Ok(pair) => pair,
            Err(failure) => {
                return Err(PostError { kind: failure.into(), tensor: Box::new(tensor) });
            }
        };
        let other = RankId(1 - pair.rank().0.min(1));
        let from = if end == SendEnd::Sender { pair.rank() } else { other };
        let (pattern, op) = (Pattern::Send { from }, ReduceOp::Sum);
        let spec = CollectiveSpec { timeout: deadline.left(), ..CollectiveSpec::new(pattern, op) };
        pair.post_collective_in_series(tensor, spec, Counts::Even, Some(SendSeries { from, tag }))
            .await
    }

    /// Returns the group of this rank and rank `peer`, in an epoch that is not known to be over. The
    /// first call makes the group.
    async fn send_pair_with(&self, peer: RankId) -> Result<Self, Failure> {
        let bad = |text: String| Failure::new(FailureCode::BadPost, text);
        let (own, size) = (self.rank(), self.world_size());
        let unknown = || bad(format!("rank {peer} is not one of the {size} ranks of the group"));
        let in_job = self.rank_number(peer.0).ok_or_else(unknown)?;
        if peer == own {
            return Err(bad(format!("rank {own} sends to itself: copy the data instead")));
        }
        let known = lock_ignoring_poison(&self.group.pairs).get(&in_job).cloned();
        let group = match known.filter(|pair| !self.is_send_pair_over(pair)) {
            Some(pair) => pair,
            None => self.make_send_pair(in_job).await?,
        };
        let pair = Self { connection: Arc::clone(&self.connection), group };
        pair.wait_for_epoch().await?;
        Ok(pair)
    }

    /// Makes the failure of a send for which the gateways of both ranks did not meet in time.
    fn unmet_send_pair_failure(&self, peer: RankId, timeout: Span) -> Failure {
        let own = self.rank();
        let text = format!(
            "the gateways of ranks {own} and {peer} did not meet within {timeout}; see \
             `landbridge status`; contribution intact"
        );
        Failure::new(FailureCode::TimedOut, text)
    }

    /// Makes the group of this rank and another one, whose number in the job is `in_job`. Another
    /// call may have made it meanwhile.
    async fn make_send_pair(&self, in_job: RankId) -> Result<Arc<GroupHandle>, Failure> {
        let mut ranks = vec![self.connection.rank, in_job];
        ranks.sort_unstable();
        // One call at a time, since the gateway refuses a group that the rank has made already.
        let _making = self.connection.pair_making.lock().await;
        if let Some(pair) = lock_ignoring_poison(&self.group.pairs).get(&in_job)
            && !self.is_send_pair_over(pair)
        {
            return Ok(Arc::clone(pair));
        }
        lock_ignoring_poison(&self.group.pairs).remove(&in_job);
        let made = self.begin_group(ranks, GroupPlace::of_pair()).await?;
        let pair = Arc::new(made.expect("this rank is one of the two"));
        lock_ignoring_poison(&self.group.pairs).insert(in_job, Arc::clone(&pair));
        Ok(pair)
    }

    /// Returns whether a group of this connection has ended for good, so that nothing can be posted
    /// in it.
    fn is_send_pair_over(&self, group: &GroupHandle) -> bool {
        self.connection.lock_state().group_mut(group.number).over.is_some()
    }
}
