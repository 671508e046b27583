//! The place of an arriving segment, or the reason to discard it.

use super::buffer::{BufferView, ReduceInput};
use super::handle::LeaseId;
use crate::descriptor::{Dtype, ReduceOp};

/// The place of an arriving segment.
#[derive(Debug, Clone, PartialEq)]
pub enum ArrivalPlace {
    /// Write `f(local, net)`, or `f(net, local)` when `net_first`, for each arriving range.
    Combine {
        /// The permission.
        lease: LeaseId,
        /// The operation.
        op: ReduceOp,
        /// The element type.
        dtype: Dtype,
        /// The local operand.
        local: ReduceInput,
        /// The weight of the arriving operand.
        net_weight: f64,
        /// Whether the arriving operand comes first.
        net_first: bool,
        /// The destination.
        out: BufferView,
    },
    /// Write the bytes unchanged.
    Land {
        /// The permission.
        lease: LeaseId,
        /// The destination.
        into: BufferView,
    },
    /// Stop the stream.
    Discard(Discard),
}

/// The reason for which a segment is discarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Discard {
    /// The job has no session here.
    Group,
    /// The segment belongs to another epoch.
    Epoch,
    /// The segment is here already.
    Duplicate,
    /// The collective failed.
    Failed,
    /// The segment's descriptor differs from ours; the peer's announcement will say how.
    Disagreement,
}
