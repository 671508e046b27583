//! How fast virtual time runs: `cargo bench -p wan-sim --features virtual-net`.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures by the clock")]

#[path = "../tests/support/quic.rs"]
mod quic;
#[path = "support/spread.rs"]
mod spread;
#[path = "support/verdict.rs"]
mod verdict;

use quinn::congestion::CubicConfig;
use quinn::{
    Endpoint, EndpointConfig, Runtime, ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use spread::Spread;
use std::net::SocketAddr;
use std::sync::Arc;
use verdict::verdict;
use wan_sim::{LinkSpec, VirtualExecutor, VirtualNet};

/// 50 MB: bytes of each of four QUIC streams, 200 MB together, over 10 Gbit/s and 50 ms of round
/// trip.
const STREAM_BYTES: usize = 50_000_000;
/// 5 rounds: the number of processes in which each simulation is measured.
const ROUNDS: usize = 5;

fn main() {
    let modes: [Mode; 2] =
        [("nanosecond executor", nanoseconds), ("tokio's paused clock, 1 ms", milliseconds)];
    if let Some(mode) = std::env::args().nth(1).and_then(|mode| mode.parse::<usize>().ok()) {
        return print(&timed(modes[mode].1));
    }
    println!(
        "| 200 MB over 10 Gbit/s, 50 ms round trip | virtual s | real s | wanted, in the median | | of \
         these on the processor | packets there | trace hash, wanted the same |\n\
         |---|---|---|---|---|---|---|---|"
    );
    // Each run in a process of its own, alternating, so that a busy spell of the machine meets
    // both.
    let rounds: Vec<_> = (0..ROUNDS).map(|_| [0, 1].map(in_a_process)).collect();
    for (mode, (name, _)) in modes.iter().enumerate() {
        let runs: Vec<_> = rounds.iter().map(|round| &round[mode]).collect();
        let first = runs[0].ran;
        assert!(runs.iter().all(|run| run.ran.hash == first.hash), "runs differ");
        let real = Spread::new(runs.iter().map(|run| run.real_s));
        println!(
            "| {name} | {:.6} | {real} | below 1 | {} | {} | {} | {:016x} in {ROUNDS} processes: met |",
            first.virtual_s,
            verdict(real.median() < 1.0),
            Spread::new(runs.iter().map(|run| run.cpu_s)),
            first.packets,
            first.hash,
        );
    }
}

type Mode = (&'static str, fn() -> Ran);

#[derive(Clone, Copy)]
struct Ran {
    virtual_s: f64,
    packets: u64,
    hash: u64,
}

struct Timed {
    ran: Ran,
    real_s: f64,
    cpu_s: f64,
}

/// Prints the figures of one run, for the process that started this one.
fn print(timed: &Timed) {
    let Timed { ran: Ran { virtual_s, packets, hash }, real_s, cpu_s } = timed;
    println!("{virtual_s} {packets} {hash} {real_s} {cpu_s}");
}

fn in_a_process(mode: usize) -> Timed {
    let this = std::env::current_exe().expect("the system knows who runs");
    let output = std::process::Command::new(this).arg(mode.to_string()).output().expect("runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let words: Vec<_> = text.split_whitespace().collect();
    let [virtual_s, packets, hash, real_s, cpu_s] = words[..] else { panic!("{text}") };
    let seconds = |word: &str| word.parse().expect("seconds");
    let (packets, hash) = (packets.parse().expect("a count"), hash.parse().expect("a hash"));
    let ran = Ran { virtual_s: seconds(virtual_s), packets, hash };
    Timed { ran, real_s: seconds(real_s), cpu_s: seconds(cpu_s) }
}

fn timed(run: fn() -> Ran) -> Timed {
    let cpu = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let (began, worked) = (std::time::Instant::now(), cpu());
    let ran = run();
    Timed { ran, real_s: began.elapsed().as_secs_f64(), cpu_s: cpu() - worked }
}

fn nanoseconds() -> Ran {
    let time = VirtualExecutor::new();
    let net = VirtualNet::under(&time);
    time.run(transfer(&net, Arc::new(time.clone()))).unwrap();
    ran(&net, time.now().ns() as f64 / 1e9)
}

fn milliseconds() -> Ran {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let net = VirtualNet::new();
        let start = tokio::time::Instant::now();
        transfer(&net, Arc::new(TokioRuntime)).await;
        ran(&net, start.elapsed().as_secs_f64())
    })
}

fn ran(net: &VirtualNet, virtual_s: f64) -> Ran {
    let (here, there) = ends();
    let packets = net.counters(here.ip(), there.ip()).unwrap().packets;
    Ran { virtual_s, packets, hash: net.trace_hash() }
}

fn ends() -> (SocketAddr, SocketAddr) {
    ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:1".parse().unwrap())
}

async fn transfer(net: &VirtualNet, runtime: Arc<dyn Runtime>) {
    let (here, there) = ends();
    let link = LinkSpec::new("10 Gbit/s".parse().unwrap(), "25 ms".parse().unwrap()).unwrap();
    net.connect(here.ip(), there.ip(), link, link, 1);
    let (mut client_config, mut server_config) = quic::tls();
    client_config.transport_config(transport());
    server_config.transport_config(transport());
    let endpoint = |at: SocketAddr, server: Option<ServerConfig>, rng: u8| {
        let socket = net.bind(at).unwrap();
        let mut config = EndpointConfig::default();
        config.rng_seed(Some([rng; 32]));
        Endpoint::new_with_abstract_socket(config, server, socket, Arc::clone(&runtime)).unwrap()
    };
    let server = endpoint(there, Some(server_config), 1);
    let client = endpoint(here, None, 2);
    let accepted = async { server.accept().await.unwrap().await.unwrap() };
    let connecting = client.connect_with(client_config, there, "wan").unwrap();
    let (connection, peer) = tokio::join!(connecting, accepted);
    let connection = connection.unwrap();
    let data = bytes::Bytes::from(vec![0xa5; STREAM_BYTES]);
    let send = || async {
        let mut stream = connection.open_uni().await.unwrap();
        stream.write_chunk(data.clone()).await.unwrap();
        stream.finish().unwrap();
    };
    let receive = || async {
        let mut stream = peer.accept_uni().await.unwrap();
        let mut bytes = 0;
        while let Some(chunk) = stream.read_chunk(1 << 20, false).await.unwrap() {
            bytes += chunk.bytes.len();
        }
        assert_eq!(bytes, STREAM_BYTES);
    };
    tokio::join!(send(), send(), send(), send(), receive(), receive(), receive(), receive());
}

/// A window of a little more than the bandwidth-delay product, and packets as long as the link
/// takes.
fn transport() -> Arc<TransportConfig> {
    let window = 80_000_000u32;
    let mut congestion = CubicConfig::default();
    congestion.initial_window(62_500_000);
    let mut transport = TransportConfig::default();
    transport
        .initial_mtu(1452)
        .stream_receive_window(VarInt::from_u32(window))
        .receive_window(VarInt::from_u32(window))
        .send_window(u64::from(window))
        .congestion_controller_factory(Arc::new(congestion));
    Arc::new(transport)
}
