//! The virtual clock: the time, and the timers that wait for a later one.

use crate::mutex::lock_mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::task::Waker;
use std::time::{Duration, Instant};
use units::TimeNs;

/// The clock that an executor moves and its timers wait for.
pub(super) struct VirtualClock {
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

impl VirtualClock {
    /// Makes a clock at zero, without timers.
    #[expect(clippy::disallowed_methods, reason = "quinn wants instants: one is made up")]
    pub(super) fn new() -> Self {
        Self { origin: Instant::now(), timers: Mutex::default() }
    }

    /// Returns the virtual time.
    pub(super) fn now(&self) -> TimeNs {
        lock_mutex(&self.timers).now
    }

    /// Returns the instant that stands for the virtual time, for quinn.
    pub(super) fn instant(&self) -> Instant {
        self.origin + Duration::from_nanos(self.now().ns())
    }

    /// Returns the virtual time that `instant` stands for; zero for an earlier instant.
    pub(super) fn time_of(&self, instant: Instant) -> TimeNs {
        let since = instant.saturating_duration_since(self.origin);
        TimeNs::from_ns(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Registers `waker` to be woken at `at`, under `key` where the timer was registered before.
    /// Returns the key; `None` when that time has come already.
    pub(super) fn register_timer(
        &self,
        at: TimeNs,
        key: Option<TimerKey>,
        waker: &Waker,
    ) -> Option<TimerKey> {
        let mut timers = lock_mutex(&self.timers);
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

    /// Removes the timer with this key, if there is one.
    pub(super) fn unregister_timer(&self, key: &TimerKey) {
        lock_mutex(&self.timers).waiting.remove(key);
    }

    /// Returns how many timers wait.
    #[cfg(test)]
    pub(super) fn waiting_timers(&self) -> usize {
        lock_mutex(&self.timers).waiting.len()
    }

    /// Moves the time to the next timer and wakes all timers due then. Returns false without a
    /// timer.
    pub(super) fn jump_to_next_timer(&self) -> bool {
        let mut timers = lock_mutex(&self.timers);
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

impl fmt::Debug for VirtualClock {
    /// Prints the present time in nanoseconds for logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualClock").field("now_ns", &self.now().ns()).finish_non_exhaustive()
    }
}
