//! The thread of one rank, which talks to its gateway, and waits for what the thread does.
//!
//! [`Worker`] owns the thread; tasks of the client and of operations run on it.
//! [`Worker::run_on_caller`] runs a future on the thread of a caller instead, for those that need no
//! socket.

use crate::call_error::CallError;
use crate::call_status::CallStatus;
use crate::raw::run_under_signal_mask;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// 1 s: how long a rank that is detached still sends what was posted; posts that are not sent by
/// then are dropped. The gateway reads within milliseconds, unless it is stopped.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// 1 ms: while a rank detaches, the pause between two checks whether tasks still send. The pause is
/// chosen, and short in relation to the 1 s in which they may.
const FLUSH_PAUSE: Duration = Duration::from_millis(1);

/// The thread of a rank. It ends when this is dropped.
pub struct Worker {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread of a rank, which takes no signals, and its runtime for sockets and timers.
    ///
    /// # Errors
    /// The process has no thread or no descriptor left.
    pub fn start() -> Result<Self, CallError> {
        let limit = |error: io::Error| {
            let text = format!("the thread of the rank cannot start: {error}");
            CallError::new(CallStatus::LimitReached, text)
        };
        let runtime = Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(limit)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let run = move || {
            runtime.block_on(async {
                let _ = stopped.await;
                let end = Instant::now() + FLUSH_TIMEOUT;
                while runtime.metrics().num_alive_tasks() > 0 && Instant::now() < end {
                    tokio::time::sleep(FLUSH_PAUSE).await;
                }
            });
        };
        let builder = thread::Builder::new().name("landbridge".to_owned());
        let thread = run_under_signal_mask(|| builder.spawn(run)).map_err(limit)?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Runs a task on the worker's thread, without waiting for it.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(task);
    }

    /// Runs a future on the thread of the caller to its end, which saves it a wake-up of the worker's
    /// where it need not wait. Timers of the future run on the worker's thread. It uses no sockets.
    pub fn run_on_caller<F: Future>(&self, future: F) -> F::Output {
        let _runtime = self.handle.enter();
        block_without_worker(future)
    }

    /// Runs a future on the worker's thread, waits for its end, and returns its output.
    ///
    /// # Errors
    /// The future panicked.
    pub fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, CallError> {
        let output = block_without_worker(self.handle.spawn(future));
        output.map_err(|error| CallError::new(CallStatus::Internal, error.to_string()))
    }
}

impl Drop for Worker {
    /// Stops the thread of a rank that is detached, and waits until it has ended, 1 s at most if no
    /// task blocks it.
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Wakes the thread that runs a future.
struct WorkerlessThread(Thread);

impl Wake for WorkerlessThread {
    /// Lets the thread poll its future again.
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread to its end. It must use neither sockets nor timers.
fn block_without_worker<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(WorkerlessThread(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_future_is_an_error() {
        let worker = Worker::start().expect("starts");
        let error = worker.run(async { panic!("for this test") }).map(|(): ()| ());
        assert_eq!(error.map_err(|error| error.status), Err(CallStatus::Internal));
        assert_eq!(worker.run(async { 7 }), Ok(7), "the thread lives on");
    }

    /// Returns the signals that the calling thread blocks, as bits.
    fn blocked_signals() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("Linux has it");
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("a mask");
        u64::from_str_radix(line.trim(), 16).expect("hexadecimal")
    }

    #[test]
    fn signals_are_left_to_the_threads_of_the_program() {
        let before = blocked_signals();
        let worker = Worker::start().expect("starts");
        let inside = worker.run(async { blocked_signals() }).expect("no panic");
        for signal in [libc::SIGINT, libc::SIGPIPE, libc::SIGCHLD] {
            assert_ne!(inside & 1 << (signal - 1), 0, "signal {signal}");
        }
        assert_eq!(blocked_signals(), before);
    }

    #[test]
    fn timers_of_a_caller_run_on_the_worker() {
        let worker = Worker::start().expect("starts");
        let waiting = async {
            let never = std::future::pending::<()>();
            tokio::time::timeout(Duration::from_millis(1), never).await
        };
        assert!(worker.run_on_caller(waiting).is_err(), "the pending future is given up");
    }

    #[test]
    fn a_worker_ends_although_a_task_never_does() {
        let worker = Worker::start().expect("starts");
        let (sender, receiver) = oneshot::channel::<()>();
        worker.spawn(async move {
            std::future::pending::<()>().await;
            drop(sender);
        });
        drop(worker);
        assert!(block_without_worker(receiver).is_err(), "the task was dropped");
    }
}
