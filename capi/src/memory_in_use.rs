//! The ranges of a group's arena that its gateway may use now.
//!
//! Posting threads wait here while the gateway still uses the memory that they want, or while the
//! arena has no room, until their deadlines. The rank's thread reports the end of each use.

use crate::waits::wait_for_change;
use gateway::lock::lock_ignoring_poison;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

/// Ranges of the arena, in bytes, that one collective uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangesInUse {
    /// Read by the gateway.
    pub contribution: Range<u64>,
    /// Written by the gateway.
    pub result: Range<u64>,
}

impl RangesInUse {
    /// Returns whether one collective writes what the other reads or writes. Both may read.
    fn conflict_with(&self, other: &Self) -> bool {
        ranges_in_use_overlap(&self.result, &other.contribution)
            || ranges_in_use_overlap(&self.result, &other.result)
            || ranges_in_use_overlap(&self.contribution, &other.result)
    }
}

/// Returns whether two ranges of addresses or offsets share a byte.
pub fn ranges_in_use_overlap<T: Ord>(one: &Range<T>, other: &Range<T>) -> bool {
    one.start < other.end && other.start < one.end
}

/// The memory that collectives of one rank use, in all its groups.
#[derive(Debug, Default)]
pub struct MemoryInUse {
    uses: Mutex<Uses>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Uses {
    by_number: BTreeMap<u64, RangesInUse>,
    /// Number of the next use, which is how many there were.
    next: u64,
    /// Number of calls that place their buffers now.
    placing: usize,
    /// Number of those that wait for room.
    waiting: usize,
}

/// A call that places its buffers, from its first buffer to its use of both. Drop its buffers before.
pub struct MemoryInUseWaiter<'a>(&'a MemoryInUse);

/// One collective's use of memory, which ends when this is dropped.
#[derive(Debug)]
pub struct MemoryUse {
    all: Arc<MemoryInUse>,
    number: u64,
}

impl MemoryInUse {
    /// Waits until no use conflicts with `ranges`, and registers them until the returned value is
    /// dropped. Returns `None` if some use still conflicts at `deadline`.
    pub fn begin(
        self: &Arc<Self>,
        ranges: RangesInUse,
        deadline: Option<Instant>,
    ) -> Option<MemoryUse> {
        let mut uses = lock_ignoring_poison(&self.uses);
        while uses.by_number.values().any(|other| other.conflict_with(&ranges)) {
            uses = wait_for_change(&self.ended, uses, deadline)?;
        }
        let number = uses.next;
        uses.next += 1;
        uses.by_number.insert(number, ranges);
        Some(MemoryUse { all: Arc::clone(self), number })
    }

    /// Registers a call that places its buffers, until the returned value is dropped.
    pub fn begin_placing(&self) -> MemoryInUseWaiter<'_> {
        lock_ignoring_poison(&self.uses).placing += 1;
        MemoryInUseWaiter(self)
    }
}

impl MemoryInUseWaiter<'_> {
    /// Calls `attempt`, and again after each use that ends. Returns its last output once `attempt`
    /// succeeds, or nobody can free memory any more: no use goes on, and all other placing calls
    /// wait. Returns `None` if `attempt` has not succeeded by `deadline`.
    pub fn retry<T, E>(
        &self,
        deadline: Option<Instant>,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Option<Result<T, E>> {
        let MemoryInUse { uses, ended } = self.0;
        let mut uses = lock_ignoring_poison(uses);
        loop {
            let outcome = attempt();
            let is_last = uses.by_number.is_empty() && uses.placing == uses.waiting + 1;
            if outcome.is_ok() || is_last {
                return Some(outcome);
            }
            uses.waiting += 1;
            let Some(woken) = wait_for_change(ended, uses, deadline) else {
                lock_ignoring_poison(&self.0.uses).waiting -= 1;
                return None;
            };
            uses = woken;
            uses.waiting -= 1;
        }
    }
}

impl Drop for MemoryInUseWaiter<'_> {
    /// Wakes the calls that wait for room: this one uses its memory now, or has freed it.
    fn drop(&mut self) {
        lock_ignoring_poison(&self.0.uses).placing -= 1;
        self.0.ended.notify_all();
    }
}

impl Drop for MemoryUse {
    /// Ends the use, and wakes the threads that wait until a use ends.
    fn drop(&mut self) {
        lock_ignoring_poison(&self.all.uses).by_number.remove(&self.number);
        self.all.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn ranges(contribution: Range<u64>, result: Range<u64>) -> RangesInUse {
        RangesInUse { contribution, result }
    }

    #[test]
    fn collectives_share_what_both_only_read() {
        let one = ranges(0..64, 64..128);
        assert!(!one.conflict_with(&ranges(0..64, 128..192)), "both read");
        assert!(one.conflict_with(&ranges(128..192, 0..64)), "it writes what is read");
        assert!(one.conflict_with(&ranges(64..128, 128..192)), "it reads what is written");
        assert!(one.conflict_with(&ranges(128..192, 100..101)), "both write");
        assert!(!one.conflict_with(&ranges(0..0, 0..0)), "a barrier has no bytes");
    }

    #[test]
    fn a_use_begins_when_the_one_in_its_way_ends() {
        let all = Arc::new(MemoryInUse::default());
        let first = all.begin(ranges(0..64, 64..128), None).expect("free");
        let beside = all.begin(ranges(0..64, 128..192), None).expect("free");
        let (begun, seen) = mpsc::channel();
        let waiting = Arc::clone(&all);
        let thread = std::thread::spawn(move || {
            let _second = waiting.begin(ranges(192..256, 64..128), None);
            begun.send(()).expect("the test waits");
        });
        drop(beside);
        assert!(seen.try_recv().is_err(), "the first still writes");
        drop(first);
        seen.recv().expect("it began");
        thread.join().expect("no panic");
    }

    #[test]
    fn an_attempt_is_repeated_while_a_use_may_end() {
        let all = Arc::new(MemoryInUse::default());
        let refused = all.begin_placing().retry(None, || Err::<(), _>("full"));
        assert_eq!(refused, Some(Err("full")), "nobody will free memory");
        let mut uses = vec![all.begin(ranges(0..64, 64..128), None)];
        let (tried, tries) = mpsc::channel();
        let waiting = Arc::clone(&all);
        let thread = std::thread::spawn(move || {
            let mut attempts = 0;
            waiting.begin_placing().retry(None, || {
                attempts += 1;
                tried.send(()).expect("the test waits");
                if attempts == 2 { Ok(attempts) } else { Err("full") }
            })
        });
        tries.recv().expect("a first attempt");
        uses.clear();
        assert_eq!(thread.join().expect("no panic"), Some(Ok(2)));
    }

    #[test]
    fn an_attempt_is_repeated_while_another_call_is_placing() {
        let all = Arc::new(MemoryInUse::default());
        let other = all.begin_placing();
        let (tried, tries) = mpsc::channel();
        let waiting = Arc::clone(&all);
        let thread = std::thread::spawn(move || {
            let mut attempts = 0;
            waiting.begin_placing().retry(None, || {
                attempts += 1;
                tried.send(()).expect("the test waits");
                if attempts == 2 { Ok(attempts) } else { Err("full") }
            })
        });
        tries.recv().expect("a first attempt");
        drop(other);
        assert_eq!(thread.join().expect("no panic"), Some(Ok(2)));
    }

    #[test]
    fn of_two_calls_without_room_one_gives_up() {
        let all = Arc::new(MemoryInUse::default());
        let room = Arc::new(Mutex::new(false));
        let threads = [0, 1].map(|_| {
            let (all, room) = (Arc::clone(&all), Arc::clone(&room));
            std::thread::spawn(move || {
                let placing = all.begin_placing();
                let attempt = || if *lock_ignoring_poison(&room) { Ok(()) } else { Err(()) };
                let outcome = placing.retry(None, attempt);
                // The one that gives up frees what it had.
                *lock_ignoring_poison(&room) = true;
                outcome
            })
        });
        let outcomes = threads.map(|thread| thread.join().expect("no panic"));
        assert!(outcomes.contains(&Some(Err(()))), "{outcomes:?}");
    }

    #[test]
    fn waits_for_memory_end_with_their_deadline() {
        let all = Arc::new(MemoryInUse::default());
        let used = all.begin(ranges(0..64, 64..128), None).expect("free");
        let now = Some(Instant::now());
        assert!(all.begin(ranges(0..64, 64..128), now).is_none(), "it is in use");
        assert!(all.begin(ranges(128..192, 192..256), now).is_some(), "nothing to wait for");
        let placing = all.begin_placing();
        assert_eq!(placing.retry(now, || Err::<(), _>("full")), None, "a use may end");
        drop(used);
        let last = placing.retry(None, || Err::<(), _>("full"));
        assert_eq!(last, Some(Err("full")), "the call that gave up waits no more");
    }
}
