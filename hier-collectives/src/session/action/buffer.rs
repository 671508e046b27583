//! The names of memory in actions.

use super::handle::ScratchId;
use crate::ids::{RankId, Sequence};
use std::ops::Range;

/// The name of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Buffer {
    /// The data that a local rank posted.
    Contribution(Sequence, RankId),
    /// The result slot of a local rank.
    Result(Sequence, RankId),
    /// The gateway's own memory. It is created when it is first named.
    Scratch(ScratchId),
}

/// A range of a buffer, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferView {
    /// The buffer.
    pub buffer: Buffer,
    /// The bytes of the buffer.
    pub range: Range<u64>,
}

/// An operand of a reduction.
#[derive(Debug, Clone, PartialEq)]
pub struct ReduceInput {
    /// The bytes of the operand.
    pub view: BufferView,
    /// The weight of the operand in an average.
    pub weight: f64,
}
