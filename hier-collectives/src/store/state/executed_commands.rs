//! The commands of each gateway that were carried out, so that none is carried out twice.

use crate::ids::{BootId, GatewayId};
use crate::store::limits::ITEM_OVERHEAD_BYTES;
use crate::store::request::StoreOutcome;
use std::collections::BTreeMap;

/// The latest commands of each gateway, with their outcomes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ExecutedCommands {
    pub origins: BTreeMap<GatewayId, OriginCommands>,
    /// The bytes of all outcomes, which count for the limit of the store.
    pub bytes: u64,
}

/// The latest commands of one start of a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OriginCommands {
    /// The start of the gateway.
    pub boot: BootId,
    /// The first command that the gateway may send again.
    pub below: u64,
    /// The outcomes of commands from `below` on.
    pub outcomes: BTreeMap<u64, StoreOutcome>,
}

/// Returns the bytes that an outcome counts.
pub(super) fn executed_command_bytes(outcome: &StoreOutcome) -> u64 {
    match outcome.bytes() as u64 {
        0 => 0,
        bytes => bytes + ITEM_OVERHEAD_BYTES,
    }
}

impl ExecutedCommands {
    /// Returns the outcome of a command of this start of a gateway; `None` if it was not carried
    /// out, or is forgotten.
    pub fn outcome(&self, origin: GatewayId, boot: BootId, number: u64) -> Option<&StoreOutcome> {
        let known = self.origins.get(&origin).filter(|known| known.boot == boot)?;
        known.outcomes.get(&number)
    }

    /// Whether a command is new: it was not carried out, and its gateway still waits for it.
    pub fn is_new(&self, origin: GatewayId, boot: BootId, number: u64) -> bool {
        let known = self.origins.get(&origin).filter(|known| known.boot == boot);
        known.is_none_or(|known| number >= known.below && !known.outcomes.contains_key(&number))
    }

    /// Forgets the outcomes of commands below `below`, which the gateway has heard, and those of
    /// its earlier starts.
    pub fn forget(&mut self, origin: GatewayId, boot: BootId, below: u64) {
        let new = || OriginCommands { boot, below, outcomes: BTreeMap::new() };
        let known = self.origins.entry(origin).or_insert_with(new);
        let heard = if known.boot == boot {
            known.below = known.below.max(below);
            let kept = known.outcomes.split_off(&known.below);
            std::mem::replace(&mut known.outcomes, kept)
        } else {
            std::mem::replace(known, new()).outcomes
        };
        self.bytes -= heard.values().map(executed_command_bytes).sum::<u64>();
    }

    /// Records the outcome of a command.
    pub fn record(&mut self, origin: GatewayId, number: u64, outcome: StoreOutcome) {
        if let Some(known) = self.origins.get_mut(&origin) {
            self.bytes += executed_command_bytes(&outcome);
            known.outcomes.insert(number, outcome);
        }
    }
}
