//! The executor: it polls woken tasks in order, and moves the clock once none can go on.

use super::clock::{Clock, lock};
use super::timer::Sleep;
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
pub struct VirtualTime {
    pub(super) shared: Arc<ExecutorState>,
}

/// Nothing is left that could ever happen, and the future is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stalled at {at_ns} ns: every task waits, and no timer is set")]
pub struct Stalled {
    /// When the last thing happened, in nanoseconds.
    pub at_ns: u64,
}

pub(super) struct ExecutorState {
    pub(super) clock: Arc<Clock>,
    /// Tasks made so far, which also number them from 1.
    tasks_made: AtomicU64,
    tasks: Mutex<BTreeMap<u64, Task>>,
    ready: Arc<Ready>,
}

struct Task {
    /// The future; `None` while it is polled.
    future: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    waker: Waker,
}

/// Tasks that can go on, in the order they were woken.
type Ready = Mutex<VecDeque<Arc<Wakeable>>>;

struct Wakeable {
    task: u64,
    woken: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Wakeable {
    fn wake(self: Arc<Self>) {
        if !self.woken.swap(true, Ordering::Relaxed) {
            let ready = Arc::clone(&self.ready);
            lock(&ready).push_back(self);
        }
    }
}

impl VirtualTime {
    /// A clock at zero, without tasks.
    #[expect(clippy::new_without_default, reason = "each has a time of its own")]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(ExecutorState {
                clock: Arc::new(Clock::new()),
                tasks_made: AtomicU64::new(0),
                tasks: Mutex::default(),
                ready: Arc::default(),
            }),
        }
    }

    /// The time.
    pub fn now(&self) -> TimeNs {
        self.shared.clock.now()
    }

    /// Ends at `at`.
    pub fn sleep_until(&self, at: TimeNs) -> Sleep {
        Sleep::new(Arc::clone(&self.shared.clock), at)
    }

    /// Runs `future` beside the others until it ends, or until [`VirtualTime::run`] does.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.add(Box::pin(future));
    }

    /// Runs all tasks until `main` is done; then drops the others.
    ///
    /// # Errors
    /// [`Stalled`], where `main` waits for what cannot come.
    pub fn run<T>(&self, main: impl Future<Output = T>) -> Result<T, Stalled> {
        let mut main = pin!(main);
        let wakeable = self.wakeable(MAIN);
        let waker = Waker::from(Arc::clone(&wakeable));
        wakeable.wake();
        let done = loop {
            let next = lock(&self.shared.ready).pop_front();
            let Some(next) = next else {
                if self.shared.clock.jump() {
                    continue;
                }
                break Err(Stalled { at_ns: self.now().ns() });
            };
            next.woken.store(false, Ordering::Relaxed);
            if next.task != MAIN {
                self.poll(next.task);
            } else if let Poll::Ready(value) = main.as_mut().poll(&mut Context::from_waker(&waker))
            {
                break Ok(value);
            }
        };
        // They may hold this very clock. Dropping one may wake or begin another.
        loop {
            let tasks = std::mem::take(&mut *lock(&self.shared.tasks));
            if tasks.is_empty() {
                return done;
            }
        }
    }

    fn add(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let task = self.shared.tasks_made.fetch_add(1, Ordering::Relaxed) + 1;
        let waker = Waker::from(self.wakeable(task));
        waker.wake_by_ref();
        lock(&self.shared.tasks).insert(task, Task { future: Some(future), waker });
    }

    fn wakeable(&self, task: u64) -> Arc<Wakeable> {
        let ready = Arc::clone(&self.shared.ready);
        Arc::new(Wakeable { task, woken: AtomicBool::new(false), ready })
    }

    fn poll(&self, id: u64) {
        let mut tasks = lock(&self.shared.tasks);
        // It may have ended, and been woken once more.
        let Some(task) = tasks.get_mut(&id) else { return };
        let Some(mut future) = task.future.take() else { return };
        let waker = task.waker.clone();
        drop(tasks);
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        let mut tasks = lock(&self.shared.tasks);
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

impl Runtime for VirtualTime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(self.sleep_until(self.shared.clock.time_of(at)))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.add(future);
    }

    #[expect(clippy::disallowed_types, reason = "quinn's signature; it is refused")]
    fn wrap_udp_socket(&self, _: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Err(io::Error::other("a real socket has no virtual time: bind one of a VirtualNet"))
    }

    fn now(&self) -> Instant {
        self.shared.clock.instant()
    }
}

impl fmt::Debug for VirtualTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualTime").field("now_ns", &self.now().ns()).finish_non_exhaustive()
    }
}

/// The number of the future that `run` was given.
const MAIN: u64 = 0;
