//! The seam to the system: clock and timers, executors, datagram sockets, compute threads.
//!
//! The engine, the lanes, the pacers and the local plane call nothing else of the system, so they
//! run unchanged in virtual time. [`RealHost`] is the operating system, [`VirtualHost`] a process
//! of a simulation. The trainers' listener is passed to the daemon beside the host.

mod cores;
mod lane_thread;
mod port_share;
mod port_watch;
mod real_host;
mod runtime;
mod thread_pool;
mod virtual_host;

pub use lane_thread::LaneThread;
pub use port_share::PortShare;
pub use port_watch::PortWatch;
pub use real_host::RealHost;
pub use runtime::current_thread_runtime;
pub use virtual_host::VirtualHost;

use crate::warnings::Warnings;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use units::{Span, TimeNs};

/// A boxed future that owns its data and may move between threads.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A function that occupies a core for a while.
pub type Task = Box<dyn FnOnce() + Send>;

/// 64 KiB: work that reads at most so many bytes runs on the thread that wants its result, and
/// longer work on a compute thread. To read 64 KiB takes about 10 us; to wake a compute thread, and
/// to be woken by it, takes as long.
pub const INLINE_COMPUTE_BYTES_MAX: u64 = 1 << 16;

/// A task panicked, which is a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a task panicked")]
pub struct TaskPanicked;

/// Makes the future of a lane or another thread on the executor that will run it.
pub type ThreadStart = Box<dyn FnOnce() -> BoxFuture<()> + Send>;

/// The functions of the system that a gateway uses.
pub trait Host: Send + Sync + 'static {
    /// Returns the monotonic time. On one machine all processes read the same clock.
    fn now(&self) -> TimeNs;

    /// Returns the seconds since 1970-01-01 00:00 UTC. The clock may jump: use it for times of day
    /// only.
    fn unix_seconds(&self) -> u64;

    /// Waits until `at`, or up to 2 ms longer, since timers have a resolution of 1 ms.
    fn sleep_until(&self, at: TimeNs) -> BoxFuture<()>;

    /// Runs a task on the caller's executor.
    fn spawn(&self, task: BoxFuture<()>);

    /// Runs a lane on a thread and executor of its own, or on the caller's executor if it
    /// [is shared with the engine](LaneThread::is_shared_with_engine). Call it on the engine's
    /// executor.
    ///
    /// # Errors
    /// The system gives no thread.
    fn spawn_lane(&self, thread: LaneThread, start: ThreadStart) -> io::Result<()>;

    /// Runs a task on a thread and executor of its own, which has this name.
    ///
    /// # Errors
    /// The system gives no thread.
    fn spawn_thread(&self, name: &str, start: ThreadStart) -> io::Result<()>;

    /// Returns the processor time that the calling thread has used so far.
    fn thread_time(&self) -> Span;

    /// Returns the time for which the cores of the machine have been idle so far, all added; `None`
    /// where the system does not tell.
    fn idle_time(&self) -> Option<Span> {
        None
    }

    /// Runs a task on a compute thread, so that no lane waits for it. A task that panicked has
    /// written only a part of its output.
    fn run_compute(&self, task: Task) -> BoxFuture<Result<(), TaskPanicked>>;

    /// Runs a task that may take seconds on another thread, so that no compute task waits for it.
    fn run_blocking(&self, task: Task) -> BoxFuture<Result<(), TaskPanicked>>;

    /// Binds a datagram socket to `address`, alone or with the others of `share`, with buffers of
    /// `buffer_bytes` each way if the system grants them, and warns if it does not. Call it on the
    /// executor that will use the socket.
    ///
    /// # Errors
    /// The address is in use, or is not one of this machine.
    fn bind_udp(
        &self,
        address: SocketAddr,
        share: PortShare,
        buffer_bytes: usize,
        warnings: &Warnings,
    ) -> io::Result<Arc<dyn quinn::AsyncUdpSocket>>;

    /// Returns what the system hears of closed ports of peers; `None` where it hears nothing.
    fn port_watch(&self) -> Option<&PortWatch> {
        None
    }

    /// Returns the MTU in bytes of this host's interface from `from` towards `to`; `None` if
    /// unknown. The path's MTU may be less.
    fn mtu_towards(&self, from: IpAddr, to: SocketAddr) -> Option<u16>;

    /// Returns the IP addresses of a host name, in the order in which they are to be tried. It blocks no
    /// thread of the caller, and may take long.
    fn resolve_host_name(&self, name: &str) -> BoxFuture<io::Result<Vec<IpAddr>>>;

    /// Returns the runtime that gives timers and tasks to quinn, the QUIC library.
    fn quic_runtime(&self) -> Arc<dyn quinn::Runtime>;

    /// Returns 32 fresh random bytes, which come from a seed in virtual time.
    fn random_bytes(&self) -> [u8; 32];
}
