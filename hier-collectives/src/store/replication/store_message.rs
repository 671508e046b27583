//! Messages about a store between the gateways of its job.

use super::ballot::{StoreBallot, StoreBallotVersion};
use crate::ids::BootId;
use crate::store::request::StoreCommand;
use crate::store::state::StoreEntry;

/// A message about a store. `to` is the start of the receiver that it is meant for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreMessage {
    /// To the first gateway: the sender holds a state or has requests.
    Present {
        /// The start of the sender.
        boot: BootId,
    },
    /// To the first gateway: carry out this command.
    Command {
        /// The start of the sender.
        boot: BootId,
        /// The command's number at the sender.
        number: u64,
        /// The first command for which the sender still waits, at most 63 before this one.
        below: u64,
        /// The command.
        command: StoreCommand,
    },
    /// From the first gateway: take no state of an earlier ballot, and say which you hold.
    Prepare {
        /// The ballot.
        ballot: StoreBallot,
        /// The number of the question.
        probe: u64,
    },
    /// The answer to `Prepare`.
    Promise {
        /// The ballot of the question.
        asked: StoreBallot,
        /// The number of the question.
        probe: u64,
        /// The start of the sender.
        boot: BootId,
        /// The greatest ballot that the sender knows.
        promised: StoreBallot,
        /// The state that the sender holds.
        held: Option<StoreBallotVersion>,
    },
    /// From the first gateway: the state under its ballot is ready.
    Offer {
        /// The start of the receiver.
        to: BootId,
        /// The version of the state.
        version: StoreBallotVersion,
        /// The version that the same state had under an earlier ballot.
        content: Option<StoreBallotVersion>,
    },
    /// Send a piece of the snapshot of this state.
    Fetch {
        /// The start of the receiver.
        to: BootId,
        /// The version of the state.
        version: StoreBallotVersion,
        /// The offset of the piece, a multiple of 64 KiB.
        offset: u32,
    },
    /// A piece of a snapshot.
    Piece {
        /// The start of the receiver.
        to: BootId,
        /// The version of the state.
        version: StoreBallotVersion,
        /// The offset of the piece.
        offset: u32,
        /// The length of the snapshot.
        total: u32,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// From the first gateway: the next entry of the order.
    Append {
        /// The start of the receiver.
        to: BootId,
        /// The version of the state with the entry.
        version: StoreBallotVersion,
        /// The number of entries that all gateways hold.
        commit: u64,
        /// The entry.
        entry: StoreEntry,
    },
    /// To the first gateway: the sender holds this state.
    Held {
        /// The start of the sender.
        boot: BootId,
        /// The version of the state.
        version: StoreBallotVersion,
    },
    /// From the first gateway: all gateways hold this state.
    Commit {
        /// The start of the receiver.
        to: BootId,
        /// The version of the state.
        version: StoreBallotVersion,
    },
}

/// A message that breaks the rules of the store; always an error of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StoreViolation(pub &'static str);
