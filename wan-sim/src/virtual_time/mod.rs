//! An executor whose time is virtual, to the nanosecond.
//!
//! One thread, tasks in the order they were woken, and a clock that jumps to the next timer
//! once no task can go on: a second of the network takes what its packets cost to compute.
//! tokio's paused clock does the same in steps of a millisecond, which distorts short round
//! trips and lets packets arrive in bursts.

mod timer;

pub use timer::Sleep;

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use units::TimeNs;

/// A handle to a virtual clock and its tasks; clones are the same clock. It is a runtime
/// for quinn's endpoints, and [`VirtualNet::under`](crate::VirtualNet::under) makes the
/// network between them.
///
/// Futures that wait for sockets, threads or tokio's timers do not belong here; tokio's
/// channels and locks do.
#[derive(Clone)]
pub struct VirtualTime {
    shared: Arc<Shared>,
}

/// Nothing is left that could ever happen, and the future is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stalled at {at_ns} ns: every task waits, and no timer is set")]
pub struct Stalled {
    /// When the last thing happened, in nanoseconds.
    pub at_ns: u64,
}

struct Shared {
    /// What zero is to whoever wants an [`Instant`]; only differences count.
    origin: Instant,
    clock: Mutex<Clock>,
    tasks: Mutex<BTreeMap<u64, Task>>,
    ready: Arc<Ready>,
}

#[derive(Default)]
struct Clock {
    now: TimeNs,
    /// By time, then by order of setting.
    timers: BTreeMap<(TimeNs, u64), Waker>,
    timers_set: u64,
    tasks_made: u64,
}

struct Task {
    /// Taken out while it is polled.
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
    #[expect(clippy::disallowed_methods, reason = "quinn wants instants: one is made up")]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                origin: Instant::now(),
                clock: Mutex::default(),
                tasks: Mutex::default(),
                ready: Arc::default(),
            }),
        }
    }

    /// The time.
    pub fn now(&self) -> TimeNs {
        lock(&self.shared.clock).now
    }

    /// Ends at `at`.
    pub fn sleep_until(&self, at: TimeNs) -> Sleep {
        Sleep::new(self.clone(), at)
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
                if self.jump() {
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
        let mut clock = lock(&self.shared.clock);
        clock.tasks_made += 1;
        let task = clock.tasks_made;
        drop(clock);
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

    /// Goes to the next timer and wakes all that are due then; false where there is none.
    fn jump(&self) -> bool {
        let mut clock = lock(&self.shared.clock);
        let Some((&(at, _), _)) = clock.timers.first_key_value() else {
            return false;
        };
        clock.now = clock.now.max(at);
        while let Some(entry) = clock.timers.first_entry()
            && entry.key().0 <= at
        {
            entry.remove().wake();
        }
        true
    }

    fn time_of(&self, instant: Instant) -> TimeNs {
        let since = instant.saturating_duration_since(self.shared.origin);
        TimeNs::from_ns(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Runtime for VirtualTime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(self.sleep_until(self.time_of(at)))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.add(future);
    }

    #[expect(clippy::disallowed_types, reason = "quinn's signature; it is refused")]
    fn wrap_udp_socket(&self, _: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Err(io::Error::other("a real socket has no virtual time: bind one of a VirtualNet"))
    }

    fn now(&self) -> Instant {
        self.shared.origin + Duration::from_nanos(Self::now(self).ns())
    }
}

impl AsyncTimer for Sleep {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        let at = self.time().time_of(at);
        self.move_to(at);
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Future::poll(self, cx)
    }
}

impl fmt::Debug for VirtualTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualTime").field("now_ns", &self.now().ns()).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves no half-made change: each is one step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of the future that `run` was given.
const MAIN: u64 = 0;

#[cfg(test)]
mod tests;
