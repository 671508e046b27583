//! Access to mutexes whose data a panic cannot leave half changed.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, also after a panic of another holder. Use it only where every holder changes the
/// data in one step, so that a panic leaves the data whole.
pub fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
