//! The operating system as a host: its clock, threads and sockets.

use super::cores::{AllowedCores, CorePin};
use super::port_watch::drop_port_probes;
use super::runtime::HandedOverRuntime;
use super::thread_pool::ThreadPool;
use super::{BoxFuture, Host, LaneThread, PortShare, PortWatch, Task, TaskPanicked, ThreadStart};
use crate::limits::thread_limits::spawn_thread_within_limits;
use crate::warn_if_due;
use crate::warnings::{WarningCause, Warnings};
use quinn::Runtime;
use ring::rand::{SecureRandom, SystemRandom};
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::num::NonZero;
use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;
use units::{ByteCount, Span, TimeNs};

/// The operating system's clock, threads and sockets. Each lane but a gateway's first gets a thread,
/// and a core if there are enough of them.
#[derive(Debug, Default)]
pub struct RealHost;

impl RealHost {
    /// Starts all compute threads and one thread for blocking tasks; lanes have threads of their
    /// own. Without this call they start with the first tasks.
    ///
    /// # Errors
    /// The system gives too few threads; the text names the limit.
    pub fn start_threads(&self) -> io::Result<()> {
        read_real_host_cores();
        COMPUTE_THREADS.start_threads(*CORES)?;
        BLOCKING_THREADS.start_threads(1)
    }
}

impl Host for RealHost {
    /// Reads the system's monotonic clock.
    fn now(&self) -> TimeNs {
        TimeNs::from_ns(real_host_clock_nanoseconds(rustix::time::ClockId::Monotonic))
    }

    /// Reads the system's real-time clock.
    fn unix_seconds(&self) -> u64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        u64::try_from(time.tv_sec).unwrap_or(0)
    }

    /// Waits with tokio's timer, which has steps of 1 ms.
    fn sleep_until(&self, at: TimeNs) -> BoxFuture<()> {
        Box::pin(tokio::time::sleep(at.since(self.now()).duration()))
    }

    /// Spawns a task on the calling thread's tokio runtime.
    fn spawn(&self, task: BoxFuture<()>) {
        tokio::spawn(task);
    }

    /// Starts a thread with a runtime of its own, and pins it to a core if there are enough. The lane
    /// that is shared with the engine becomes a task of the calling thread's runtime.
    fn spawn_lane(&self, thread: LaneThread, start: ThreadStart) -> io::Result<()> {
        read_real_host_cores();
        if thread.is_shared_with_engine() {
            self.spawn(start());
            return Ok(());
        }
        let pin = CorePin::choose_for_lane(&thread);
        let runtime = HandedOverRuntime::new()?;
        let name = thread.name.clone();
        let body = move || {
            if let Some(pin) = pin {
                pin.pin_this_thread(&thread.name);
            }
            runtime.block_on(async move { start().await });
        };
        spawn_thread_within_limits(&name, body).map(|_| ())
    }

    /// Starts a thread with a runtime of its own, on all cores of the process.
    fn spawn_thread(&self, name: &str, start: ThreadStart) -> io::Result<()> {
        read_real_host_cores();
        let runtime = HandedOverRuntime::new()?;
        let body = move || {
            use_allowed_real_host_cores();
            runtime.block_on(async move { start().await });
        };
        spawn_thread_within_limits(name, body).map(|_| ())
    }

    /// Reads the processor time that the calling thread has used so far.
    fn thread_time(&self) -> Span {
        Span::from_ns(real_host_clock_nanoseconds(rustix::time::ClockId::ThreadCPUTime))
    }

    /// Reads the idle time of all cores, which the kernel counts in hundredths of a second.
    fn idle_time(&self) -> Option<Span> {
        parse_idle_time(&std::fs::read_to_string("/proc/uptime").ok()?)
    }

    /// Runs a task on one of the threads `COMPUTE_THREADS`.
    fn run_compute(&self, task: Task) -> BoxFuture<Result<(), TaskPanicked>> {
        COMPUTE_THREADS.run(task, *CORES)
    }

    /// Runs a task on one of the threads `BLOCKING_THREADS`.
    fn run_blocking(&self, task: Task) -> BoxFuture<Result<(), TaskPanicked>> {
        BLOCKING_THREADS.run(task, BLOCKING_THREADS_MAX)
    }

    /// Binds a UDP socket, and warns if the system made its buffers smaller than wanted.
    fn bind_udp(
        &self,
        address: SocketAddr,
        share: PortShare,
        buffer_bytes: usize,
        warnings: &Warnings,
    ) -> io::Result<Arc<dyn quinn::AsyncUdpSocket>> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        share.bind_socket(&socket, address)?;
        socket.set_recv_buffer_size(buffer_bytes)?;
        socket.set_send_buffer_size(buffer_bytes)?;
        if let Err(error) = share.attach_port_program(&socket) {
            let what = "sockets of one port";
            warn_if_due!(
                warnings.is_due(WarningCause::Limit, what, self.now()),
                "socket {address}: this system cannot give each lane its packets ({error}), so lanes \
                 may share a thread; use a kernel with SO_ATTACH_REUSEPORT_CBPF"
            );
        }
        for shortfall in real_host_socket_buffer_shortfalls(&socket, buffer_bytes)? {
            // One for all sockets of a gateway, which have equal buffers.
            warn_if_due!(
                warnings.is_due(WarningCause::Limit, &shortfall, self.now()),
                "socket {address}: {shortfall}"
            );
        }
        // A system without filters wakes the lane's thread, which ignores them.
        let _ = drop_port_probes(&socket);
        quinn::TokioRuntime.wrap_udp_socket(socket.into())
    }

    /// Has the sockets that send port probes.
    fn port_watch(&self) -> Option<&PortWatch> {
        Some(&PORT_WATCH)
    }

    /// Asks the system for the MTU of the route of a connected UDP socket.
    fn mtu_towards(&self, from: IpAddr, to: SocketAddr) -> Option<u16> {
        // The system knows the route only of a connected socket. Nothing is sent.
        let socket = UdpSocket::bind((from, 0)).ok()?;
        socket.connect(to).ok()?;
        let bytes = match to {
            SocketAddr::V4(_) => sockopt::ip_mtu(&socket),
            SocketAddr::V6(_) => sockopt::ipv6_mtu(&socket),
        };
        Some(u16::try_from(bytes.ok()?).unwrap_or(u16::MAX))
    }

    /// Asks the system's resolver on a thread of its own, since a question may take half a minute. The
    /// thread goes on when the caller has given up.
    fn resolve_host_name(&self, name: &str) -> BoxFuture<io::Result<Vec<IpAddr>>> {
        let (name, (answer, is_answered)) = (name.to_owned(), tokio::sync::oneshot::channel());
        let body = move || {
            let found = (name.as_str(), 0).to_socket_addrs();
            // Whoever asked may have given up.
            let _ = answer.send(found.map(|found| found.map(|address| address.ip()).collect()));
        };
        let started = spawn_thread_within_limits("resolver", body);
        Box::pin(async move {
            started?;
            is_answered.await.unwrap_or_else(|_| Err(io::Error::other("the resolver failed")))
        })
    }

    /// Returns quinn's runtime on tokio.
    fn quic_runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(quinn::TokioRuntime)
    }

    /// Reads the system's random source.
    fn random_bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes).expect("the system's random source works");
        bytes
    }
}

/// Reads one of the system's clocks, such as the monotonic one, in nanoseconds.
fn real_host_clock_nanoseconds(clock: rustix::time::ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// The sockets that send port probes, which all gateways of the process share.
static PORT_WATCH: LazyLock<PortWatch> = LazyLock::new(PortWatch::default);

/// Threads for reductions and other compute tasks, with one for each core, since more would only
/// compete. All gateways of the process share them; a task waits while all are busy.
static COMPUTE_THREADS: ThreadPool = ThreadPool::new("compute", use_allowed_real_host_cores);

/// Threads for tasks that may take seconds, such as mapping an arena. All gateways of the process
/// share them.
static BLOCKING_THREADS: ThreadPool = ThreadPool::new("blocking", use_allowed_real_host_cores);

/// 16 threads: the most for tasks that may take seconds, such as mapping a trainer's arena. While
/// 16 tasks run, further tasks wait. The number is chosen.
const BLOCKING_THREADS_MAX: usize = 16;

/// The cores that the process may use, read before any lane is pinned. Threads that are not pinned
/// run on all of them.
static ALLOWED_CORES: LazyLock<AllowedCores> = LazyLock::new(AllowedCores::of_this_thread);

/// The number of cores that the process may use, at least 1, and so of threads for compute tasks.
/// It is read once, since the system reads some files of cgroups for it.
static CORES: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, NonZero::get));

/// Reads the cores of the process. Later the calling thread may be a pinned lane's, with one core.
fn read_real_host_cores() {
    LazyLock::force(&ALLOWED_CORES);
    LazyLock::force(&CORES);
}

/// Lets the calling thread use all cores. A thread that a pinned lane starts inherits the core of
/// the lane.
fn use_allowed_real_host_cores() {
    ALLOWED_CORES.unpin_this_thread();
}

/// Returns the idle time of all cores by `/proc/uptime`: the second number, in seconds.
fn parse_idle_time(uptime: &str) -> Option<Span> {
    let seconds: f64 = uptime.split_whitespace().nth(1)?.parse().ok()?;
    Some(Span::from_secs_f64(seconds))
}

/// Describes the socket buffers that the system silently made smaller than `wanted` bytes, and the
/// remedy.
fn real_host_socket_buffer_shortfalls(socket: &Socket, wanted: usize) -> io::Result<Vec<String>> {
    // Linux reports twice what it granted.
    let granted = [
        ("receive", "net.core.rmem_max", socket.recv_buffer_size()? / 2),
        ("send", "net.core.wmem_max", socket.send_buffer_size()? / 2),
    ];
    let short = granted.into_iter().filter(|(.., bytes)| *bytes < wanted);
    let size = |bytes: usize| ByteCount::new(bytes as u64).rounded();
    let describe = |(which, sysctl, bytes): (&str, &str, usize)| {
        format!(
            "{which} buffer is {}, {} wanted; bursts will be lost. Set {sysctl}={wanted}",
            size(bytes),
            size(wanted)
        )
    };
    Ok(short.map(describe).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Mutex;

    fn socket(buffer_bytes: usize) -> Socket {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
        socket.set_recv_buffer_size(buffer_bytes).expect("whatever fits");
        socket.set_send_buffer_size(buffer_bytes).expect("whatever fits");
        socket
    }

    #[test]
    fn a_short_socket_buffer_is_reported_with_its_remedy() {
        let limit = |name: &str| -> usize {
            let text = std::fs::read_to_string(format!("/proc/sys/net/core/{name}"));
            text.expect("Linux").trim().parse().expect("a number")
        };
        let more = limit("rmem_max").max(limit("wmem_max")) + 4096;
        let reported = real_host_socket_buffer_shortfalls(&socket(more), more).expect("sizes");
        assert_eq!(reported.len(), 2, "{reported:?}");
        assert!(reported[0].ends_with(&format!("Set net.core.rmem_max={more}")), "{reported:?}");
        assert!(reported[1].ends_with(&format!("Set net.core.wmem_max={more}")), "{reported:?}");
        assert!(
            real_host_socket_buffer_shortfalls(&socket(65_536), 65_536).expect("sizes").is_empty()
        );
    }

    #[test]
    fn idle_time_is_the_second_number_of_the_uptime() {
        assert_eq!(parse_idle_time("80460.52 150111.07\n"), Some(Span::from_ms(150_111_070)));
        assert_eq!(parse_idle_time("80460.52\n"), None);
        assert!(RealHost.idle_time().is_some(), "Linux tells");
    }

    #[test]
    fn the_mtu_towards_localhost_is_that_of_the_loopback_device() {
        let file = std::fs::read_to_string("/sys/class/net/lo/mtu").expect("Linux");
        let device: u32 = file.trim().parse().expect("a number");
        let own = IpAddr::from([127, 0, 0, 1]);
        let sent = RealHost.mtu_towards(own, SocketAddr::new(own, 9));
        assert_eq!(sent, Some(u16::try_from(device).unwrap_or(u16::MAX)));
        let elsewhere = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(RealHost.mtu_towards(elsewhere, SocketAddr::new(own, 9)), None, "not ours");
    }

    #[tokio::test]
    async fn the_first_lane_shares_the_engines_thread() {
        let threads = [4, 5, 8].map(|number| {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let start = move || -> BoxFuture<()> {
                Box::pin(async move {
                    sender.send(std::thread::current().id()).expect("the test receives");
                })
            };
            let thread = LaneThread { name: format!("lane-{}", number % 4), number, of: 4 };
            RealHost.spawn_lane(thread, Box::new(start)).expect("a thread");
            receiver
        });
        let engine = std::thread::current().id();
        let mut shared = Vec::new();
        for thread in threads {
            shared.push(thread.await.expect("sent") == engine);
        }
        assert_eq!(shared, [true, false, true]);
    }

    #[tokio::test]
    async fn a_burst_of_tasks_uses_one_thread_per_core() {
        let threads = Arc::new(Mutex::new(HashSet::new()));
        let jobs: Vec<_> = (0..200)
            .map(|_| {
                let threads = Arc::clone(&threads);
                RealHost.run_compute(Box::new(move || {
                    threads.lock().expect("no panic").insert(std::thread::current().id());
                }))
            })
            .collect();
        for job in jobs {
            job.await.expect("no panic");
        }
        let (threads, cores) = (threads.lock().expect("no panic").len(), available_parallelism());
        assert!(threads <= cores.expect("known").get(), "{threads} threads");
    }
}
