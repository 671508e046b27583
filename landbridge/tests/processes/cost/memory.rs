//! Collectives that need more memory than gateways have.

use crate::deployment::{Deployment, Layout};
use crate::skipping::skip;
use gateway::client::{AttachOptions, Client, GatewayAddress, Operation};
use hier_collectives::descriptor::{Dtype, ReduceOp};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use units::{Fraction, Span};
use wan_sim::LinkSpec;
use wan_sim::relay::{Forward, RelaySpec, RunningRelay};

/// All-reduces posted before the first one is waited for.
const COLLECTIVES: u32 = 8;
/// Memory of each gateway.
const BUDGET_BYTES: u64 = 256 << 20;
/// Memory of the test: contributions and results of two ranks, 256 MiB each, and the rest.
const NEEDED_BYTES: u64 = 10 << 30;
/// 5 ms between samples of the memory of gateways.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(5);

#[test]
#[ignore = "long: cargo xtask test --long"]
fn eight_large_collectives_stay_within_the_memory_budget() {
    let available = field("/proc/meminfo", "MemAvailable:");
    if available < NEEDED_BYTES {
        return skip(format_args!("it takes {NEEDED_BYTES} bytes, {available} are available"));
    }
    // With one rank per region, data is sent from the arena and added on arrival.
    let one_each = peaks(1, 1, 256 << 20, &NEAR);
    assert!(one_each.iter().all(|peak| *peak <= BUDGET_BYTES * 11 / 10), "{one_each:?}");
    // Partial sums of two ranks fill the budget for large buffers; the rest waits.
    let with_partials = peaks(2, 1, 128 << 20, &NEAR);
    assert!(with_partials[0] > BUDGET_BYTES * 3 / 8, "{with_partials:?}");
    assert!(with_partials.iter().all(|p| *p <= BUDGET_BYTES * 11 / 10), "{with_partials:?}");
    // Over a lossy link the sender keeps lost data, and the receiver what arrived after it.
    let far = peaks(1, 1, 128 << 20, &FAR);
    assert!(far.iter().all(|peak| *peak <= BUDGET_BYTES * 11 / 10), "{far:?}");
}

/// The link between the gateways.
struct LinkUnderTest {
    rate: &'static str,
    rtt: &'static str,
    loss: &'static str,
}

/// A link faster than this machine, without a relay.
const NEAR: LinkUnderTest = LinkUnderTest { rate: "10 Gbit/s", rtt: "1 ms", loss: "0 %" };
/// A long lossy link, emulated by a relay.
const FAR: LinkUnderTest = LinkUnderTest { rate: "1 Gbit/s", rtt: "80 ms", loss: "0.1 %" };

impl LinkUnderTest {
    /// Starts a relay from the lanes' ports at `at` to those at `west`; `None` if they are equal.
    fn relay(&self, at: u16, west: u16) -> Option<RunningRelay> {
        let loss: Fraction = self.loss.parse().expect("a loss");
        let rtt: Span = self.rtt.parse().expect("a time");
        let delay = Span::from_ns(rtt.ns() / 2);
        let link = LinkSpec::new(self.rate.parse().expect("a rate"), delay).expect("a link");
        let local = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let lane = |lane| Forward { listen: local(at + lane), target: local(west + lane) };
        let forwards = (0..LANES).map(lane).collect();
        let link = link.with_loss(loss);
        let spec = RelaySpec {
            forwards,
            forward: link,
            backward: link,
            conditions: Default::default(),
            seed: 1,
        };
        (at != west).then(|| RunningRelay::start(&spec).expect("a relay"))
    }
}

/// Lanes of a link of up to 32 Gbit/s.
const LANES: u16 = 4;

/// Returns the largest private memory of each gateway while ranks all-reduce buffers of `bytes`.
fn peaks(east: u32, west: u32, bytes: u64, link: &LinkUnderTest) -> Vec<u64> {
    let mut deployment = deployment(east, west, link);
    let relay = link.relay(deployment.west_wan.port(), deployment.west.port());
    deployment.run_gateways();
    let gateways: Vec<u32> = deployment.gateways.iter().map(|run| run.process.id()).collect();
    // The channel closes when the collectives are complete, or have failed.
    let (running, ended) = channel::<()>();
    let sampling = std::thread::spawn(move || sample_peaks(&gateways, &ended));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let clients = attach(&deployment, east, west, bytes).await;
        all_reduce(&clients, bytes).await;
    });
    drop(running);
    let peaks = sampling.join().expect("no panic");
    if let Some(counters) = relay.map(|relay| relay.stop().expect("stops")) {
        let (there, back) = (counters.forward, counters.backward);
        assert!(there.drops_loss > 500 && back.drops_loss > 500, "{there:?}, {back:?}");
    }
    println!("{east} ranks and {west}, {COLLECTIVES} times {bytes} bytes: {peaks:?} bytes at most");
    peaks
}

/// Samples the private pages of processes until the channel closes. Returns the peaks.
fn sample_peaks(processes: &[u32], ended: &Receiver<()>) -> Vec<u64> {
    let mut peaks = vec![0; processes.len()];
    while ended.recv_timeout(SAMPLE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        for (peak, process) in peaks.iter_mut().zip(processes) {
            *peak = field(&format!("/proc/{process}/status"), "RssAnon:").max(*peak);
        }
    }
    peaks
}

/// Returns a field of a file in `/proc`, converted from the kernel's kB to bytes.
fn field(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).expect("readable");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a known field");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Makes a deployment over a link, with a relay before west if the link has loss.
fn deployment(east: u32, west: u32, link: &LinkUnderTest) -> Deployment {
    Deployment::new(&Layout {
        port_rate: link.rate,
        rate: link.rate,
        rtt: link.rtt,
        loss: Some(link.loss),
        relayed: link.loss != NEAR.loss,
        job_memory: "16 GiB",
        ..Layout::of(east, west)
    })
}

/// Attaches all ranks, each with an arena for all collectives of `bytes`.
async fn attach(deployment: &Deployment, east: u32, west: u32, bytes: u64) -> Vec<Client> {
    let arena = u64::from(COLLECTIVES) * 2 * bytes;
    let mut clients = Vec::new();
    for rank in 0..east + west {
        let region = if rank < east { "east" } else { "west" };
        let way = GatewayAddress::Socket(deployment.path(&format!("{region}.sock")));
        let attach = AttachOptions::new("train", deployment.token("train"), rank, arena);
        clients.push(Client::attach(&way, attach).await.expect("attaches"));
    }
    clients
}

/// Posts all collectives at once and checks each sum.
async fn all_reduce(clients: &[Client], bytes: u64) {
    let mut tensors = Vec::new();
    for number in 0..COLLECTIVES {
        for client in clients {
            let mut tensor = client.allocate(Dtype::I32, bytes / 4).expect("room");
            tensor.write(&numbers(bytes, 1, 1000 * number + client.rank().0));
            tensors.push((client, tensor));
        }
    }
    let mut operations: Vec<Operation> = Vec::new();
    for (client, tensor) in tensors {
        operations.push(client.all_reduce(tensor, ReduceOp::Sum).await.expect("posted"));
    }
    let ranks = clients.len() as u32;
    for (operations, number) in operations.chunks_mut(clients.len()).zip(0..) {
        let offsets = (0..ranks).map(|rank| 1000 * number + rank).sum();
        let sums = numbers(bytes, ranks, offsets);
        for operation in operations {
            operation.ready().await.expect("completes");
            assert!(operation.result() == sums, "collective {number}: a wrong sum");
        }
    }
}

/// Returns the numbers 0, 1, 2, ... times `factor` plus `offset`.
fn numbers(bytes: u64, factor: u32, offset: u32) -> Vec<u8> {
    let mut numbers = Vec::with_capacity(bytes as usize);
    for index in 0..bytes as u32 / 4 {
        numbers.extend(index.wrapping_mul(factor).wrapping_add(offset).to_le_bytes());
    }
    numbers
}
