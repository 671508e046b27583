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
use verdict::verdict;
use wan_sim::LinkSpec;
use wan_sim::relay::{Forward, Relay, RelaySpec};

const SEGMENT_BYTES: usize = 1400;
const SEGMENTS: usize = 44;
const BUFFER_BYTES: usize = SEGMENT_BYTES * SEGMENTS;
/// Most bytes ahead where there is no delay: what the sockets hold.
const WINDOW_BYTES: usize = 2_000_000;
/// And at 20 ms: 32 Gbit/s of it, more than the direct flow has.
const LONG_WINDOW_BYTES: usize = 80_000_000;
const WARM_UP: Duration = Duration::from_millis(500);
const MEASURED: Duration = Duration::from_secs(2);
const ROUNDS: usize = 5;
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
                flow(&target, address, WINDOW_BYTES),
                relayed(&target, "0 ms"),
                relayed(&target, "20 ms"),
            )
        })
        .collect();
    println!(
        "| UDP-GSO flow, {ROUNDS} rounds | payload Gbit/s | of the direct flow's | wanted, in the \
         median | | relay's CPU, % of a core | void for lateness |\n|---|---|---|---|---|---|---|"
    );
    let direct = Spread::new(rounds.iter().map(|(direct, ..)| *direct));
    println!("| direct | {direct:.1} | | | | | |");
    for (name, which) in [("0", 0), ("20 ms", 1)] {
        let relayed = |round: &(f64, Relayed, Relayed)| if which == 0 { round.1 } else { round.2 };
        let ratios = Spread::new(rounds.iter().map(|round| relayed(round).gbits / round.0));
        println!(
            "| relayed, delay {name} | {:.1} | {ratios} | {WANTED} | {} | {:.0} | {} of {ROUNDS} |",
            Spread::new(rounds.iter().map(|round| relayed(round).gbits)),
            verdict(ratios.median() >= WANTED),
            Spread::new(rounds.iter().map(|round| relayed(round).cpu_permille as f64 / 10.0)),
            rounds.iter().filter(|round| relayed(round).void).count(),
        );
    }
}

#[derive(Clone, Copy)]
struct Relayed {
    gbits: f64,
    cpu_permille: u64,
    void: bool,
}

fn relayed(target: &UdpSocket, delay: &str) -> Relayed {
    let link = LinkSpec::unlimited(delay.parse().unwrap()).unwrap();
    let forward =
        Forward { listen: "127.0.0.1:0".parse().unwrap(), target: target.local_addr().unwrap() };
    let spec = RelaySpec { forwards: vec![forward], forward: link, backward: link, seed: 1 };
    let relay = Relay::start(&spec).unwrap();
    let window_bytes = if link.delay() == Span::ZERO { WINDOW_BYTES } else { LONG_WINDOW_BYTES };
    let gbits = flow(target, relay.listening()[0].address, window_bytes);
    let report = relay.fidelity();
    Relayed { gbits, cpu_permille: report.cpu_permille, void: !report.void.is_empty() }
}

/// Sends offloaded buffers to `to`, at most a window ahead of what has come to `target`, as
/// a transport does: a flood would spend the machine on packets that nobody takes. What
/// arrives, in Gbit/s of payload.
fn flow(target: &UdpSocket, to: SocketAddr, window_bytes: usize) -> f64 {
    let (ended, latest) = (AtomicBool::new(false), AtomicU64::new(0));
    // What is left of the flow before.
    target.set_nonblocking(true).unwrap();
    while target.recv(&mut [0; 1]).is_ok() {}
    std::thread::scope(|scope| {
        scope.spawn(|| send(to, window_bytes, &ended, &latest));
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

/// Every segment begins with its buffer's number.
fn send(to: SocketAddr, window_bytes: usize, ended: &AtomicBool, latest: &AtomicU64) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let state = UdpSocketState::new((&socket).into()).unwrap();
    let mut contents = vec![7; BUFFER_BYTES];
    let mut blocked = Instant::now();
    for number in 1u64.. {
        let window = (window_bytes / BUFFER_BYTES) as u64;
        while number.saturating_sub(latest.load(Ordering::Relaxed)) > window {
            // A window that was lost as a whole is sent again.
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
