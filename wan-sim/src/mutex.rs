//! Locks that outlive a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, even where a thread panicked while it held the lock.
pub(crate) fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves no half-made change: each is one step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
