//! A collective under way, as the rank that posted it sees it.

use super::connection::group_state::CollectiveResult;
use super::connection::lost_client_connection_failure;
use super::tensor::Tensor;
use crate::memory::mem_slice::MemSlice;
use hier_collectives::ids::Sequence;
use hier_collectives::post::{Failure, Timing};
use tokio::sync::oneshot;

/// A collective under way. The connection's reader completes it.
#[derive(Debug)]
pub struct Operation {
    pub(super) sequence: Sequence,
    pub(super) result: MemSlice,
    pub(super) ready: oneshot::Receiver<CollectiveResult>,
    /// The result of `ready`, once it has arrived.
    pub(super) outcome: Option<CollectiveResult>,
    pub(super) done: oneshot::Receiver<Tensor>,
}

impl Operation {
    /// Returns the collective's sequence number in its job.
    pub fn sequence(&self) -> Sequence {
        self.sequence
    }

    /// Waits until the result is in the result slot; returns the gateway's timestamps.
    ///
    /// # Errors
    /// [`Failure`], whose code says whose fault it is. The contribution is intact, and the result
    /// slot holds no meaningful value.
    pub async fn ready(&mut self) -> Result<Timing, Failure> {
        if self.outcome.is_none() {
            let outcome = (&mut self.ready).await;
            self.outcome = Some(
                outcome.unwrap_or_else(|_| Err(lost_client_connection_failure(CLIENT_DROPPED))),
            );
        }
        self.outcome.clone().unwrap_or_else(|| Err(lost_client_connection_failure(CLIENT_DROPPED)))
    }

    /// Copies the bytes of the result slot; meaningful only after [`Operation::ready`] succeeded.
    pub fn result(&self) -> Vec<u8> {
        self.result.to_vec()
    }

    /// Copies the result slot as `f32` elements; meaningful only after [`Operation::ready`]
    /// succeeded.
    pub fn result_f32(&self) -> Vec<f32> {
        bytemuck::pod_collect_to_vec(&self.result())
    }

    /// Waits until the gateway uses neither slot any more, after success or failure, and returns
    /// the tensor.
    ///
    /// # Errors
    /// [`Failure`]: the client was dropped before.
    pub async fn reclaim(self) -> Result<Tensor, Failure> {
        self.done.await.map_err(|_| lost_client_connection_failure(CLIENT_DROPPED))
    }
}

/// The failure text that an operation's caller gets when the operation cannot complete: its program
/// has dropped the last clone of the client.
const CLIENT_DROPPED: &str = "the client was dropped";
