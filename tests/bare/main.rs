//! One side of an exchange over quinn alone, between two processes; see `scenarios::collectives::quinn_only`.

mod limited_socket;

use bytes::Bytes;
use clap::Parser;
use gateway::wan::connect::tls::{Credentials, gateway_identity_dns_name};
use limited_socket::LimitedSocket;
use quinn::{Endpoint, EndpointConfig, Runtime, TokioRuntime};
use scenarios::collectives::quinn_only::{BareError, Settings, exchange};
use scenarios::testbed::counters::Counters;
use serde_json::json;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::Barrier;
use units::ByteCount;

/// Exchange a buffer with a peer over quinn and add what comes. Prints a line of JSON to begin with.
/// Each exchange adds a line with its post, its result, its processor time and its wake-ups.
#[derive(Debug, Clone, Parser)]
#[command(after_help = "Example: bare-quinn --keys keys --fabric bench --me east-0 --peer west-0 \
                        --at 127.0.0.1:7000 --dial 127.0.0.1:7100 --size '64 MiB'")]
struct Command {
    /// The folder that `landbridge certs` made
    #[arg(long)]
    keys: PathBuf,
    /// The fabric's name
    #[arg(long)]
    fabric: String,
    /// Name on the certificate to present
    #[arg(long)]
    me: String,
    /// Name on the peer's certificate
    #[arg(long)]
    peer: String,
    /// Address of the first connection; the others use the ports after it
    #[arg(long)]
    at: SocketAddr,
    /// Address of the peer's first connection; without it, the peer dials
    #[arg(long)]
    dial: Option<SocketAddr>,
    /// Bytes to send, in all
    #[arg(long)]
    size: ByteCount,
    /// Exchanges, after a part of one that is not measured
    #[arg(long, default_value_t = 3)]
    iterations: u32,
    /// Connections, each with a thread and a socket
    #[arg(long, default_value_t = 1)]
    lanes: u16,
    /// UDP payload of each packet; quinn looks for it otherwise
    #[arg(long)]
    mtu: Option<u16>,
    /// Bytes in flight on each connection; CUBIC decides otherwise
    #[arg(long)]
    window: Option<ByteCount>,
    /// Hand packets to the kernel one by one, for netem loses a buffer whole
    #[arg(long)]
    one_by_one: bool,
}

/// 1472 bytes: quinn's default limit on received UDP payloads.
const DATAGRAM_BYTES: u16 = 1472;
/// The first exchange, which is not measured, has an eighth of the bytes: a whole one may take
/// long.
const WARM_UP_DIVISOR: usize = 8;
/// 16 MiB: the socket buffer that gateways ask for.
const SOCKET_BYTES: usize = 16 << 20;

fn main() -> ExitCode {
    let command = Command::parse();
    let warm = Arc::new(Barrier::new(usize::from(command.lanes) + 1));
    let lanes: Vec<_> = (0..command.lanes)
        .map(|lane| {
            let (command, warm, (times, spans)) = (command.clone(), Arc::clone(&warm), channel());
            (spans, std::thread::spawn(move || run(&command, lane, &warm, &times)))
        })
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("no driver").block_on(warm.wait());
    let mut before = Counters::of(std::process::id()).ok();
    let mut cpu_before = cpu_seconds();
    println!("{}", json!({ "posted_ns": [], "ready_ns": [] }));
    for _ in 0..command.iterations {
        let of_lane = |(spans, _): &(Receiver<[u64; 2]>, _)| spans.recv().ok();
        let last = |a: [u64; 2], b: Option<[u64; 2]>| b.map(|b| [a[0].max(b[0]), a[1].max(b[1])]);
        let Some([posted, ready]) = lanes.iter().map(of_lane).try_fold([0; 2], last) else { break };
        let (now, counters) = (cpu_seconds(), Counters::of(std::process::id()).ok());
        let spent = counters.as_ref().zip(before.as_ref()).map(|(now, before)| now.since(before));
        let line = json!({
            "posted_ns": [posted], "ready_ns": [ready], "cpu_seconds": now - cpu_before,
            "wakeups": spent.map(|spent| spent.wakeups),
        });
        println!("{line}");
        (cpu_before, before) = (now, counters);
    }
    let whole = lanes.into_iter().all(|(_, lane)| lane.join().is_ok());
    if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one lane in this thread; sends the times at which each exchange began and ended.
fn run(command: &Command, lane: u16, warm: &Barrier, times: &Sender<[u64; 2]>) {
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(BareError::from)
        .and_then(|runtime| runtime.block_on(exchanges(command, lane, warm, times)));
    if let Err(error) = outcome {
        // The other lanes would wait for this one.
        eprintln!("lane {lane}: {error}");
        std::process::exit(1);
    }
}

/// Connects one lane to the peer and runs all exchanges over it.
async fn exchanges(
    command: &Command,
    lane: u16,
    warm: &Barrier,
    times: &Sender<[u64; 2]>,
) -> Result<(), BareError> {
    let settings = Settings { mtu: command.mtu, window: command.window.map(ByteCount::get) };
    let file = |name: &str| command.keys.join(name);
    let (chain, key) = (format!("{}.pem", command.me), format!("{}.key", command.me));
    let credentials = Credentials::load(&file(&chain), &file(&key), &file("ca.pem"))?;
    let port = |at: SocketAddr| SocketAddr::new(at.ip(), at.port() + lane);
    let socket = UdpSocket::bind(port(command.at))?;
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BYTES);
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, SOCKET_BYTES);
    let endpoint = |server| {
        let (runtime, mut config) = (Arc::new(TokioRuntime), EndpointConfig::default());
        // quinn would tell the peer to send no larger ones than its default,
        let datagram = command.mtu.unwrap_or(DATAGRAM_BYTES).max(DATAGRAM_BYTES);
        config.max_udp_payload_size(datagram).map_err(std::io::Error::other)?;
        // and send more of them at once than the kernel takes.
        let socket = runtime.wrap_udp_socket(socket)?;
        let socket = LimitedSocket::new(socket, datagram, command.one_by_one);
        Endpoint::new_with_abstract_socket(config, server, Arc::new(socket), runtime)
    };
    let (endpoint, connection) = match command.dial {
        Some(at) => {
            let endpoint = endpoint(None)?;
            let to = gateway_identity_dns_name(&command.peer, &command.fabric);
            let connection = settings.dial(&endpoint, &credentials, port(at), &to).await?;
            (endpoint, connection)
        }
        None => {
            let endpoint = endpoint(Some(settings.server(&credentials)?))?;
            let incoming = endpoint.accept().await.ok_or(BareError::Short(0))?;
            let connection = incoming.await?;
            (endpoint, connection)
        }
    };
    let numbers =
        usize::try_from(command.size.get()).unwrap_or(usize::MAX) / 4 / usize::from(command.lanes);
    // Of zeros the kernel would keep one page for all.
    let mine = Bytes::from(1f32.to_le_bytes().repeat(numbers));
    let mut sum = vec![1.0f32; numbers];
    let first = numbers / WARM_UP_DIVISOR;
    let begin = mine.slice(..4 * first);
    exchange(&connection, &begin, &begin, &mut sum[..first]).await?;
    // Not by blocking: what the peer waits for may not have left yet.
    warm.wait().await;
    for _ in 0..command.iterations {
        let posted = now_ns();
        exchange(&connection, &mine, &mine, &mut sum).await?;
        let _ = times.send([posted, now_ns()]);
    }
    let packet = connection.stats().path.current_mtu;
    if command.mtu.is_some_and(|mtu| mtu != packet) {
        return Err(BareError::Packets(packet));
    }
    // The side that has all bytes first waits until the other has them as well.
    let mut last = connection.open_uni().await?;
    last.finish().map_err(|_| quinn::WriteError::ClosedStream)?;
    connection.accept_uni().await?;
    let _ = last.stopped().await;
    connection.close(0u8.into(), b"done");
    endpoint.wait_idle().await;
    Ok(())
}

/// Returns the monotonic clock of this machine in nanoseconds, which all processes share.
fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the user and system time of this process, in seconds.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
