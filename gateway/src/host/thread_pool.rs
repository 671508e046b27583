//! A pool of threads for tasks, which no limit of the system breaks.
//!
//! Any thread calls [`ThreadPool::run`]. The threads take tasks from one queue, oldest first, and
//! live as long as the process. Where the system gives no further thread, those that run do the
//! work; without any, the caller does.

use super::{BoxFuture, Task, TaskPanicked};
use crate::limits::thread_limits::spawn_thread_within_limits;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// A pool of threads. It lies in a static, since its threads never end.
pub(super) struct ThreadPool {
    /// Name of its threads.
    name: &'static str,
    state: Mutex<PoolState>,
    /// Signals a task in the queue.
    arrived: Condvar,
    /// Runs on each thread before its first task.
    on_start: fn(),
}

/// The state that all threads of a pool share.
struct PoolState {
    /// Tasks that wait for a thread. Engine, lanes and listener limit what is under way, and so
    /// their number.
    tasks: VecDeque<Task>,
    threads: usize,
    /// Threads that wait for a task.
    idle: usize,
}

impl ThreadPool {
    /// Makes a pool without threads, which have `name` in the system. Each calls `on_start` first.
    pub const fn new(name: &'static str, on_start: fn()) -> Self {
        let state = PoolState { tasks: VecDeque::new(), threads: 0, idle: 0 };
        Self { name, state: Mutex::new(state), arrived: Condvar::new(), on_start }
    }

    /// Starts threads until the pool has at least `count`.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start_threads(&'static self, count: usize) -> io::Result<()> {
        let mut state = self.lock();
        while state.threads < count {
            self.start_thread(&mut state)?;
        }
        Ok(())
    }

    /// Runs a task on a thread of the pool, which may grow to `threads_max` threads. Where the
    /// system gives the pool no thread at all, the call itself runs the task.
    pub fn run(
        &'static self,
        task: Task,
        threads_max: usize,
    ) -> BoxFuture<Result<(), TaskPanicked>> {
        let (done, is_done) = oneshot::channel();
        let task = Box::new(move || {
            let outcome = catch_unwind(AssertUnwindSafe(task));
            // Whoever asked may be gone.
            let _ = done.send(outcome.is_ok());
        });
        if let Some(task) = self.queue(task, threads_max) {
            task();
        }
        Box::pin(async move { if is_done.await == Ok(true) { Ok(()) } else { Err(TaskPanicked) } })
    }

    /// Queues a task, and starts a thread for it if none is idle and the pool may grow. Returns the
    /// task if the pool has no thread at all.
    fn queue(&'static self, task: Task, threads_max: usize) -> Option<Task> {
        let mut state = self.lock();
        if state.idle <= state.tasks.len() && state.threads < threads_max {
            // A refusal is no error: fewer threads do the same work.
            let _ = self.start_thread(&mut state);
        }
        if state.threads == 0 {
            return Some(task);
        }
        state.tasks.push_back(task);
        self.arrived.notify_one();
        None
    }

    /// Starts a thread, which counts as idle until its first task.
    fn start_thread(&'static self, state: &mut PoolState) -> io::Result<()> {
        spawn_thread_within_limits(self.name, move || self.run_tasks())?;
        state.threads += 1;
        state.idle += 1;
        Ok(())
    }

    /// Runs queued tasks for ever, one after the other, as the body of each thread of the pool.
    fn run_tasks(&self) {
        (self.on_start)();
        loop {
            let mut state = self.lock();
            let task = loop {
                if let Some(task) = state.tasks.pop_front() {
                    break task;
                }
                state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            state.idle -= 1;
            drop(state);
            task();
            self.lock().idle += 1;
        }
    }

    /// Locks the state. No task runs under the lock, so a panic leaves it whole.
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn panic_in_a_task() {
        panic!("for this test");
    }

    #[tokio::test]
    async fn a_task_that_panics_costs_no_thread() {
        static POOL: ThreadPool = ThreadPool::new("test", || {});
        POOL.start_threads(1).expect("a thread");
        let bug = POOL.run(Box::new(panic_in_a_task), 1).await;
        assert_eq!(bug, Err(TaskPanicked));
        let (sender, receiver) = mpsc::channel();
        let task = move || sender.send(std::thread::current().id()).expect("received");
        assert_eq!(POOL.run(Box::new(task), 1).await, Ok(()));
        assert_ne!(receiver.recv().expect("sent"), std::thread::current().id());
        assert_eq!(POOL.lock().threads, 1);
    }

    #[tokio::test]
    async fn without_threads_the_caller_does_the_work() {
        static POOL: ThreadPool = ThreadPool::new("test", || {});
        let (sender, receiver) = mpsc::channel();
        let task = move || sender.send(std::thread::current().id()).expect("received");
        assert_eq!(POOL.run(Box::new(task), 0).await, Ok(()));
        assert_eq!(receiver.recv().expect("sent"), std::thread::current().id());
    }
}
