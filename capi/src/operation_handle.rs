//! A collective or a commit under way: what threads of the program wait for.
//!
//! The rank's thread ends an operation by its [`OperationHandleEnd`]. The result is copied to plain memory
//! by the thread that waits, never by another: so the program knows when its memory is touched.

use crate::call_error::CallError;
use crate::call_status::CallStatus;
use crate::memory_in_use::MemoryUse;
use crate::raw::ForeignMemory;
use crate::waits::wait_for_change;
use gateway::client::{ArenaBuffer, Operation, StartedCommit};
use gateway::lock::lock_ignoring_poison;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

/// How far an operation is.
#[derive(Debug, Default)]
struct Progress {
    /// The outcome; `None` while it is under way.
    outcome: Option<Result<(), CallError>>,
    /// Whether the gateway uses no memory of it any more.
    is_free: bool,
}

/// The copy of a result that the program wants elsewhere.
#[derive(Debug)]
pub struct Delivery {
    /// Slot of the result.
    pub from: ArenaBuffer,
    /// Memory of the program.
    pub to: ForeignMemory,
    /// Whether the copy overwrites a contribution that lies in the arena. It then waits until the
    /// gateway has sent that.
    pub overwrites: bool,
}

/// The state of an operation, shared by threads of the program and the rank's.
#[derive(Debug, Default)]
struct OperationState {
    progress: Mutex<Progress>,
    changed: Condvar,
}

/// A collective or commit, as the program holds it.
#[derive(Debug)]
pub struct OperationHandle {
    /// Process that posted it.
    pub owner: u32,
    /// Whether the gateway uses memory of the program in place.
    pub lies_in_arena: bool,
    state: Arc<OperationState>,
    /// The copy that is still to be made.
    delivery: Mutex<Option<Delivery>>,
}

/// The other end of an operation. Dropping it ends the operation, with an error if it has none.
#[derive(Debug)]
pub struct OperationHandleEnd {
    state: Arc<OperationState>,
    memory: Option<MemoryUse>,
}

impl OperationHandle {
    /// Makes the two ends of an operation that process `owner` has posted: its handle for the
    /// program, and the end for the rank's thread. The operation uses `memory`; `delivery` is the
    /// copy of its result that is still to be made.
    pub fn new(
        owner: u32,
        memory: Option<MemoryUse>,
        delivery: Option<Delivery>,
        lies_in_arena: bool,
    ) -> (Self, OperationHandleEnd) {
        let state = Arc::<OperationState>::default();
        let end = OperationHandleEnd { state: Arc::clone(&state), memory };
        (Self { owner, lies_in_arena, state, delivery: Mutex::new(delivery) }, end)
    }

    /// Waits until the result is in place, until `deadline` at most. Without a deadline it waits as
    /// long as it takes.
    ///
    /// # Errors
    /// The failure of the operation, or [`CallStatus::WaitTimeout`].
    pub fn wait(&self, deadline: Option<Instant>) -> Result<(), CallError> {
        let mut delivery = lock_ignoring_poison(&self.delivery);
        let overwrites = delivery.as_ref().is_some_and(|copy| copy.overwrites);
        // Others that wait must not stand behind this thread, whose deadline may be later.
        if !self.is_operation_handle_settled(overwrites) {
            drop(delivery);
            self.wait_for(deadline, |progress| is_operation_handle_settled(progress, overwrites))?;
            delivery = lock_ignoring_poison(&self.delivery);
        }
        let outcome = lock_ignoring_poison(&self.state.progress).outcome.clone().unwrap_or(Ok(()));
        // The slot is free again, also after a failure.
        if let Some(copy) = delivery.take()
            && outcome.is_ok()
        {
            copy.to.copy_from(&copy.from);
        }
        outcome
    }

    /// Waits until the gateway uses no memory of the operation any more.
    ///
    /// # Errors
    /// [`CallStatus::WaitTimeout`].
    pub fn wait_free(&self, deadline: Option<Instant>) -> Result<(), CallError> {
        self.wait_for(deadline, |progress| progress.is_free)
    }

    /// Returns whether [`OperationHandle::wait`] would return without waiting; a result is then in
    /// place.
    pub fn test(&self) -> bool {
        let overwrites =
            lock_ignoring_poison(&self.delivery).as_ref().is_some_and(|copy| copy.overwrites);
        let is_operation_handle_settled = self.is_operation_handle_settled(overwrites);
        if is_operation_handle_settled {
            // The failure is for `wait` to tell.
            let _ = self.wait(None);
        }
        is_operation_handle_settled
    }

    /// Returns whether the operation has an outcome that can be told; `overwrites` says that its
    /// result overwrites its contribution.
    fn is_operation_handle_settled(&self, overwrites: bool) -> bool {
        is_operation_handle_settled(&lock_ignoring_poison(&self.state.progress), overwrites)
    }

    /// Waits until `is_over` says so of the operation's progress, until `deadline` at most.
    fn wait_for(
        &self,
        deadline: Option<Instant>,
        is_over: impl Fn(&Progress) -> bool,
    ) -> Result<(), CallError> {
        let mut progress = lock_ignoring_poison(&self.state.progress);
        while !is_over(&progress) {
            progress = self.wait_for_change(progress, deadline)?;
        }
        Ok(())
    }

    /// Waits until the progress of the operation changes once. At `deadline` it fails with
    /// [`CallStatus::WaitTimeout`].
    fn wait_for_change<'a>(
        &'a self,
        progress: MutexGuard<'a, Progress>,
        deadline: Option<Instant>,
    ) -> Result<MutexGuard<'a, Progress>, CallError> {
        wait_for_change(&self.state.changed, progress, deadline).ok_or_else(|| {
            let text = "the operation has not ended in time, and goes on";
            CallError::new(CallStatus::WaitTimeout, text)
        })
    }
}

/// Returns whether an operation has an outcome that can be told. A result that overwrites a
/// contribution in the arena must wait until that is free.
fn is_operation_handle_settled(progress: &Progress, overwrites: bool) -> bool {
    match &progress.outcome {
        Some(Ok(())) => progress.is_free || !overwrites,
        Some(Err(_)) => true,
        None => false,
    }
}

impl OperationHandleEnd {
    /// Awaits the end of a collective, on the rank's thread, and settles its outcome.
    pub async fn follow_collective(self, mut operation: Operation) {
        let outcome = operation.ready().await;
        self.settle(outcome.map(|_| ()).map_err(CallError::from));
        // It fails where the client is gone, and the memory with it.
        drop(operation.reclaim().await);
    }

    /// Awaits the end of a commit, on the rank's thread, and settles its outcome.
    pub async fn follow_commit(self, commit: StartedCommit) {
        let outcome = commit.confirmed().await;
        self.settle(outcome.map_err(CallError::from));
    }

    /// Sets the outcome of the operation, unless it has one, and wakes those who wait for it.
    fn settle(&self, outcome: Result<(), CallError>) {
        lock_ignoring_poison(&self.state.progress).outcome.get_or_insert(outcome);
        self.state.changed.notify_all();
    }
}

impl Drop for OperationHandleEnd {
    /// Ends the operation: its memory may be used by others, and those who wait for it go on.
    fn drop(&mut self) {
        let status =
            if std::thread::panicking() { CallStatus::Internal } else { CallStatus::GatewayLost };
        // Threads that wait for memory must find it free.
        drop(self.memory.take());
        lock_ignoring_poison(&self.state.progress).is_free = true;
        self.settle(Err(CallError::new(status, "the group was closed")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_is_dropped_ends_its_operation() {
        let (handle, end) = OperationHandle::new(1, None, None, false);
        let now = Some(Instant::now());
        assert!(!handle.test());
        assert_eq!(handle.wait(now).map_err(|error| error.status), Err(CallStatus::WaitTimeout));
        assert_eq!(
            handle.wait_free(now).map_err(|error| error.status),
            Err(CallStatus::WaitTimeout)
        );
        drop(end);
        assert!(handle.test());
        assert_eq!(handle.wait(None).map_err(|error| error.status), Err(CallStatus::GatewayLost));
        assert_eq!(handle.wait_free(None), Ok(()));
    }

    #[test]
    fn the_first_outcome_counts() {
        let (handle, end) = OperationHandle::new(1, None, None, false);
        end.settle(Ok(()));
        assert_eq!(handle.wait(None), Ok(()));
        let now = Some(Instant::now());
        assert_eq!(
            handle.wait_free(now).map_err(|error| error.status),
            Err(CallStatus::WaitTimeout)
        );
        drop(end);
        assert_eq!((handle.wait(None), handle.wait_free(None)), (Ok(()), Ok(())));
    }
}
