//! What strangers may cost: a place each while they prove who they are, and a line of log now
//! and then.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio_util::sync::CancellationToken;
use units::{Span, TimeNs};

/// Places for connections that have not proved anything yet. Nobody waits for one: once all
/// are taken, the oldest of whoever has most of them gives way, so that those who come, say
/// who they are and go on are not kept out by those who only come.
#[derive(Debug)]
pub(crate) struct Seats<W> {
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
pub(crate) struct Seat<W: Ord + Clone> {
    seats: Arc<Seats<W>>,
    number: u64,
    lost: CancellationToken,
}

impl<W: Ord + Clone> Seats<W> {
    /// As many places.
    pub fn new(max: usize) -> Arc<Self> {
        let table = Mutex::new(Table { next: 0, taken: BTreeMap::new() });
        Arc::new(Self { max, table })
    }

    /// A place for `who`, now.
    pub fn take(self: &Arc<Self>, who: W) -> Seat<W> {
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
        Seat { seats: Arc::clone(self), number, lost }
    }

    /// Whether half of the places or more are taken.
    pub fn are_half_taken(&self) -> bool {
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

impl<W: Ord + Clone> Seat<W> {
    /// Completes when the place went to somebody else.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }
}

impl<W: Ord + Clone> Drop for Seat<W> {
    fn drop(&mut self) {
        lock(&self.seats.table).taken.remove(&self.number);
    }
}

/// Something that others can make happen at any rate, and that is said once in [`SAID_EVERY`], or
/// so many times.
#[derive(Debug)]
pub(crate) struct Seldom {
    times: u64,
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    /// When the first was, of those that count.
    first: Option<TimeNs>,
    times: u64,
    unsaid: u64,
}

/// How often it is logged.
const SAID_EVERY: Span = Span::from_secs(10);

/// How often it was not said since the last time; for the end of the line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unsaid(u64);

impl Default for Seldom {
    fn default() -> Self {
        Self::said(1)
    }
}

impl Seldom {
    /// Something that is said so many times in [`SAID_EVERY`].
    pub fn said(times: u64) -> Self {
        Self { times, said: Mutex::default() }
    }

    /// Whether to say it now.
    pub fn now(&self, now: TimeNs) -> Option<Unsaid> {
        let mut said = lock(&self.said);
        if said.first.is_none_or(|first| now.since(first) >= SAID_EVERY) {
            (said.first, said.times) = (Some(now), 0);
        }
        if said.times == self.times {
            said.unsaid += 1;
            return None;
        }
        said.times += 1;
        Some(Unsaid(std::mem::take(&mut said.unsaid)))
    }
}

impl fmt::Display for Unsaid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            more => write!(f, " ({more} more such since the last line)"),
        }
    }
}

/// A panic elsewhere leaves these tables whole: each is changed in one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_most_seats_gives_way_oldest_first() {
        let seats = Seats::new(3);
        assert!(!seats.are_half_taken());
        let one = seats.take("quiet");
        let crowd = [seats.take("crowd"), seats.take("crowd")];
        assert!(seats.are_half_taken());
        let next = seats.take("crowd");
        assert!(crowd[0].lost.is_cancelled());
        let other = seats.take("late");
        assert!(crowd[1].lost.is_cancelled() && !next.lost.is_cancelled());
        // Equal shares: the newcomer's own goes, though another is older.
        let again = seats.take("crowd");
        assert!(next.lost.is_cancelled() && !one.lost.is_cancelled());
        drop((one, other, again));
        assert!(!seats.are_half_taken());
    }

    #[test]
    fn a_line_says_how_many_were_not_said() {
        let (seldom, start) = (Seldom::default(), TimeNs::from_ns(5));
        assert_eq!(seldom.now(start), Some(Unsaid(0)));
        assert_eq!(seldom.now(start + Span::from_secs(1)), None);
        assert_eq!(seldom.now(start + Span::from_secs(9)), None);
        let said = seldom.now(start + SAID_EVERY);
        assert_eq!(said, Some(Unsaid(2)));
        assert!(said.is_some_and(|unsaid| unsaid.to_string().contains("2 more")));
        let seldom = Seldom::said(2);
        let told = [0, 1, 2, 9, 10, 11, 12].map(|s| seldom.now(start + Span::from_secs(s)));
        let (yes, no) = (Some(Unsaid(0)), None);
        assert_eq!(told[..4], [yes, Some(Unsaid(0)), no, None]);
        assert_eq!(told[4..], [Some(Unsaid(2)), Some(Unsaid(0)), None]);
    }
}
