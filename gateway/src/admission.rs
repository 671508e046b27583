//! What strangers may cost: a place each while they prove who they are, and a line of log now
//! and then.

use crate::sync::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio_util::sync::CancellationToken;

/// Places for connections that have not proved anything yet. Nobody waits for one: once all
/// are taken, the oldest of whoever has most of them gives way, so that those who come, say
/// who they are and go on are not kept out by those who only come.
#[derive(Debug)]
pub(crate) struct AdmissionControl<W> {
    max: usize,
    table: Mutex<Table<W>>,
}

#[derive(Debug)]
struct Table<W> {
    next: u64,
    taken: BTreeMap<u64, (W, CancellationToken)>,
}

/// A place, given back when dropped.
#[derive(Debug)]
pub(crate) struct AdmissionSlot<W: Ord + Clone> {
    seats: Arc<AdmissionControl<W>>,
    number: u64,
    lost: CancellationToken,
}

impl<W: Ord + Clone> AdmissionControl<W> {
    /// As many places.
    pub fn new(max: usize) -> Arc<Self> {
        let table = Mutex::new(Table { next: 0, taken: BTreeMap::new() });
        Arc::new(Self { max, table })
    }

    /// A place for `who`, now.
    pub fn take(self: &Arc<Self>, who: W) -> AdmissionSlot<W> {
        let mut table = lock(&self.table);
        if table.taken.len() >= self.max {
            let oldest = oldest_of_the_most(&table.taken, &who);
            if let Some((_, lost)) = oldest.and_then(|number| table.taken.remove(&number)) {
                lost.cancel();
            }
        }
        let (number, lost) = (table.next, CancellationToken::new());
        table.next += 1;
        table.taken.insert(number, (who, lost.clone()));
        AdmissionSlot { seats: Arc::clone(self), number, lost }
    }

    /// Whether half of the places or more are taken.
    pub fn is_half_full(&self) -> bool {
        2 * lock(&self.table).taken.len() >= self.max
    }
}

/// The newcomer counts, so that with equal shares it is its own that gives way.
fn oldest_of_the_most<W: Ord>(
    taken: &BTreeMap<u64, (W, CancellationToken)>,
    newcomer: &W,
) -> Option<u64> {
    let mut counts = BTreeMap::from([(newcomer, 1)]);
    for (who, _) in taken.values() {
        *counts.entry(who).or_insert(0) += 1;
    }
    let most = counts.values().max().copied()?;
    taken.iter().find(|(_, (who, _))| counts[who] == most).map(|(number, _)| *number)
}

impl<W: Ord + Clone> AdmissionSlot<W> {
    /// Completes when the place went to somebody else.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }
}

impl<W: Ord + Clone> Drop for AdmissionSlot<W> {
    fn drop(&mut self) {
        lock(&self.seats.table).taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_most_seats_gives_way_oldest_first() {
        let seats = AdmissionControl::new(3);
        assert!(!seats.is_half_full());
        let one = seats.take("quiet");
        let crowd = [seats.take("crowd"), seats.take("crowd")];
        assert!(seats.is_half_full());
        let next = seats.take("crowd");
        assert!(crowd[0].lost.is_cancelled());
        let other = seats.take("late");
        assert!(crowd[1].lost.is_cancelled() && !next.lost.is_cancelled());
        // Equal shares: the newcomer's own goes, though another is older.
        let again = seats.take("crowd");
        assert!(next.lost.is_cancelled() && !one.lost.is_cancelled());
        drop((one, other, again));
        assert!(!seats.is_half_full());
    }
}
