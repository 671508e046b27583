//! The executor: it polls woken tasks in order, and moves the clock when none can go on.

use super::sleep_timer::SleepTimer;
use super::virtual_clock::VirtualClock;
use crate::mutex::lock_mutex;
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;
use units::TimeNs;

/// A handle to a virtual clock and its tasks; clones are the same clock. It is a runtime
/// for quinn's endpoints, and [`VirtualNet::under`](crate::VirtualNet::under) makes the
/// network between them.
///
/// Futures that wait for sockets, threads or tokio's timers do not belong here; tokio's
/// channels and locks do.
#[derive(Clone)]
pub struct VirtualExecutor {
    pub(super) shared: Arc<ExecutorState>,
}

/// Nothing is left that could ever happen, and the future is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stalled at {at_ns} ns: every task waits, and no timer is set")]
pub struct ExecutorStalled {
    /// When the last thing happened, in nanoseconds.
    pub at_ns: u64,
}

/// The state of an executor, which its handles share.
pub(super) struct ExecutorState {
    pub(super) clock: Arc<VirtualClock>,
    /// Tasks made so far, which also number them from 1.
    tasks_made: AtomicU64,
    tasks: Mutex<BTreeMap<u64, Task>>,
    ready: Arc<Ready>,
}

/// A task of the executor, except the main one.
struct Task {
    /// The future; `None` while it is polled.
    future: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    waker: Waker,
}

/// Tasks that can go on, in the order they were woken.
type Ready = Mutex<VecDeque<Arc<ExecutorWaker>>>;

/// The wake-up handle of one task.
struct ExecutorWaker {
    task: u64,
    woken: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for ExecutorWaker {
    /// Puts the task at the end of the ready tasks, unless it is among them.
    fn wake(self: Arc<Self>) {
        if !self.woken.swap(true, Ordering::Relaxed) {
            let ready = Arc::clone(&self.ready);
            lock_mutex(&ready).push_back(self);
        }
    }
}

impl VirtualExecutor {
    /// Makes a clock at zero, without tasks.
    #[expect(clippy::new_without_default, reason = "each has a time of its own")]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(ExecutorState {
                clock: Arc::new(VirtualClock::new()),
                tasks_made: AtomicU64::new(0),
                tasks: Mutex::default(),
                ready: Arc::default(),
            }),
        }
    }

    /// Returns the virtual time.
    pub fn now(&self) -> TimeNs {
        self.shared.clock.now()
    }

    /// Returns a future that ends at the virtual time `at`.
    pub fn sleep_until(&self, at: TimeNs) -> SleepTimer {
        SleepTimer::new(Arc::clone(&self.shared.clock), at)
    }

    /// Starts a task that runs `future` until the end of `future` or of [`VirtualExecutor::run`].
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.add_task(Box::pin(future));
    }

    /// Runs all tasks until `main` is done; then drops the others.
    ///
    /// # Errors
    /// [`ExecutorStalled`], where `main` waits for what cannot come.
    pub fn run<T>(&self, main: impl Future<Output = T>) -> Result<T, ExecutorStalled> {
        let mut main = pin!(main);
        let wakeable = self.new_wakeable(MAIN_TASK);
        let waker = Waker::from(Arc::clone(&wakeable));
        wakeable.wake();
        let done = loop {
            let next = lock_mutex(&self.shared.ready).pop_front();
            let Some(next) = next else {
                if self.shared.clock.jump_to_next_timer() {
                    continue;
                }
                break Err(ExecutorStalled { at_ns: self.now().ns() });
            };
            next.woken.store(false, Ordering::Relaxed);
            if next.task != MAIN_TASK {
                self.poll_task(next.task);
            } else if let Poll::Ready(value) = main.as_mut().poll(&mut Context::from_waker(&waker))
            {
                break Ok(value);
            }
        };
        // Tasks may hold this very clock. Dropping a task may wake or begin another.
        loop {
            let tasks = std::mem::take(&mut *lock_mutex(&self.shared.tasks));
            if tasks.is_empty() {
                return done;
            }
        }
    }

    /// Adds a task for `future` and wakes it.
    fn add_task(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let task = self.shared.tasks_made.fetch_add(1, Ordering::Relaxed) + 1;
        let waker = Waker::from(self.new_wakeable(task));
        waker.wake_by_ref();
        lock_mutex(&self.shared.tasks).insert(task, Task { future: Some(future), waker });
    }

    /// Makes the wake-up handle of the task with number `task`.
    fn new_wakeable(&self, task: u64) -> Arc<ExecutorWaker> {
        let ready = Arc::clone(&self.shared.ready);
        Arc::new(ExecutorWaker { task, woken: AtomicBool::new(false), ready })
    }

    /// Polls the task with number `id` once, and removes it when it is done.
    fn poll_task(&self, id: u64) {
        let mut tasks = lock_mutex(&self.shared.tasks);
        // It may have ended, and been woken once more.
        let Some(task) = tasks.get_mut(&id) else { return };
        let Some(mut future) = task.future.take() else { return };
        let waker = task.waker.clone();
        drop(tasks);
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        let mut tasks = lock_mutex(&self.shared.tasks);
        match polled {
            Poll::Ready(()) => drop(tasks.remove(&id)),
            Poll::Pending => {
                if let Some(task) = tasks.get_mut(&id) {
                    task.future = Some(future);
                }
            }
        }
    }
}

impl Runtime for VirtualExecutor {
    /// Returns a timer for quinn that ends at the instant `at`.
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(self.sleep_until(self.shared.clock.time_of(at)))
    }

    /// Starts a task for quinn.
    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.add_task(future);
    }

    /// Refuses a real socket, which has no virtual time.
    #[expect(clippy::disallowed_types, reason = "quinn's signature; it is refused")]
    fn wrap_udp_socket(&self, _: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Err(io::Error::other("a real socket has no virtual time: bind one of a VirtualNet"))
    }

    /// Returns the instant that stands for the virtual time, for quinn.
    fn now(&self) -> Instant {
        self.shared.clock.instant()
    }
}

impl fmt::Debug for VirtualExecutor {
    /// Prints the present time in nanoseconds for logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualExecutor").field("now_ns", &self.now().ns()).finish_non_exhaustive()
    }
}

/// 0: the number of the task that runs the future given to [`VirtualExecutor::run`].
const MAIN_TASK: u64 = 0;
