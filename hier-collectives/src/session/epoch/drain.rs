//! An orderly shutdown: posted collectives finish, new ones fail, and peers are told.

use crate::ids::Sequence;
use crate::post::{Failure, FailureCode};

/// The collectives that a gateway in shutdown takes no part in any more.
#[derive(Debug)]
pub(in crate::session) struct Closing {
    /// The first collective that some gateway does not post.
    from: Sequence,
    failure: Failure,
}

impl Closing {
    /// The gateway of this name posts nothing from `from` on.
    pub fn new(gateway: &str, from: Sequence) -> Self {
        let text = format!(
            "gateway {gateway} is shutting down and takes no collective from {from} on; \
             contributions intact, post again in the next epoch"
        );
        Self { from, failure: Failure::new(FailureCode::ShuttingDown, text) }
    }

    pub fn from(&self) -> Sequence {
        self.from
    }

    pub fn failure(&self) -> &Failure {
        &self.failure
    }

    /// The failure of a collective that cannot be posted any more.
    pub fn failure_of(&self, sequence: Sequence) -> Option<Failure> {
        (sequence >= self.from).then(|| self.failure.clone())
    }
}

/// The failure with which a drain ends the epoch, when `unfinished` collectives are left.
pub(in crate::session) fn end_of_drain(gateway: &str, unfinished: usize) -> Failure {
    let rest = if unfinished == 0 {
        "what was posted is finished".to_owned()
    } else {
        format!("{unfinished} collectives could not be finished in time")
    };
    let text = format!("gateway {gateway} shut down; {rest}");
    Failure::new(FailureCode::ShuttingDown, text)
}
