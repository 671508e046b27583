//! Whole gateways under virtual time: real sessions, real QUIC, simulated links.

pub mod batch;
pub mod data;
pub mod faults;
pub mod papers;

use gateway::client::{Attach, AttachError, Client, DEFAULT_TIMEOUT, Way};
use gateway::daemon::{Gateway, GatewaySpec};
use gateway::host::{Host, VirtualHost};
use gateway::local::door::{self, Knocker};
use gateway::local::server::Job;
use gateway::observe::metrics::Metrics;
use gateway::observe::status::{Status, StatusDoor};
use gateway::wan::addresses::LaneAddresses;
use gateway::wan::policy::{LinkPolicy, Policies};
use hier_collectives::ids::{GatewayId, RankId};
use hier_collectives::topology::{self, Fabric, RegionSpec, WanPort};
use papers::Papers;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
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
    /// Random loss each way, as the fabric says.
    pub loss: Fraction,
    /// Random loss each way of which the fabric knows nothing; the larger one holds.
    pub unannounced_loss: Fraction,
    /// Order-preserving jitter each way.
    pub jitter: Span,
    /// IP MTU.
    pub mtu: u16,
    /// Memory of each gateway for partials.
    pub memory: ByteCount,
    /// Jobs, each with its weight.
    pub jobs: Vec<(&'static str, u32)>,
    /// How the link is used.
    pub policy: LinkPolicy,
    /// Addresses of each gateway, with a link between each pair of equal place, each with its
    /// part of the rate.
    pub carriers: u8,
}

impl Shape {
    /// 1 Gbit/s, 80 ms, no loss, MTU 1500.
    pub fn new(east: u32, west: u32) -> Self {
        Self {
            ranks: (east, west),
            rate: BitRate::from_bits_per_second(1_000_000_000),
            rtt: Span::from_ms(80),
            loss: Fraction::default(),
            unannounced_loss: Fraction::default(),
            jitter: Span::ZERO,
            mtu: 1500,
            memory: ByteCount::new(64 << 20),
            jobs: vec![(JOB, 1)],
            policy: LinkPolicy::default(),
            carriers: 1,
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

    /// One direction of its link.
    fn link(&self) -> LinkSpec {
        let delay = Span::from_ns(self.rtt.ns() / 2);
        let part = self.rate.bits_per_second() / u64::from(self.carriers);
        let spec = LinkSpec::new(BitRate::from_bits_per_second(part), delay).expect("a valid link");
        let jitter = Jitter { spread: self.jitter, ..Jitter::NONE };
        spec.with_loss(self.loss.max(self.unannounced_loss))
            .with_jitter(jitter)
            .expect("jitter below the delay")
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
    memory: ByteCount,
    jobs: Vec<Job>,
    policy: LinkPolicy,
    carriers: u8,
    doors: Vec<(Knocker, StatusDoor)>,
}

/// The job of a lab that has one.
pub const JOB: &str = "sim";
/// The token of every job.
pub const TOKEN: [u8; 32] = [7; 32];

/// Where a gateway is in the simulated network.
pub fn address(gateway: GatewayId) -> SocketAddr {
    let last = u8::try_from(gateway.0 + 1).expect("few gateways");
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), 7400)
}

/// Where a gateway is on one of several carriers; [`address`] is on the first.
pub fn carrier_address(gateway: GatewayId, carrier: u8) -> SocketAddr {
    let last = u8::try_from(gateway.0 + 1).expect("few gateways");
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, carrier, last)), 7400)
}

/// A loss ratio in parts per million.
pub fn ppm(parts: u32) -> Fraction {
    Fraction::from_ppb(parts * 1000).expect("at most one")
}

/// The jobs of a shape.
fn jobs(shape: &Shape) -> Vec<Job> {
    let job = |(name, weight): &(&str, u32)| Job {
        name: (*name).to_owned(),
        token: TOKEN.into(),
        memory: ByteCount::new(16 << 30),
        weight: NonZeroU32::new(*weight).expect("a weight"),
    };
    shape.jobs.iter().map(job).collect()
}

/// What a simulated gateway is made of.
fn deployment(
    fabric: &Arc<Fabric>,
    me: GatewayId,
    papers: Papers,
    (jobs, memory): (Vec<Job>, ByteCount),
) -> GatewaySpec {
    let others = fabric.gateway_ids().filter(|id| *id != me);
    GatewaySpec {
        fabric: Arc::clone(fabric),
        identity: papers.fabric_identity(),
        me,
        listen: address(me).into(),
        addresses: others.map(|id| (id, address(id).into())).collect(),
        mtu_pinned: true,
        credentials: papers.credentials(fabric, me),
        jobs,
        memory,
        segment: None,
        policies: Policies::new(),
    }
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
        Self::start_with(shape, seed, [Papers::Right; 2]).await
    }

    /// Starts both gateways, each with papers of its own.
    pub async fn start_with(shape: &Shape, seed: u64, papers: [Papers; 2]) -> Self {
        let net = VirtualNet::new();
        let fabric = shape.fabric();
        let host: Arc<dyn Host> = Arc::new(VirtualHost::new(net.clone(), seed));
        for carrier in 0..shape.carriers {
            let [east, west] = [0, 1].map(|id| carrier_address(GatewayId(id), carrier).ip());
            net.connect(east, west, shape.link(), shape.link(), seed + u64::from(carrier));
        }
        let memory = shape.memory;
        let jobs = jobs(shape);
        let (policy, carriers) = (shape.policy.clone(), shape.carriers);
        let (gateways, doors) = (vec![], vec![]);
        let mut lab = Self { net, host, fabric, gateways, memory, jobs, policy, carriers, doors };
        for (id, papers) in lab.fabric.gateway_ids().zip(papers) {
            lab.add_gateway(id, papers).await;
        }
        lab
    }

    /// Stops a gateway and starts it again with other papers.
    pub async fn restart(&mut self, me: GatewayId, papers: Papers) {
        let index = usize::from(me.0);
        self.gateways.remove(index).shut_down().await;
        self.doors.remove(index);
        // Its sockets are free once its peers have had time to answer.
        self.sleep(Span::from_secs(30)).await;
        self.add_gateway(me, papers).await;
    }

    /// Stops a gateway and starts it again without a job.
    pub async fn drop_job(&mut self, me: GatewayId, job: &str) {
        let all = self.jobs.clone();
        self.jobs.retain(|kept| kept.name != job);
        self.restart(me, Papers::Right).await;
        self.jobs = all;
    }

    async fn add_gateway(&mut self, me: GatewayId, papers: Papers) {
        let (door, knocker) = door::in_process();
        let (status, questions) = StatusDoor::new();
        let mut spec = deployment(&self.fabric, me, papers, (self.jobs.clone(), self.memory));
        let lanes = |id: GatewayId| {
            let on_each = (0..self.carriers).map(|carrier| carrier_address(id, carrier));
            LaneAddresses::several(&on_each.collect::<Vec<_>>()).expect("they differ")
        };
        spec.listen = lanes(me);
        spec.addresses.iter_mut().for_each(|(id, addresses)| *addresses = lanes(*id));
        let links = self.fabric.links().iter();
        spec.policies = links.map(|link| ((link.a, link.b), self.policy.clone())).collect();
        let observed = (Arc::new(Metrics::new()), questions);
        let host = Arc::clone(&self.host);
        let gateway = Gateway::start(host, spec, Box::new(door), observed).await.expect("starts");
        let index = self.gateways.len().min(usize::from(me.0));
        self.gateways.insert(index, gateway);
        self.doors.insert(index, (knocker, status));
    }

    /// What a gateway says of itself.
    pub async fn status(&self, gateway: GatewayId) -> Status {
        self.doors[usize::from(gateway.0)].1.ask().await.expect("a status")
    }

    /// Lets time pass.
    pub async fn sleep(&self, span: Span) {
        self.host.sleep_until(self.host.now() + span).await;
    }

    /// Cuts the link both ways, or joins it again.
    pub fn cut(&self, cut: bool) {
        self.cut_from(GatewayId(0), cut);
        self.cut_from(GatewayId(1), cut);
    }

    /// Cuts what goes out from one of the two gateways, or joins it again.
    pub fn cut_from(&self, from: GatewayId, cut: bool) {
        let to = address(GatewayId(1 - from.0)).ip();
        self.net.set_blackhole(address(from).ip(), to, cut).expect("a link");
    }

    /// Attaches a rank of [`JOB`], waiting at most `patience` for the gateways to meet.
    ///
    /// # Errors
    /// As [`Client::attach`].
    pub async fn attach(
        &self,
        rank: u32,
        arena_bytes: u64,
        patience: Span,
    ) -> Result<Client, AttachError> {
        self.attach_to(JOB, rank, arena_bytes, patience).await
    }

    /// Attaches a rank of a job.
    ///
    /// # Errors
    /// As [`Client::attach`].
    pub async fn attach_to(
        &self,
        job: &str,
        rank: u32,
        arena_bytes: u64,
        patience: Span,
    ) -> Result<Client, AttachError> {
        let gateway = self.fabric.gateway_of(RankId(rank)).expect("a rank of the fabric");
        let way = Way::InProcess(self.doors[usize::from(gateway.0)].0.clone());
        let attach = Attach { patience, ..Attach::new(job, TOKEN, rank, arena_bytes) };
        Client::attach(&way, attach).await
    }

    /// Attaches a rank.
    pub async fn client(&self, rank: u32, arena_bytes: u64) -> Client {
        self.attach(rank, arena_bytes, DEFAULT_TIMEOUT).await.expect("attaches")
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
