//! Gateways and trainers that are started within 20 s, in any order, need no operator.

use gateway::client::{AttachOptions, Client, GatewayAddress};
use gateway::observe::status::PeerState;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use scenarios::collectives::batch::{Case, outcomes, post, post_all};
use scenarios::collectives::data::SplitMix64;
use scenarios::lab::expected::expected;
use scenarios::lab::mesh::{Mesh, MeshGateway};
use scenarios::observe::log_capture::Log;
use scenarios::{JOB, Lab, TOKEN, mbit, ppm, simulate};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::task::JoinHandle;
use units::Span;

/// 100 start orders, each from its own seed.
const SEEDS: u64 = 100;
/// 20,000 ms: the latest start of a gateway or trainer.
const START_MAX_MS: u64 = 20_000;
/// 2,000 ms: the longest pause of a trainer between two attempts to attach.
const RETRY_MAX_MS: u64 = 2_000;
/// 15 s: the longest time from the last start to the first result on every rank.
const MET_WITHIN: Span = Span::from_secs(15);
/// 45 s: problems that last so long are logged and in the status.
const LASTING: Span = Span::from_secs(45);
/// Bytes of the arena of a rank.
const ARENA_BYTES: u64 = 1 << 20;

/// A process that is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Process {
    Gateway(GatewayId),
    Trainer(u32),
}

/// A fabric, and the times in milliseconds at which its processes are started, in order.
#[derive(Debug)]
struct StartOrder {
    mesh: Mesh,
    starts: Vec<(u64, Process)>,
}

/// A trainer's client, and the bytes of its sum.
type Trained = (Client, Vec<u8>);

impl StartOrder {
    /// Draws two to four regions of one gateway or two, and a start for each gateway and trainer.
    fn draw(seed: u64) -> Self {
        let mut dice = SplitMix64(seed);
        let regions = 2 + dice.roll() % 3;
        let mut region = || -> Vec<MeshGateway> {
            let with_two = dice.roll().is_multiple_of(3);
            let mut gateways =
                vec![MeshGateway::with_port(1 + (dice.roll() % 2) as u32, mbit(500))];
            match (with_two, dice.roll().is_multiple_of(2)) {
                (true, true) => gateways.push(MeshGateway::sidecar(1)),
                (true, false) => gateways.push(MeshGateway::with_port(1, mbit(300))),
                (false, _) => {}
            }
            gateways
        };
        let gateways = (0..regions).map(|_| region()).collect();
        let loss = if dice.roll().is_multiple_of(2) { ppm(0) } else { ppm(1000) };
        let mesh = Mesh { loss, ..Mesh::of_gateways(gateways) };
        let fabric = mesh.fabric();
        let mut starts = Vec::new();
        for id in fabric.gateway_ids() {
            let gateway_ms = dice.roll() % (START_MAX_MS + 1);
            starts.push((gateway_ms, Process::Gateway(id)));
            for rank in fabric.gateway(id).ranks.clone() {
                let trainer_ms = dice.roll() % (START_MAX_MS + 1);
                // A trainer that comes before its gateway tries again.
                let found_ms = gateway_ms + 1 + dice.roll() % RETRY_MAX_MS;
                let at = if trainer_ms <= gateway_ms { found_ms } else { trainer_ms };
                starts.push((at, Process::Trainer(rank)));
            }
        }
        starts.sort();
        Self { mesh, starts }
    }

    /// Starts all processes. Each trainer all-reduces as soon as it is attached. Returns the
    /// clients by rank, and asserts that all results came soon after the last start.
    async fn start(&self, lab: &mut Lab) -> Vec<Client> {
        let (begun, case) = (lab.host.now(), Case::new(ReduceOp::Sum, Dtype::F32, 1003, 1));
        let mut trainers: Vec<(u32, JoinHandle<Trained>)> = Vec::new();
        for (at_ms, process) in &self.starts {
            lab.host.sleep_until(begun + Span::from_ms(*at_ms)).await;
            match process {
                Process::Gateway(id) => lab.start_gateway(*id).await,
                Process::Trainer(rank) => {
                    let connector = lab.connector(*rank).expect("its gateway runs").clone();
                    let way = GatewayAddress::InProcess(connector);
                    let options = AttachOptions::new(JOB, TOKEN, *rank, ARENA_BYTES);
                    let train = async move {
                        let client = Client::attach(&way, options).await.expect("attaches");
                        let mut operations = [post(&client, &case).await];
                        let outcome = outcomes(&mut operations).await.remove(0);
                        (client, outcome.expect("a sum"))
                    };
                    trainers.push((*rank, tokio::spawn(train)));
                }
            }
        }
        let last = lab.host.now();
        trainers.sort_by_key(|(rank, _)| *rank);
        let expected = expected(&self.mesh.fabric(), &self.mesh.plan(), &case);
        let mut clients = Vec::new();
        for (rank, trainer) in trainers {
            let (client, sum) = trainer.await.expect("no panic");
            assert!(sum == expected, "rank {rank} has other bits");
            clients.push(client);
        }
        let took = lab.host.now().since(last);
        assert!(took <= MET_WITHIN, "{took} from the last start to the last result");
        clients
    }
}

/// Asserts that a gateway has all lanes, an epoch, no problem and no alarm.
async fn assert_sound(lab: &Lab, gateway: GatewayId) {
    let status = lab.status(gateway).await;
    assert!(status.problems.is_empty(), "{status:?}");
    assert!(status.jobs.iter().all(|job| job.epoch.is_some()), "{status:?}");
    for peer in &status.peers {
        assert_eq!((peer.lanes_up, peer.state), (peer.lanes, PeerState::Up), "{status:?}");
        assert!(!peer.loss_alarm, "{status:?}");
    }
    let metrics = lab.metrics(gateway).render();
    let raised = |line: &&str| line.starts_with("landbridge_loss_alarms") && !line.ends_with(" 0");
    assert_eq!(metrics.lines().find(raised), None);
    assert!(metrics.contains("landbridge_ready 1"), "{metrics}");
}

/// Runs a start order to its end. No line of any log may be a warning or an error.
fn run(seed: u64) {
    let order = StartOrder::draw(seed);
    let log = Log::default();
    let _logging = log.listen();
    simulate(async {
        let mut lab = order.mesh.without_gateways(seed);
        let clients = order.start(&mut lab).await;
        lab.sleep(LASTING).await;
        for id in lab.fabric.gateway_ids() {
            assert_sound(&lab, id).await;
        }
        let case = Case::new(ReduceOp::Sum, Dtype::F32, 2003, seed);
        let expected = expected(&order.mesh.fabric(), &order.mesh.plan(), &case);
        for outcome in outcomes(&mut post_all(&clients, &case).await).await {
            assert!(outcome.expect("a sum") == expected, "other bits");
        }
    });
    let warned = |line: &&str| line.contains(" WARN ") || line.contains("ERROR");
    // The memory of the gateways of all simulations is small.
    let others = |line: &&str| warned(line) && !line.contains("`memory`");
    assert_eq!(log.text().lines().find(others), None);
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn start_orders_within_20_s_raise_no_alarm() {
    let next = AtomicU64::new(1);
    let run_some = || {
        let mut failed = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > SEEDS {
                return failed;
            }
            // The panic says what was wrong; the seed repeats it.
            if std::panic::catch_unwind(|| run(seed)).is_err() {
                failed.push((seed, StartOrder::draw(seed)));
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let failed: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(run_some)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic outside")).collect()
    });
    assert!(failed.is_empty(), "seeds with their start orders: {failed:?}");
}
