//! Much more under way than gateways may hold.

use super::deployment::{Deployment, free_port};
use super::skipping::skip;
use gateway::client::{Attach, Client, Operation, Way};
use hier_collectives::descriptor::{Dtype, ReduceOp};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use units::{Fraction, Span};
use wan_sim::LinkSpec;
use wan_sim::relay::{Forward, Relay, RelaySpec};

/// All-reduces that are posted before the first of them is waited for.
const COLLECTIVES: u32 = 8;
/// Of each gateway.
const BUDGET_BYTES: u64 = 256 << 20;
/// Two ranks' contributions and results of 256 MiB, and what is beside them.
const NEEDED_BYTES: u64 = 10 << 30;
/// How often it is looked at what gateways hold.
const LOOK_EVERY: Duration = Duration::from_millis(5);

#[test]
fn eight_large_collectives_stay_within_the_memory_budget() {
    let available = field("/proc/meminfo", "MemAvailable:");
    if available < NEEDED_BYTES {
        return skip(format_args!("it takes {NEEDED_BYTES} bytes, {available} are available"));
    }
    // What one rank gives is sent from where it is, and added as it comes.
    let one_each = peaks(1, 1, 256 << 20, &NEAR);
    assert!(one_each.iter().all(|peak| *peak <= BUDGET_BYTES * 11 / 10), "{one_each:?}");
    // Partials of two fill what of the budget is for large buffers, and what does not fit waits.
    let with_partials = peaks(2, 1, 128 << 20, &NEAR);
    assert!(with_partials[0] > BUDGET_BYTES / 2, "{with_partials:?}");
    assert!(with_partials.iter().all(|p| *p <= BUDGET_BYTES * 11 / 10), "{with_partials:?}");
    // What is lost is kept at one end, and what is behind it at the other.
    let far = peaks(1, 1, 128 << 20, &FAR);
    assert!(far.iter().all(|peak| *peak <= BUDGET_BYTES * 11 / 10), "{far:?}");
}

/// The link between the gateways.
struct Between {
    rate: &'static str,
    rtt: &'static str,
    loss: &'static str,
}

/// Faster than this machine is.
const NEAR: Between = Between { rate: "10 Gbit/s", rtt: "1 ms", loss: "0 %" };
/// Emulated.
const FAR: Between = Between { rate: "1 Gbit/s", rtt: "80 ms", loss: "0.1 %" };

impl Between {
    /// Relays what comes to `at` and the ports after it to those after `west`, unless the link is near.
    fn relay(&self, at: u16, west: u16) -> Option<Relay> {
        let loss: Fraction = self.loss.parse().expect("a loss");
        let rtt: Span = self.rtt.parse().expect("a time");
        let delay = Span::from_ns(rtt.ns() / 2);
        let link = LinkSpec::new(self.rate.parse().expect("a rate"), delay).expect("a link");
        let local = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let lane = |lane| Forward { listen: local(at + lane), target: local(west + lane) };
        let forwards = (0..LANES).map(lane).collect();
        let link = link.with_loss(loss);
        let spec = RelaySpec { forwards, forward: link, backward: link, seed: 1 };
        (at != west).then(|| Relay::start(&spec).expect("a relay"))
    }
}

/// Of a link of up to 32 Gbit/s.
const LANES: u16 = 4;

/// The most private memory of each gateway while ranks all-reduce buffers of so many bytes.
fn peaks(east: u32, west: u32, bytes: u64, between: &Between) -> Vec<u64> {
    let listens = free_port();
    let seen_at = if between.loss == NEAR.loss { listens } else { free_port() };
    let mut deployment = deployment((east, west), between, (seen_at, listens));
    let relay = between.relay(seen_at, listens);
    deployment.run_gateways();
    let gateways: Vec<u32> = deployment.gateways.iter().map(|run| run.process.id()).collect();
    // Dropped when all is done, or has failed.
    let (running, ended) = channel::<()>();
    let looking = std::thread::spawn(move || look(&gateways, &ended));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let clients = attach(&deployment, east, west, bytes).await;
        all_reduce(&clients, bytes).await;
    });
    drop(running);
    let peaks = looking.join().expect("no panic");
    if let Some(counters) = relay.map(|relay| relay.stop().expect("stops")) {
        let (there, back) = (counters.forward, counters.backward);
        assert!(there.drops_loss > 500 && back.drops_loss > 500, "{there:?}, {back:?}");
    }
    println!("{east} ranks and {west}, {COLLECTIVES} times {bytes} bytes: {peaks:?} bytes at most");
    peaks
}

/// The most that each process ever held in private pages.
fn look(processes: &[u32], ended: &Receiver<()>) -> Vec<u64> {
    let mut peaks = vec![0; processes.len()];
    while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
        for (peak, process) in peaks.iter_mut().zip(processes) {
            *peak = field(&format!("/proc/{process}/status"), "RssAnon:").max(*peak);
        }
    }
    peaks
}

/// Bytes that the kernel tells of, in its own kB.
fn field(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).expect("readable");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a known field");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// West is seen at the first port and listens at the second.
fn deployment(ranks: (u32, u32), between: &Between, west: (u16, u16)) -> Deployment {
    let Between { rate, rtt, loss } = between;
    let mut fabric = "name = \"two\"\nmtu = 1500\n".to_owned();
    let mut files = Vec::new();
    let east = free_port();
    for (name, ranks, (wan, listens)) in [("east", ranks.0, (east, east)), ("west", ranks.1, west)]
    {
        let status = free_port();
        fabric += &format!(
            "[region.{name}]\nranks = {ranks}\n[region.{name}.gateway.{name}-0]\n\
             wan = \"127.0.0.1:{wan}\"\negress = \"{rate}\"\ningress = \"{rate}\"\n"
        );
        let text = format!(
            "fabric = \"fabric.toml\"\n[gateway.{name}-0]\nsocket = \"{name}.sock\"\n\
             listen = \"127.0.0.1:{listens}\"\nstatus = \"127.0.0.1:{status}\"\ncertificate = \"keys/{name}-0.pem\"\n\
             key = \"keys/{name}-0.key\"\nca = \"keys/ca.pem\"\nmemory = \"{BUDGET_BYTES} B\"\n\
             [job.train]\ntoken = \"keys/train.token\"\nmemory = \"16 GiB\"\n"
        );
        files.push((format!("{name}.toml"), text));
    }
    fabric += &format!("[link.east-west]\nrate = \"{rate}\"\nrtt = \"{rtt}\"\nloss = \"{loss}\"\n");
    files.push(("fabric.toml".to_owned(), fabric));
    Deployment::of_files(&files, &["train"])
}

async fn attach(deployment: &Deployment, east: u32, west: u32, bytes: u64) -> Vec<Client> {
    let arena = u64::from(COLLECTIVES) * 2 * bytes;
    let mut clients = Vec::new();
    for rank in 0..east + west {
        let region = if rank < east { "east" } else { "west" };
        let way = Way::Socket(deployment.path(&format!("{region}.sock")));
        let attach = Attach::new("train", deployment.token("train"), rank, arena);
        clients.push(Client::attach(&way, attach).await.expect("attaches"));
    }
    clients
}

/// All at once, each with the right sum.
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

/// 0, 1, 2, ... times `factor`, each more by `offset`.
fn numbers(bytes: u64, factor: u32, offset: u32) -> Vec<u8> {
    let mut numbers = Vec::with_capacity(bytes as usize);
    for index in 0..bytes as u32 / 4 {
        numbers.extend(index.wrapping_mul(factor).wrapping_add(offset).to_le_bytes());
    }
    numbers
}
