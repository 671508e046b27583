//! The whole state of a store, and the entries of the order that change it.

use super::executed_commands::ExecutedCommands;
use super::store_keys::StoreKeys;
use crate::ids::{BootId, GatewayId};
use crate::store::request::{StoreCommand, StoreOutcome, StoreQuery};

/// A command in the order of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreEntry {
    /// The gateway whose trainer gave it.
    pub origin: GatewayId,
    /// The start of that gateway.
    pub boot: BootId,
    /// Its number at that gateway.
    pub number: u64,
    /// The first command for which that gateway still waits.
    pub below: u64,
    /// The command.
    pub command: StoreCommand,
}

/// The state of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreState {
    pub(super) keys: StoreKeys,
    pub(super) executed: ExecutedCommands,
}

impl StoreState {
    /// Carries out the command of an entry, unless it was carried out before.
    pub fn apply(&mut self, entry: &StoreEntry) {
        let StoreEntry { origin, boot, number, below, command } = entry;
        if !self.executed.is_new(*origin, *boot, *number) {
            return;
        }
        self.executed.forget(*origin, *boot, *below);
        let outcome = self.keys.execute(command, self.executed.bytes);
        self.executed.record(*origin, *number, outcome);
    }

    /// Whether a command of a gateway has no outcome yet and still may get one.
    pub fn is_new(&self, origin: GatewayId, boot: BootId, number: u64) -> bool {
        self.executed.is_new(origin, boot, number)
    }

    /// Returns the outcome of a gateway's command, if it was carried out.
    pub fn outcome(&self, origin: GatewayId, boot: BootId, number: u64) -> Option<&StoreOutcome> {
        self.executed.outcome(origin, boot, number)
    }

    /// Whether a query waits for its key number `at`: a value in a Get, a value or a queue in a
    /// Wait. Other queries wait for no key.
    pub fn lacks(&self, query: &StoreQuery, at: usize) -> bool {
        self.keys.lacks(query, at)
    }

    /// Returns the answer to a query, or `None` if the condition does not hold that it waits for.
    pub fn answer(&self, query: &StoreQuery) -> Option<StoreOutcome> {
        self.keys.answer(query)
    }
}
