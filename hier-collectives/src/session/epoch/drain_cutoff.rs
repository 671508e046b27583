//! The cut that an orderly shutdown makes between collectives that finish and those that fail.

use crate::ids::Sequence;
use crate::post::{Failure, FailureCode};

/// The collectives that a gateway in shutdown takes no part in any more.
#[derive(Debug)]
pub(in crate::session) struct DrainCutoff {
    /// The first collective that some gateway does not post.
    from: Sequence,
    failure: Failure,
}

impl DrainCutoff {
    /// Creates the cutoff of the gateway with this name, whose ranks post nothing from sequence
    /// `from` on.
    pub fn new(gateway: &str, from: Sequence) -> Self {
        let text = format!(
            "gateway {gateway} is shutting down and takes no collective from {from} on; \
             contributions intact; recover the group, which waits for the next epoch, and post again"
        );
        Self { from, failure: Failure::new(FailureCode::ShuttingDown, text) }
    }

    /// Returns the first sequence that the gateway in shutdown takes no part in.
    pub fn first_sequence(&self) -> Sequence {
        self.from
    }

    /// Returns the failure of every collective from the cutoff on.
    pub fn failure(&self) -> &Failure {
        &self.failure
    }

    /// Returns the failure of a collective from the cutoff on; none for earlier ones.
    pub fn failure_for(&self, sequence: Sequence) -> Option<Failure> {
        (sequence >= self.from).then(|| self.failure.clone())
    }
}
