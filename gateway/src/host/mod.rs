//! The one seam to the system: clock and sleep, executors, datagram sockets, compute.
//!
//! Engine, lanes and limiter call nothing else, so that they run unchanged under virtual
//! time. The trainers' door is handed to the engine beside it.

mod cores;
mod real;
mod virtual_time;

pub use real::RealHost;
pub use virtual_time::VirtualHost;

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use units::TimeNs;

/// A future that owns what it needs and may move between threads.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Work that occupies a core for a while.
pub type Task = Box<dyn FnOnce() + Send>;

/// A job that panicked: a bug of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job panicked")]
pub struct TaskPanicked;

/// A lane's thread, where it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneThread {
    /// Its name in logs.
    pub name: String,
    /// Counted through the lanes of all gateways, so that those of one host differ.
    pub number: usize,
    /// How many its gateway has.
    pub of: usize,
}

/// Makes a lane's future on the executor that will run it.
pub type LaneStart = Box<dyn FnOnce() -> BoxFuture<()> + Send>;

/// What the shell needs of the system.
pub trait Host: Send + Sync + 'static {
    /// The time. On one machine all processes read the same clock.
    fn now(&self) -> TimeNs;

    /// Seconds since 1970-01-01 00:00 UTC. It may jump: for times of day only.
    fn unix_seconds(&self) -> u64;

    /// Completes at `at`, or up to two milliseconds later: the timer's steps are of one.
    fn sleep_until(&self, at: TimeNs) -> BoxFuture<()>;

    /// Runs a task on the caller's executor.
    fn spawn(&self, task: BoxFuture<()>);

    /// Runs a lane: on a thread and executor of its own, or on the caller's.
    ///
    /// # Errors
    /// No thread could be had.
    fn spawn_lane(&self, thread: LaneThread, start: LaneStart) -> io::Result<()>;

    /// Runs a job where it holds up nobody's packets. What a job that panicked should have
    /// written is not there.
    fn compute(&self, job: Task) -> BoxFuture<Result<(), TaskPanicked>>;

    /// Runs a job that may take seconds, where it holds up none that is computed.
    fn run_blocking(&self, job: Task) -> BoxFuture<Result<(), TaskPanicked>>;

    /// A datagram socket on `address`, with buffers of `buffer_bytes` each way if the system
    /// grants them. Called on the executor that will use it.
    ///
    /// # Errors
    /// The address is taken, or not this machine's.
    fn bind(
        &self,
        address: SocketAddr,
        buffer_bytes: usize,
    ) -> io::Result<Arc<dyn quinn::AsyncUdpSocket>>;

    /// The longest IP packet, in bytes, that this host sends from `from` towards `to`; `None` where
    /// it does not know. What is on the way may let less through.
    fn mtu_towards(&self, from: IpAddr, to: SocketAddr) -> Option<u16>;

    /// Timers and tasks for quinn.
    fn quic_runtime(&self) -> Arc<dyn quinn::Runtime>;

    /// Fresh random bytes; under virtual time, from the seed.
    fn random(&self) -> [u8; 32];
}
