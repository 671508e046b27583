//! The parameters of a collective, and why one was not posted.

use super::tensor::Tensor;
use hier_collectives::descriptor::{Pattern, ReduceOp};
use hier_collectives::post::Failure;
use units::Span;

/// 30 min: how long a collective, a commit or an attach by default waits for the other ranks. Other
/// ranks may be writing a checkpoint or restarting. After that time the waiting call fails.
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

/// Returns the parameters of an operation that moves blocks and reduces nothing.
pub(super) fn collective_spec_of_blocks(pattern: Pattern) -> CollectiveSpec {
    CollectiveSpec::new(pattern, ReduceOp::Sum)
}
