//! How much of a direct UDP flow's speed the relay keeps: `cargo bench -p wan-sim`.
#![expect(clippy::disallowed_types, reason = "the ends of the relay are sockets")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures by the clock")]

#[path = "support/spread.rs"]
mod spread;
#[path = "support/verdict.rs"]
mod verdict;

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use spread::Spread;
use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use units::Span;
use verdict::{verdict, void};
use wan_sim::relay::{Forward, RelaySpec, RunningRelay};
use wan_sim::{FidelityReport, LinkSpec};

/// 1,400 bytes: UDP payload of each datagram of the measured flow.
const SEGMENT_BYTES: usize = 1400;
/// 44 datagrams in one send call with UDP segmentation offload.
const SEGMENTS: usize = 44;
/// 61,600 bytes: payload of one send call, [`SEGMENTS`] datagrams.
const BUFFER_BYTES: usize = SEGMENT_BYTES * SEGMENTS;
/// 2 MB: the most that the sender may be ahead of the receiver where the relay adds no delay.
/// Socket buffers hold more.
const WINDOW_BYTES: usize = 2_000_000;
/// 6 MB: the most that the sender may be ahead of the receiver beyond the bytes in flight, where
/// the relay adds delay. Socket buffers hold more.
const BESIDE_BYTES: usize = 6_000_000;
/// 1 s: the time at the begin of a flow that is not measured.
const WARM_UP: Duration = Duration::from_secs(1);
/// 2 s: the time for which the rate of a flow is measured, after [`WARM_UP`].
const MEASURED: Duration = Duration::from_secs(2);
/// 5 rounds: the number of measurements of each flow.
const ROUNDS: usize = 5;
/// 0.6 of the direct flow's rate: the least that a relayed flow without delay must reach.
const WANTED: f64 = 0.6;

fn main() {
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = target.local_addr().unwrap();
    // As the relay's own sockets have it; capped for the unprivileged.
    let bytes = 8 << 20;
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&target, bytes)
        .or_else(|_| rustix::net::sockopt::set_socket_recv_buffer_size(&target, bytes));
    // Alternating, so that a busy spell of the machine meets all.
    let rounds: Vec<_> = (0..ROUNDS)
        .map(|_| {
            (
                flow(&target, address, Duration::ZERO),
                relayed(&target, Span::ZERO),
                relayed(&target, Span::from_ms(20)),
            )
        })
        .collect();
    println!(
        "| UDP-GSO flow, {ROUNDS} rounds | payload Gbit/s | of the direct flow's | wanted, in the \
         median | | relay's CPU, % of a core | void |\n|---|---|---|---|---|---|---|"
    );
    let direct = Spread::new(rounds.iter().map(|(direct, ..)| *direct));
    println!("| direct | {direct:.1} | | | | | |");
    // With a delay, the packets in flight exceed the caches, and three busy threads are too much
    // for two cores: that row is for comparison.
    for (name, which, wanted) in [("0", 0, Some(WANTED)), ("20 ms", 1, None)] {
        let ratios = Spread::new(rounds.iter().map(|round| of(round, which).gbits / round.0));
        let judged = wanted.map(|wanted| verdict(ratios.median() >= wanted)).unwrap_or_default();
        let wanted = wanted.map(|wanted| wanted.to_string()).unwrap_or_default();
        println!(
            "| relayed, delay {name} | {:.1} | {ratios} | {wanted} | {judged} | {:.0} | {} |",
            Spread::new(rounds.iter().map(|round| of(round, which).gbits)),
            Spread::new(
                rounds.iter().map(|round| of(round, which).report.cpu_permille as f64 / 10.0)
            ),
            void(rounds.iter().map(|round| &of(round, which).report)),
        );
    }
}

type Round = (f64, Relayed, Relayed);

/// The run without delay at 0, the run with delay at 1.
fn of((_, near, far): &Round, which: usize) -> &Relayed {
    if which == 0 { near } else { far }
}

struct Relayed {
    gbits: f64,
    report: FidelityReport,
}

fn relayed(target: &UdpSocket, delay: Span) -> Relayed {
    let link = LinkSpec::unlimited(delay).unwrap();
    let forward =
        Forward { listen: "127.0.0.1:0".parse().unwrap(), target: target.local_addr().unwrap() };
    let spec = RelaySpec {
        forwards: vec![forward],
        forward: link,
        backward: link,
        conditions: Default::default(),
        seed: 1,
    };
    let relay = RunningRelay::start(&spec).unwrap();
    let gbits = flow(target, relay.listening()[0].address, delay.duration());
    Relayed { gbits, report: relay.fidelity() }
}

/// Sends offloaded buffers to `to`, at most a window ahead of the packets that have reached
/// `target`, as a transport does. A flood would spend the machine on packets that are dropped.
/// Packets take `delay`. Returns the payload received, in Gbit/s.
fn flow(target: &UdpSocket, to: SocketAddr, delay: Duration) -> f64 {
    let (ended, latest) = (AtomicBool::new(false), AtomicU64::new(0));
    // Packets left over from the flow before.
    target.set_nonblocking(true).unwrap();
    while target.recv(&mut [0; 1]).is_ok() {}
    std::thread::scope(|scope| {
        scope.spawn(|| send(to, delay, &ended, &latest));
        first();
        let state = UdpSocketState::new(target.into()).unwrap();
        target.set_nonblocking(false).unwrap();
        target.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut memory = vec![0; 32 * 65_536];
        let began = Instant::now();
        let mut bytes = 0;
        while began.elapsed() < WARM_UP + MEASURED {
            let mut metas = [RecvMeta::default(); 32];
            let mut buffers: Vec<_> = memory.chunks_mut(65_536).map(IoSliceMut::new).collect();
            let taken = state.recv(target.into(), &mut buffers, &mut metas).unwrap_or(0);
            for (buffer, meta) in buffers.iter().zip(&metas).take(taken) {
                let number = u64::from_le_bytes(buffer[..8].try_into().unwrap());
                latest.fetch_max(number, Ordering::Relaxed);
                if began.elapsed() > WARM_UP {
                    bytes += meta.len;
                }
            }
        }
        ended.store(true, Ordering::Relaxed);
        bytes as f64 * 8.0 / MEASURED.as_secs_f64() / 1e9
    })
}

/// Gives the calling thread the highest priority that it may have, so that only the relay delays
/// the two ends.
fn first() {
    let _ = rustix::process::setpriority_process(None, -20);
}

/// How many buffers a sender may be ahead.
struct Window {
    delay: Duration,
    under_way: u64,
    before: u64,
    since: Instant,
}

impl Window {
    /// The number of buffers that packets in flight occupied most recently, and some spare ones.
    fn buffers(&mut self, latest: u64) -> u64 {
        if self.delay.is_zero() {
            return (WINDOW_BYTES / BUFFER_BYTES) as u64;
        }
        if self.since.elapsed() >= self.delay {
            self.under_way = latest - self.before;
            (self.before, self.since) = (latest, Instant::now());
        }
        self.under_way + (BESIDE_BYTES / BUFFER_BYTES) as u64
    }
}

/// Sends buffers until `ended`. Every segment begins with the number of its buffer.
fn send(to: SocketAddr, delay: Duration, ended: &AtomicBool, latest: &AtomicU64) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let state = UdpSocketState::new((&socket).into()).unwrap();
    first();
    let mut contents = vec![7; BUFFER_BYTES];
    let mut blocked = Instant::now();
    let mut window = Window { delay, under_way: 0, before: 0, since: Instant::now() };
    for number in 1u64.. {
        while {
            let latest = latest.load(Ordering::Relaxed);
            number.saturating_sub(latest) > window.buffers(latest)
        } {
            // A window that was lost as a whole is retransmitted.
            if blocked.elapsed() > Duration::from_millis(100) {
                break;
            }
            if ended.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        blocked = Instant::now();
        for segment in contents.chunks_mut(SEGMENT_BYTES) {
            segment[..8].copy_from_slice(&number.to_le_bytes());
        }
        let transmit = Transmit {
            destination: to,
            ecn: None,
            contents: &contents,
            segment_size: Some(SEGMENT_BYTES),
            src_ip: None,
        };
        // A full buffer is part of it.
        let _ = state.try_send((&socket).into(), &transmit);
        if ended.load(Ordering::Relaxed) {
            return;
        }
    }
}
