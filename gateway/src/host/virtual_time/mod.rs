//! Virtual time as a host: tokio's paused clock and an in-memory network, all on one thread.

mod process;

use super::{BoxFuture, Host, LaneStart, LaneThread, Task, TaskPanicked};
use process::{Process, QuicRuntime};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;
use units::{Span, TimeNs};
use wan_sim::VirtualNet;

/// A process of the simulation. Use it under a current-thread runtime with a paused clock. Compute
/// tasks take no time.
#[derive(Debug)]
pub struct VirtualHost {
    net: VirtualNet,
    origin: Instant,
    random: AtomicU64,
    process: Arc<Process>,
}

/// 1 s. Time at the start of the simulation; zero would mean "not yet".
const ORIGIN: TimeNs = TimeNs::from_ns(1_000_000_000);

impl VirtualHost {
    /// Makes a process on `net`, whose clock begins now. All random bytes come from `seed`.
    pub fn new(net: VirtualNet, seed: u64) -> Self {
        let process = Process::new("simulation");
        Self { net, origin: Instant::now(), random: AtomicU64::new(seed), process }
    }

    /// Makes another process on the same network and clock, with a name in logs.
    pub fn beside(&self, name: &str, seed: u64) -> Self {
        let process = Process::new(name);
        Self { net: self.net.clone(), origin: self.origin, random: AtomicU64::new(seed), process }
    }

    /// Stops the process's tasks, as SIGSTOP does; its sockets go on receiving.
    pub fn stop(&self) {
        self.process.stop();
    }

    /// Resumes the process's tasks.
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Kills the process, as SIGKILL does. Its addresses are free at once; its tasks end when the
    /// runtime polls them next.
    pub fn kill(&self) {
        self.process.kill();
    }
}

impl Host for VirtualHost {
    fn now(&self) -> TimeNs {
        let elapsed = Instant::now().duration_since(self.origin).as_nanos();
        ORIGIN + Span::from_ns(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }

    /// Counts from the start of the simulation, which is midnight.
    fn unix_seconds(&self) -> u64 {
        self.now().since(ORIGIN).ns() / 1_000_000_000
    }

    fn sleep_until(&self, at: TimeNs) -> BoxFuture<()> {
        Box::pin(tokio::time::sleep_until(self.origin + at.since(ORIGIN).duration()))
    }

    fn spawn(&self, task: BoxFuture<()>) {
        self.process.spawn(task);
    }

    fn spawn_lane(&self, _thread: LaneThread, start: LaneStart) -> io::Result<()> {
        self.process.spawn(start());
        Ok(())
    }

    fn compute(&self, task: Task) -> BoxFuture<Result<(), TaskPanicked>> {
        Box::pin(async move {
            task();
            Ok(())
        })
    }

    fn run_blocking(&self, task: Task) -> BoxFuture<Result<(), TaskPanicked>> {
        self.compute(task)
    }

    fn bind(
        &self,
        address: SocketAddr,
        _buffer_bytes: usize,
    ) -> io::Result<Arc<dyn quinn::AsyncUdpSocket>> {
        self.process.own(self.net.bind(address).map_err(io::Error::other)?)
    }

    fn mtu_towards(&self, from: IpAddr, _to: SocketAddr) -> Option<u16> {
        self.net.interface_mtu(from)
    }

    fn quic_runtime(&self) -> Arc<dyn quinn::Runtime> {
        Arc::new(QuicRuntime(Arc::clone(&self.process)))
    }

    fn random(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for word in bytes.chunks_exact_mut(8) {
            // splitmix64, whose state is a counter.
            let mut z = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes());
        }
        bytes
    }
}
