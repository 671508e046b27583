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
///
/// Sources may have a `member`, such as all strangers, which are one source of many addresses. Of the
/// source with the most slots the member with the most loses its oldest.
#[derive(Debug)]
pub(crate) struct AdmissionControl<S, M = ()> {
    max: usize,
    slots: Mutex<SlotTable<S, M>>,
}

#[derive(Debug)]
struct SlotTable<S, M> {
    next: u64,
    /// Source and member of each taken slot, and the token that revokes it; lower numbers are older.
    taken: BTreeMap<u64, TakenSlot<S, M>>,
}

#[derive(Debug)]
struct TakenSlot<S, M> {
    source: S,
    member: M,
    revoked: CancellationToken,
}

/// A slot of one connection, freed when dropped.
#[derive(Debug)]
pub(crate) struct AdmissionSlot<S: Ord + Clone, M: Ord + Clone = ()> {
    control: Arc<AdmissionControl<S, M>>,
    number: u64,
    revoked: CancellationToken,
}

impl<S: Ord + Clone> AdmissionControl<S> {
    /// Takes a slot for a connection of `source`, which has no members.
    pub fn take_slot(self: &Arc<Self>, source: S) -> AdmissionSlot<S> {
        self.take_member_slot(source, ())
    }
}

impl<S: Ord + Clone, M: Ord + Clone> AdmissionControl<S, M> {
    /// Makes an admission control with `max` slots, all free.
    pub fn new(max: usize) -> Arc<Self> {
        let slots = Mutex::new(SlotTable { next: 0, taken: BTreeMap::new() });
        Arc::new(Self { max, slots })
    }

    /// Takes a slot for a connection of a `member` of `source`. If none is free, revokes the oldest slot
    /// of the largest member of the source that has the most slots, the new one counted.
    pub fn take_member_slot(self: &Arc<Self>, source: S, member: M) -> AdmissionSlot<S, M> {
        let mut slots = lock_ignoring_poison(&self.slots);
        if slots.taken.len() >= self.max {
            let oldest = oldest_admission_slot_of_largest_source(&slots.taken, (&source, &member));
            if let Some(lost) = oldest.and_then(|number| slots.taken.remove(&number)) {
                lost.revoked.cancel();
            }
        }
        let (number, revoked) = (slots.next, CancellationToken::new());
        slots.next += 1;
        slots.taken.insert(number, TakenSlot { source, member, revoked: revoked.clone() });
        AdmissionSlot { control: Arc::clone(self), number, revoked }
    }

    /// Returns whether at least half of the slots are taken.
    pub fn is_half_full(&self) -> bool {
        2 * lock_ignoring_poison(&self.slots).taken.len() >= self.max
    }
}

/// Returns the number of the oldest slot of the largest member of the source that has the most slots;
/// `None` if no slot is taken. The new connection is counted for the newcomer, which itself loses a
/// slot where it had as many as the others.
fn oldest_admission_slot_of_largest_source<S: Ord, M: Ord>(
    taken: &BTreeMap<u64, TakenSlot<S, M>>,
    (newcomer, new_member): (&S, &M),
) -> Option<u64> {
    let mut sources = BTreeMap::from([(newcomer, 1)]);
    let mut members = BTreeMap::from([((newcomer, new_member), 1)]);
    for TakenSlot { source, member, .. } in taken.values() {
        *sources.entry(source).or_insert(0) += 1;
        *members.entry((source, member)).or_insert(0) += 1;
    }
    let most = sources.values().max().copied()?;
    let is_largest = |source: &S| sources[source] == most;
    let of_largest = members.iter().filter(|((source, _), _)| is_largest(source));
    let most_of_member = of_largest.map(|(_, count)| *count).max()?;
    let loses = |slot: &TakenSlot<S, M>| {
        is_largest(&slot.source) && members[&(&slot.source, &slot.member)] == most_of_member
    };
    taken.iter().find(|(_, slot)| loses(slot)).map(|(number, _)| *number)
}

impl<S: Ord + Clone, M: Ord + Clone> AdmissionSlot<S, M> {
    /// Waits until this slot is revoked, because another connection needed it.
    pub async fn wait_for_revocation(&self) {
        self.revoked.cancelled().await;
    }
}

impl<S: Ord + Clone, M: Ord + Clone> Drop for AdmissionSlot<S, M> {
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

    #[test]
    fn the_largest_member_loses_the_slot_of_its_source() {
        let control = AdmissionControl::new(4);
        let behind_nat = control.take_member_slot("strangers", 1);
        let peer = [control.take_member_slot("peer", 9), control.take_member_slot("peer", 9)];
        let mut flood = control.take_member_slot("strangers", 2);
        for _ in 0..100 {
            let next = control.take_member_slot("strangers", 2);
            assert!(flood.revoked.is_cancelled());
            flood = next;
        }
        assert!(!behind_nat.revoked.is_cancelled());
        assert!(!peer.iter().any(|slot| slot.revoked.is_cancelled()));
        let more = control.take_member_slot("strangers", 3);
        assert!(behind_nat.revoked.is_cancelled(), "equal shares: the oldest of the strangers");
        drop(more);
    }
}
