//! The parameters of a collective, and why one was not posted.

use super::tensor::Tensor;
use crate::local::protocol::POSTS_MAX;
use hier_collectives::descriptor::{Pattern, ReduceOp};
use hier_collectives::post::{Failure, FailureCode};
use units::Span;

/// 30 min: how long a collective, a commit or an attach by default waits for the other ranks. Other
/// ranks may be writing a checkpoint or restarting. After that time the waiting call fails.
pub const DEFAULT_TIMEOUT: Span = Span::from_secs(30 * 60);

/// Why a collective was not posted. The tensor comes back with it.
#[derive(Debug, thiserror::Error)]
#[error("not posted: {kind}")]
pub struct PostError {
    /// The reason.
    pub kind: PostErrorKind,
    /// The tensor. Its contribution is intact.
    pub tensor: Box<Tensor>,
}

/// The reason why a collective was not posted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PostErrorKind {
    /// The connection to the gateway ended, or the epoch did; or the two ranks of a send have not met.
    #[error("{0}")]
    Failed(#[from] Failure),
    /// There was no room until the timeout. The caller is at fault: earlier collectives of its rank
    /// were under way.
    #[error(
        "{POSTS_MAX} collectives of this rank are under way, or its gateway reads no more requests, \
         until the timeout; nothing was posted, the contribution is intact, and no other rank knows \
         of the call; wait for those under way, and call again"
    )]
    TimedOut,
}

impl PostError {
    /// Returns the reason as the failure of a collective; [`FailureCode::TimedOut`] for
    /// [`PostErrorKind::TimedOut`], with its text. The tensor is dropped.
    pub fn into_failure(self) -> Failure {
        match self.kind {
            PostErrorKind::Failed(failure) => failure,
            kind @ PostErrorKind::TimedOut => Failure::new(FailureCode::TimedOut, kind.to_string()),
        }
    }
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
    /// How long to wait for room and then for the other ranks to post, together;
    /// [`DEFAULT_TIMEOUT`] by default.
    pub timeout: Span,
}

impl CollectiveSpec {
    /// Makes the parameters of a collective with weight 1 and [`DEFAULT_TIMEOUT`].
    pub fn new(pattern: Pattern, op: ReduceOp) -> Self {
        Self { pattern, op, weight: 1.0, timeout: DEFAULT_TIMEOUT }
    }
}

/// Returns the parameters of an operation that moves blocks and reduces nothing.
pub(super) fn collective_spec_of_blocks(pattern: Pattern) -> CollectiveSpec {
    CollectiveSpec::new(pattern, ReduceOp::Sum)
}
