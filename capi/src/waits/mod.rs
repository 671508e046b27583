//! Waits of the program's threads that end with a deadline, and the turn to post.
//!
//! Calls that post wait here for other threads of the program; [`crate::memory_in_use`] has their waits
//! for memory. No deadline means a wait without an end.

use crate::call_error::CallError;
use crate::call_status::CallStatus;
use gateway::lock::lock_ignoring_poison;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use units::Span;

/// Returns the deadline of a call that begins now and may take `timeout`; `None` if it lies beyond all
/// times.
pub fn deadline_after(timeout: Span) -> Option<Instant> {
    Instant::now().checked_add(timeout.duration())
}

/// Returns the time from now until `deadline`, zero if it has passed; without a deadline the longest
/// span, which gateways take as a timeout.
pub fn time_left(deadline: Option<Instant>) -> Span {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let ns = left.map_or(u64::MAX, |left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
    Span::from_ns(ns)
}

/// Waits for `changed` once, until `deadline` at most. Returns `None` if the deadline had passed before.
pub fn wait_for_change<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    deadline: Option<Instant>,
) -> Option<MutexGuard<'a, T>> {
    let Some(deadline) = deadline else {
        return Some(changed.wait(guard).unwrap_or_else(PoisonError::into_inner));
    };
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return None;
    }
    Some(changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0)
}

/// Makes the error of a call that found no room to post until its deadline, because of `obstacle`.
pub fn post_timed_out(obstacle: &str) -> CallError {
    let text = format!(
        "{obstacle} until the timeout; nothing was posted, the contribution is intact, and no other \
         rank knows of the call; wait for operations under way, and call again"
    );
    CallError::new(CallStatus::PostTimedOut, text)
}

/// The turn to post in a job, which one thread has at a time.
#[derive(Debug, Default)]
pub struct PostingTurn {
    is_taken: Mutex<bool>,
    changed: Condvar,
}

/// A thread's turn to post, which ends when this is dropped.
#[derive(Debug)]
pub struct TakenPostingTurn<'a>(&'a PostingTurn);

impl PostingTurn {
    /// Waits until no other thread has the turn, and takes it.
    ///
    /// # Errors
    /// Another thread has it until `deadline`.
    pub fn take(&self, deadline: Option<Instant>) -> Result<TakenPostingTurn<'_>, CallError> {
        let mut is_taken = lock_ignoring_poison(&self.is_taken);
        while *is_taken {
            is_taken = wait_for_change(&self.changed, is_taken, deadline).ok_or_else(|| {
                post_timed_out("another thread of the program posts in this group, or recovers,")
            })?;
        }
        *is_taken = true;
        Ok(TakenPostingTurn(self))
    }
}

impl Drop for TakenPostingTurn<'_> {
    /// Ends the turn, and wakes a thread that waits for it.
    fn drop(&mut self) {
        *lock_ignoring_poison(&self.0.is_taken) = false;
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_for_one_thread_until_it_ends() {
        let turn = PostingTurn::default();
        let first = turn.take(None).expect("free");
        let error = turn.take(Some(Instant::now())).expect_err("taken");
        assert_eq!(error.status, CallStatus::PostTimedOut);
        assert!(error.text.contains("nothing was posted"), "{}", error.text);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| turn.take(None).map(drop));
            drop(first);
            assert_eq!(waiting.join().expect("no panic"), Ok(()));
        });
    }

    #[test]
    fn no_deadline_is_the_longest_time() {
        assert_eq!(time_left(None).ns(), u64::MAX);
        assert_eq!(time_left(Some(Instant::now())).ns(), 0);
        assert!(time_left(deadline_after(Span::from_secs(9))) > Span::from_secs(8));
    }
}
