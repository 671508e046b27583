//! Admission control for connections that have not authenticated yet.
//!
//! The local plane, the handshakes of a lane and the status server each own one
//! [`AdmissionControl`]. A connection takes a slot before it has proved anything. It gives the slot
//! back once it is authenticated. Callers may be on any thread.

use crate::lock::lock_ignoring_poison;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio_util::sync::CancellationToken;

/// Slots for unauthenticated connections. Taking a slot never waits: when all are taken, the source
/// with the most slots loses its oldest. So sources that authenticate quickly are not kept out by
/// sources that only connect.
#[derive(Debug)]
pub(crate) struct AdmissionControl<S> {
    max: usize,
    slots: Mutex<SlotTable<S>>,
}

#[derive(Debug)]
struct SlotTable<S> {
    next: u64,
    /// The source of each taken slot, and the token that revokes it; lower numbers are older.
    taken: BTreeMap<u64, (S, CancellationToken)>,
}

/// A slot of one connection, freed when dropped.
#[derive(Debug)]
pub(crate) struct AdmissionSlot<S: Ord + Clone> {
    control: Arc<AdmissionControl<S>>,
    number: u64,
    revoked: CancellationToken,
}

impl<S: Ord + Clone> AdmissionControl<S> {
    /// Makes an admission control with `max` slots, all free.
    pub fn new(max: usize) -> Arc<Self> {
        let slots = Mutex::new(SlotTable { next: 0, taken: BTreeMap::new() });
        Arc::new(Self { max, slots })
    }

    /// Takes a slot for a connection of `source`. If none is free, revokes the oldest slot of the
    /// source that has the most, the new one counted.
    pub fn take_slot(self: &Arc<Self>, source: S) -> AdmissionSlot<S> {
        let mut slots = lock_ignoring_poison(&self.slots);
        if slots.taken.len() >= self.max {
            let oldest = oldest_admission_slot_of_largest_source(&slots.taken, &source);
            if let Some((_, revoked)) = oldest.and_then(|number| slots.taken.remove(&number)) {
                revoked.cancel();
            }
        }
        let (number, revoked) = (slots.next, CancellationToken::new());
        slots.next += 1;
        slots.taken.insert(number, (source, revoked.clone()));
        AdmissionSlot { control: Arc::clone(self), number, revoked }
    }

    /// Returns whether at least half of the slots are taken.
    pub fn is_half_full(&self) -> bool {
        2 * lock_ignoring_poison(&self.slots).taken.len() >= self.max
    }
}

/// Returns the number of the oldest slot of the source that has the most slots; `None` if no slot
/// is taken. The new connection is counted for `newcomer`, which itself loses a slot where it had
/// as many as the others.
fn oldest_admission_slot_of_largest_source<S: Ord>(
    taken: &BTreeMap<u64, (S, CancellationToken)>,
    newcomer: &S,
) -> Option<u64> {
    let mut counts = BTreeMap::from([(newcomer, 1)]);
    for (source, _) in taken.values() {
        *counts.entry(source).or_insert(0) += 1;
    }
    let most = counts.values().max().copied()?;
    taken.iter().find(|(_, (source, _))| counts[source] == most).map(|(number, _)| *number)
}

impl<S: Ord + Clone> AdmissionSlot<S> {
    /// Waits until this slot is revoked, because another connection needed it.
    pub async fn wait_for_revocation(&self) {
        self.revoked.cancelled().await;
    }
}

impl<S: Ord + Clone> Drop for AdmissionSlot<S> {
    /// Frees the slot of a connection that has ended or proved itself. A revoked slot is free
    /// already.
    fn drop(&mut self) {
        lock_ignoring_poison(&self.control.slots).taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_source_loses_its_oldest_slot() {
        let control = AdmissionControl::new(3);
        assert!(!control.is_half_full());
        let quiet = control.take_slot("quiet");
        let flood = [control.take_slot("flood"), control.take_slot("flood")];
        assert!(control.is_half_full());
        let next = control.take_slot("flood");
        assert!(flood[0].revoked.is_cancelled());
        let late = control.take_slot("late");
        assert!(flood[1].revoked.is_cancelled() && !next.revoked.is_cancelled());
        // Equal shares: the newcomer's own source loses a slot, though another slot is older.
        let again = control.take_slot("flood");
        assert!(next.revoked.is_cancelled() && !quiet.revoked.is_cancelled());
        drop((quiet, late, again));
        assert!(!control.is_half_full());
    }
}
