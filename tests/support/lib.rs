//! Whole gateways under virtual time: real sessions, real QUIC, simulated links.

pub mod batch;
pub mod data;

use gateway::certs::{self, Order, Validity};
use gateway::client::{Attach, Client, Way};
use gateway::daemon::{Gateway, GatewaySpec};
use gateway::host::{Host, VirtualHost};
use gateway::local::door::{self, Knocker};
use gateway::local::server::Job;
use gateway::observe::metrics::Metrics;
use gateway::observe::status::StatusDoor;
use gateway::wan::tls::Credentials;
use hier_collectives::ids::{GatewayId, RankId};
use hier_collectives::topology::{self, Fabric, RegionSpec, WanPort};
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;
use units::{BitRate, ByteCount, Fraction, Span};
use wan_sim::{Jitter, LinkSpec, VirtualNet};

/// Two regions and the link between them.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Ranks of `east` and `west`.
    pub ranks: (u32, u32),
    /// Capacity each way, in IP bytes.
    pub rate: BitRate,
    /// Round-trip time.
    pub rtt: Span,
    /// Random loss each way.
    pub loss: Fraction,
    /// Order-preserving jitter each way.
    pub jitter: Span,
    /// IP MTU.
    pub mtu: u16,
    /// Memory of each gateway for partials.
    pub memory: ByteCount,
}

impl Shape {
    /// 1 Gbit/s, 80 ms, no loss, MTU 1500.
    pub fn new(east: u32, west: u32) -> Self {
        Self {
            ranks: (east, west),
            rate: BitRate::from_bits_per_second(1_000_000_000),
            rtt: Span::from_ms(80),
            loss: Fraction::default(),
            jitter: Span::ZERO,
            mtu: 1500,
            memory: ByteCount::new(64 << 20),
        }
    }

    /// The fabric it stands for.
    pub fn fabric(&self) -> Arc<Fabric> {
        let wan = Some(WanPort { egress: self.rate, ingress: self.rate });
        let region = |name: &str, ranks: u32| RegionSpec {
            name: name.to_owned(),
            speeds: vec![1.0; ranks as usize],
            gateways: vec![(format!("{name}-0"), ranks, wan)],
        };
        let link = topology::LinkSpec {
            between: ("east".to_owned(), "west".to_owned()),
            rate: self.rate,
            rtt: self.rtt,
            loss: self.loss,
        };
        let regions = vec![region("east", self.ranks.0), region("west", self.ranks.1)];
        Arc::new(Fabric::new("sim", self.mtu, regions, vec![link]).expect("a valid fabric"))
    }

    fn link(&self) -> LinkSpec {
        let delay = Span::from_ns(self.rtt.ns() / 2);
        let spec = LinkSpec::new(self.rate, delay).expect("a valid link");
        let jitter = Jitter { spread: self.jitter, ..Jitter::NONE };
        spec.with_loss(self.loss).with_jitter(jitter).expect("jitter below the delay")
    }
}

/// A simulated deployment.
pub struct Lab {
    /// Its network.
    pub net: VirtualNet,
    /// Its clock.
    pub host: Arc<dyn Host>,
    /// Its fabric.
    pub fabric: Arc<Fabric>,
    /// Its gateways, in order.
    pub gateways: Vec<Gateway>,
    knockers: Vec<Knocker>,
}

/// The token of the only job.
pub const TOKEN: [u8; 32] = [7; 32];

/// Where a gateway is in the simulated network.
pub fn address(gateway: GatewayId) -> SocketAddr {
    let last = u8::try_from(gateway.0 + 1).expect("few gateways");
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), 7400)
}

/// A loss ratio in parts per million.
pub fn ppm(parts: u32) -> Fraction {
    Fraction::from_ppb(parts * 1000).expect("at most one")
}

/// Runs a future to its end under a paused clock.
pub fn simulate<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(future)
}

impl Lab {
    /// Starts both gateways. Everything random comes from `seed`.
    pub async fn start(shape: &Shape, seed: u64) -> Self {
        let net = VirtualNet::new();
        let fabric = shape.fabric();
        let host: Arc<dyn Host> = Arc::new(VirtualHost::new(net.clone(), seed));
        let (east, west) = (address(GatewayId(0)).ip(), address(GatewayId(1)).ip());
        net.connect(east, west, shape.link(), shape.link(), seed);
        let mut lab = Self { net, host, fabric, gateways: vec![], knockers: vec![] };
        for id in lab.fabric.gateway_ids() {
            lab.add_gateway(id, shape.memory).await;
        }
        lab
    }

    async fn add_gateway(&mut self, me: GatewayId, memory: ByteCount) {
        let name = &self.fabric.gateway(me).name;
        let keys = keys();
        let file = |suffix: &str| keys.join(format!("{name}.{suffix}"));
        let credentials =
            Credentials::load(&file("pem"), &file("key"), &keys.join("ca.pem")).expect("keys");
        let others = self.fabric.gateway_ids().filter(|id| *id != me);
        let (door, knocker) = door::in_process();
        let (_, questions) = StatusDoor::new();
        let spec = GatewaySpec {
            fabric: Arc::clone(&self.fabric),
            identity: [1; 32],
            me,
            listen: address(me),
            addresses: others.map(|id| (id, address(id))).collect(),
            credentials,
            jobs: vec![Job {
                name: "sim".to_owned(),
                token: TOKEN,
                memory: ByteCount::new(16 << 30),
            }],
            memory,
        };
        let observed = (Arc::new(Metrics::new()), questions);
        let host = Arc::clone(&self.host);
        let gateway = Gateway::start(host, spec, Box::new(door), observed).await.expect("starts");
        self.gateways.push(gateway);
        self.knockers.push(knocker);
    }

    /// Attaches a rank.
    pub async fn client(&self, rank: u32, arena_bytes: u64) -> Client {
        let gateway = self.fabric.gateway_of(RankId(rank)).expect("a rank of the fabric");
        let way = Way::InProcess(self.knockers[usize::from(gateway.0)].clone());
        let attach = Attach::new("sim", TOKEN, rank, arena_bytes);
        Client::attach(&way, attach).await.expect("attaches")
    }

    /// Attaches every rank.
    pub async fn clients(&self, arena_bytes: u64) -> Vec<Client> {
        let mut clients = Vec::new();
        for rank in 0..self.fabric.world_size() {
            clients.push(self.client(rank, arena_bytes).await);
        }
        clients
    }
}

/// One set of keys for all simulations of this process: making them is slow, and of no
/// interest to what happens under virtual time.
fn keys() -> &'static Path {
    static KEYS: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = KEYS.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let fabric = Shape::new(1, 1).fabric();
        let order = Order { validity: Validity::days(30), jobs: &[], force: false };
        certs::make(&fabric, folder.path(), &order).expect("keys");
        folder
    });
    folder.path()
}
