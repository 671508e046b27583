//! The virtual clock: the time, and the timers that wait for a later one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};
use units::TimeNs;

/// The clock that an executor moves and its timers wait for.
pub(super) struct Clock {
    /// The instant that stands for zero; only differences count.
    origin: Instant,
    timers: Mutex<Timers>,
}

#[derive(Default)]
struct Timers {
    now: TimeNs,
    /// Wakers by time, then by order of registration.
    waiting: BTreeMap<TimerKey, Waker>,
    /// Timers registered so far.
    registered: u64,
}

/// The position of a timer among all: its time, and the order of registration.
pub(super) type TimerKey = (TimeNs, u64);

impl Clock {
    /// A clock at zero, without timers.
    #[expect(clippy::disallowed_methods, reason = "quinn wants instants: one is made up")]
    pub(super) fn new() -> Self {
        Self { origin: Instant::now(), timers: Mutex::default() }
    }

    /// The time.
    pub(super) fn now(&self) -> TimeNs {
        lock(&self.timers).now
    }

    /// The instant that stands for the time.
    pub(super) fn instant(&self) -> Instant {
        self.origin + Duration::from_nanos(self.now().ns())
    }

    /// The time that `instant` stands for.
    pub(super) fn time_of(&self, instant: Instant) -> TimeNs {
        let since = instant.saturating_duration_since(self.origin);
        TimeNs::from_ns(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Has `waker` woken at `at`, under `key` where it was registered before. Returns its key;
    /// `None` when that time has come already.
    pub(super) fn register(
        &self,
        at: TimeNs,
        key: Option<TimerKey>,
        waker: &Waker,
    ) -> Option<TimerKey> {
        let mut timers = lock(&self.timers);
        if timers.now >= at {
            return None;
        }
        let key = key.unwrap_or_else(|| {
            timers.registered += 1;
            (at, timers.registered)
        });
        match timers.waiting.get_mut(&key) {
            Some(known) => known.clone_from(waker),
            None => drop(timers.waiting.insert(key, waker.clone())),
        }
        Some(key)
    }

    /// Removes a timer.
    pub(super) fn unregister(&self, key: &TimerKey) {
        lock(&self.timers).waiting.remove(key);
    }

    /// How many timers wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        lock(&self.timers).waiting.len()
    }

    /// Moves to the next timer and wakes all that are due then; false without a timer.
    pub(super) fn jump(&self) -> bool {
        let mut timers = lock(&self.timers);
        let Some((&(at, _), _)) = timers.waiting.first_key_value() else {
            return false;
        };
        timers.now = timers.now.max(at);
        while let Some(entry) = timers.waiting.first_entry()
            && entry.key().0 <= at
        {
            entry.remove().wake();
        }
        true
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("now_ns", &self.now().ns()).finish_non_exhaustive()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves no half-made change: each is one step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
