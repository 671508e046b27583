//! Another gateway, as the leader of a store knows it.

use super::ballot::StoreBallotVersion;
use crate::ids::BootId;
use std::sync::Arc;

/// Another gateway of the job.
#[derive(Debug)]
pub(super) struct StoreFollower {
    /// The number of the last question to it. Answers to earlier ones may be of an earlier start.
    pub probe: u64,
    /// The start that it named and that the last question is to confirm.
    pub named: Option<BootId>,
    pub phase: FollowerPhase,
}

/// How far a gateway is on the way to the leader's state.
///
/// `Unknown -> Promised -> Offered -> Following`. A new ballot, and another start of the gateway,
/// lead back to `Unknown` and `Promised`.
#[derive(Debug)]
pub(super) enum FollowerPhase {
    /// Nothing is known of its present start.
    Unknown,
    /// It takes no earlier ballot, and holds this state.
    Promised {
        /// Its start.
        boot: BootId,
        /// Its state.
        held: Option<StoreBallotVersion>,
    },
    /// It was offered the leader's state.
    Offered {
        /// Its start.
        boot: BootId,
        /// The number of entries in the offered state.
        index: u64,
        /// The snapshot, unless the gateway has the same state under an earlier ballot.
        snapshot: Option<Arc<Vec<u8>>>,
    },
    /// It holds the leader's state up to an entry.
    Following {
        /// Its start.
        boot: BootId,
        /// The number of entries that it holds.
        held: u64,
    },
}

impl StoreFollower {
    /// Makes the leader's knowledge of a gateway from which nothing has been heard.
    pub fn new() -> Self {
        Self { probe: 0, named: None, phase: FollowerPhase::Unknown }
    }

    /// Returns the boot id of the gateway's present start; `None` before it is known.
    pub fn boot(&self) -> Option<BootId> {
        match &self.phase {
            FollowerPhase::Unknown => None,
            FollowerPhase::Promised { boot, .. }
            | FollowerPhase::Offered { boot, .. }
            | FollowerPhase::Following { boot, .. } => Some(*boot),
        }
    }

    /// Returns the version of the state that the gateway named with its promise. `None` for a
    /// gateway without a state, and unless it has promised and was offered nothing since.
    pub fn promised_state(&self) -> Option<StoreBallotVersion> {
        match &self.phase {
            FollowerPhase::Promised { held, .. } => *held,
            _ => None,
        }
    }

    /// Returns the number of the leader's log entries that the gateway holds; `None` before it
    /// follows.
    pub fn held_index(&self) -> Option<u64> {
        match &self.phase {
            FollowerPhase::Following { held, .. } => Some(*held),
            _ => None,
        }
    }

    /// Returns the index of the last entry that need not be sent to the gateway: the last that it
    /// holds, or that of the state that it is offered. `None` while neither is known.
    pub fn last_unneeded_index(&self) -> Option<u64> {
        match &self.phase {
            FollowerPhase::Following { held, .. } => Some(*held),
            FollowerPhase::Offered { index, .. } => Some(*index),
            _ => None,
        }
    }
}
