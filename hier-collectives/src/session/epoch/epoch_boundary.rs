//! The boundary of an epoch: the last collective that its ranks carry out together.

use crate::ids::Sequence;
use crate::post::Failure;

/// The boundary of an epoch under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::session) struct EpochBoundary {
    /// The first collective that is not carried out. Sends are in no order with it, and go on.
    pub from: Sequence,
    /// Whether a step ends before it, so that every rank commits that step.
    pub ends_step: bool,
    /// The failure of collectives from there on.
    pub failure: Failure,
}

impl EpochBoundary {
    /// Whether a collective is carried out: it lies before the boundary, or is a send.
    pub fn admits(&self, sequence: Sequence) -> bool {
        sequence.series().is_some() || sequence < self.from
    }
}
