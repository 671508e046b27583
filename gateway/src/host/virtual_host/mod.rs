//! Virtual time as a host: tokio's paused clock and an in-memory network, all on one thread.

mod virtual_process;
mod virtual_resolver;

use super::port_share::place_of_shared_datagram;
use super::{BoxFuture, Host, LaneThread, PortShare, Task, TaskPanicked, ThreadStart};
use crate::warnings::Warnings;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;
use units::{Span, TimeNs};
use virtual_process::{VirtualProcess, VirtualProcessRuntime};
use virtual_resolver::{VIRTUAL_RESOLUTION_TIME, VirtualResolver};
use wan_sim::VirtualNet;

/// A process of the simulation. Use it under a current-thread runtime with a paused clock. Compute
/// tasks take no time.
#[derive(Debug)]
pub struct VirtualHost {
    net: VirtualNet,
    origin: Instant,
    random: AtomicU64,
    process: Arc<VirtualProcess>,
    /// The busy part of every thread in parts per million; processes share it.
    thread_load_ppm: Arc<AtomicU64>,
    /// The addresses of host names; processes share them.
    resolver: Arc<VirtualResolver>,
}

/// 1 s: the virtual time at which a simulation starts, since a time of zero stands for "not yet"
/// elsewhere.
const VIRTUAL_TIME_ORIGIN: TimeNs = TimeNs::from_ns(1_000_000_000);

impl VirtualHost {
    /// Makes a process on `net`, whose clock begins now. All random bytes come from `seed`.
    pub fn new(net: VirtualNet, seed: u64) -> Self {
        Self {
            net,
            origin: Instant::now(),
            random: AtomicU64::new(seed),
            process: VirtualProcess::new("simulation"),
            thread_load_ppm: Arc::default(),
            resolver: Arc::default(),
        }
    }

    /// Makes another process on the network and clock of this one; logs call it `name`.
    pub fn new_process(&self, name: &str, seed: u64) -> Self {
        Self {
            net: self.net.clone(),
            origin: self.origin,
            random: AtomicU64::new(seed),
            process: VirtualProcess::new(name),
            thread_load_ppm: Arc::clone(&self.thread_load_ppm),
            resolver: Arc::clone(&self.resolver),
        }
    }

    /// Makes all threads of the simulation seem busy for this part of the time, from 0 to 1. Their
    /// processor time is this part of all time since the start. So a measurement that spans a
    /// change shows too high or too low a load.
    pub fn set_thread_load(&self, load: f64) {
        self.thread_load_ppm.store((load * 1e6) as u64, Ordering::Relaxed);
    }

    /// Gives a host name these addresses, in place of those that it had.
    pub fn set_host_name(&self, name: &str, addresses: Vec<IpAddr>) {
        self.resolver.set_name(name, addresses);
    }

    /// Makes the resolver of host names answer no question, or all again.
    pub fn silence_resolver(&self, silent: bool) {
        self.resolver.silence(silent);
    }

    /// Returns how often the addresses of a host name were asked for.
    pub fn name_questions(&self) -> usize {
        self.resolver.questions()
    }

    /// Returns how often the process has woken so far. All tasks that run at one time of the clock
    /// count once, as they would on one thread.
    pub fn wakeups(&self) -> u64 {
        self.process.wakeups()
    }

    /// Stops all tasks of the process, as SIGSTOP does; its sockets go on receiving.
    pub fn stop(&self) {
        self.process.stop();
    }

    /// Resumes the tasks of a stopped process, as SIGCONT does.
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Kills the process, as SIGKILL does. Its addresses are free immediately; its tasks end when
    /// the runtime polls them next.
    pub fn kill(&self) {
        self.process.kill();
    }
}

impl Host for VirtualHost {
    /// Returns the virtual time, which is 1 s at the start of the simulation.
    fn now(&self) -> TimeNs {
        let elapsed = Instant::now().duration_since(self.origin).as_nanos();
        VIRTUAL_TIME_ORIGIN + Span::from_ns(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }

    /// Returns the whole seconds since the start of the simulation, which counts as midnight.
    fn unix_seconds(&self) -> u64 {
        self.now().since(VIRTUAL_TIME_ORIGIN).ns() / 1_000_000_000
    }

    /// Waits with tokio's paused clock.
    fn sleep_until(&self, at: TimeNs) -> BoxFuture<()> {
        Box::pin(tokio::time::sleep_until(self.origin + at.since(VIRTUAL_TIME_ORIGIN).duration()))
    }

    /// Spawns a task of the simulated process.
    fn spawn(&self, task: BoxFuture<()>) {
        self.process.spawn(task);
    }

    /// Spawns a lane as a task of the simulated process, on the simulation's one thread.
    fn spawn_lane(&self, _thread: LaneThread, start: ThreadStart) -> io::Result<()> {
        self.process.spawn(start());
        Ok(())
    }

    /// Spawns a task of the simulated process, on the simulation's one thread.
    fn spawn_thread(&self, _name: &str, start: ThreadStart) -> io::Result<()> {
        self.process.spawn(start());
        Ok(())
    }

    /// Returns the busy part of the time since the start of the simulation.
    fn thread_time(&self) -> Span {
        let elapsed = self.now().since(VIRTUAL_TIME_ORIGIN).ns();
        Span::from_ns(elapsed / 1_000_000 * self.thread_load_ppm.load(Ordering::Relaxed))
    }

    /// Runs a task when the future is polled; in virtual time it takes no time.
    fn run_compute(&self, task: Task) -> BoxFuture<Result<(), TaskPanicked>> {
        Box::pin(async move {
            task();
            Ok(())
        })
    }

    /// Runs a task when the future is polled; in virtual time it takes no time.
    fn run_blocking(&self, task: Task) -> BoxFuture<Result<(), TaskPanicked>> {
        self.run_compute(task)
    }

    /// Binds a socket of the virtual network, which closes when the process is killed.
    fn bind_udp(
        &self,
        address: SocketAddr,
        share: PortShare,
        _buffer_bytes: usize,
        _warnings: &Warnings,
    ) -> io::Result<Arc<dyn quinn::AsyncUdpSocket>> {
        let socket = match share {
            PortShare::ALONE => self.net.bind(address),
            PortShare { place, sockets } => {
                self.net.bind_shared(address, (place, sockets), place_of_shared_datagram)
            }
        };
        self.process.wrap_socket(socket.map_err(io::Error::other)?)
    }

    /// Returns the MTU of the virtual interface at `from`.
    fn mtu_towards(&self, from: IpAddr, _to: SocketAddr) -> Option<u16> {
        self.net.interface_mtu(from)
    }

    /// Returns the addresses that [`VirtualHost::set_host_name`] has given a name, 20 ms later.
    fn resolve_host_name(&self, name: &str) -> BoxFuture<io::Result<Vec<IpAddr>>> {
        let (resolver, name) = (Arc::clone(&self.resolver), name.to_owned());
        let answered = self.sleep_until(self.now() + VIRTUAL_RESOLUTION_TIME);
        Box::pin(async move {
            answered.await;
            match resolver.resolve(&name) {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        })
    }

    /// Returns a quinn runtime whose tasks belong to the simulated process.
    fn quic_runtime(&self) -> Arc<dyn quinn::Runtime> {
        Arc::new(VirtualProcessRuntime(Arc::clone(&self.process)))
    }

    /// Returns the next 32 pseudo-random bytes that follow from the seed.
    fn random_bytes(&self) -> [u8; 32] {
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
