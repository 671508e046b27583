//! The collective whose plan is shown.

use hier_collectives::descriptor::Dtype;
use hier_collectives::plan::Operation;
use units::ByteCount;

/// An operation on a buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlannedCollective {
    /// The operation, with its root if it has one.
    pub operation: Operation,
    /// Size of the buffer, a whole number of elements.
    pub size: ByteCount,
    /// Type of its elements.
    pub dtype: Dtype,
}
