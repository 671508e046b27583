//! Whole gateways under virtual time: real sessions, real QUIC, simulated links.

pub mod collectives;
pub mod faults;
pub mod lab;
pub mod observe;

use gateway::client::{AttachError, Client, DEFAULT_TIMEOUT};
use gateway::local::job::JobSpec;
use gateway::observe::status::Status;
use gateway::simulate::Setup;
pub use gateway::simulate::{address, lan_address};
use gateway::wan::connect::addresses::LaneAddresses;
use gateway::wan::link::policy::LinkPolicy;
use hier_collectives::ids::GatewayId;
use hier_collectives::plan;
use hier_collectives::topology::{self, Fabric, RegionSpec, WanPort};
use lab::credentials::Papers;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::ops::Deref;
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
    /// Random loss each way in truth, where that is not what the fabric says.
    pub true_loss: Option<Fraction>,
    /// Order-preserving jitter each way.
    pub jitter: Span,
    /// IP MTU.
    pub mtu: u16,
    /// The longest IP packet that gets through, where lanes have to find out.
    pub path_mtu: Option<u16>,
    /// The longest IP packet that gateways know their interfaces to send, where they know.
    pub interface_mtu: Option<u16>,
    /// Memory of each gateway for partials.
    pub memory: ByteCount,
    /// Segments of this size instead of the plan's.
    pub segment: Option<ByteCount>,
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
            true_loss: None,
            jitter: Span::ZERO,
            mtu: 1500,
            path_mtu: None,
            interface_mtu: None,
            memory: ByteCount::new(64 << 20),
            segment: None,
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
    pub fn link(&self) -> LinkSpec {
        let delay = Span::from_ns(self.rtt.ns() / 2);
        let part = self.rate.bits_per_second() / u64::from(self.carriers);
        let spec = LinkSpec::new(BitRate::from_bits_per_second(part), delay).expect("a valid link");
        let jitter = Jitter { spread: self.jitter, ..Jitter::NONE };
        spec.with_loss(self.true_loss.unwrap_or(self.loss))
            .with_jitter(jitter)
            .expect("jitter below the delay")
    }
}

/// The job of a lab that has one.
pub const JOB: &str = "sim";
/// The token of every job.
pub const TOKEN: [u8; 32] = [7; 32];

/// Where a gateway is on one of several carriers; [`address`] is on the first.
pub fn carrier_address(gateway: GatewayId, carrier: u8) -> SocketAddr {
    let first = address(gateway);
    let IpAddr::V4(ip) = first.ip() else { return first };
    let [_, _, high, low] = ip.octets();
    // 10.1 is the LANs'.
    let second = if carrier == 0 { 0 } else { 1 + carrier };
    SocketAddr::new(Ipv4Addr::new(10, second, high, low).into(), first.port())
}

/// A loss ratio in parts per million.
pub fn ppm(parts: u32) -> Fraction {
    Fraction::from_ppb(parts * 1000).expect("at most one")
}

/// Memory of a job's arenas that no test comes near.
const JOB_MEMORY: ByteCount = ByteCount::new(16 << 30);

/// Jobs by name and weight, each with so much memory.
fn jobs_of(jobs: &[(&str, u32)], memory: ByteCount) -> Vec<JobSpec> {
    let job = |(name, weight): &(&str, u32)| JobSpec {
        name: (*name).to_owned(),
        token: TOKEN.into(),
        memory,
        weight: NonZeroU32::new(*weight).expect("a weight"),
    };
    jobs.iter().map(job).collect()
}

/// What the gateways of a shape have in common.
fn setup(shape: &Shape) -> Setup {
    let fabric = shape.fabric();
    let mut plan = plan::plan(&fabric).expect("a plan");
    plan.segment = shape.segment.unwrap_or(plan.segment);
    let lanes = |id: GatewayId| {
        let on_each = (0..shape.carriers).map(|carrier| carrier_address(id, carrier));
        LaneAddresses::several(&on_each.collect::<Vec<_>>()).expect("they differ")
    };
    let links = fabric.links().iter();
    Setup {
        plan,
        addresses: fabric.gateway_ids().map(lanes).collect(),
        jobs: jobs_of(&shape.jobs, JOB_MEMORY),
        memory: shape.memory,
        policies: links.map(|link| ((link.a, link.b), shape.policy.clone())).collect(),
        mtu_pinned: shape.path_mtu.is_none(),
        fabric,
    }
}

/// Runs a future to its end under a paused clock.
pub fn simulate<T>(future: impl Future<Output = T>) -> T {
    gateway::simulate::run(future).expect("a runtime")
}

/// Gateways and the links between them.
pub struct Lab(gateway::simulate::Lab);

impl Deref for Lab {
    type Target = gateway::simulate::Lab;
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Lab {
    /// Starts both gateways. Everything random comes from `seed`.
    pub async fn start(shape: &Shape, seed: u64) -> Self {
        Self::start_with(shape, seed, [Papers::Right; 2]).await
    }

    /// Starts both gateways, each with papers of its own.
    pub async fn start_with(shape: &Shape, seed: u64, papers: [Papers; 2]) -> Self {
        let net = VirtualNet::new();
        for carrier in 0..shape.carriers {
            let [east, west] = [0, 1].map(|id| carrier_address(GatewayId(id), carrier).ip());
            net.connect(east, west, shape.link(), shape.link(), seed + u64::from(carrier));
            if let Some(bytes) = shape.interface_mtu {
                [east, west].iter().for_each(|ip| net.set_interface_mtu(*ip, bytes));
            }
            if let Some(bytes) = shape.path_mtu {
                for (from, to) in [(east, west), (west, east)] {
                    net.set_mtu(from, to, bytes.into()).expect("a link");
                }
            }
        }
        let mut lab = gateway::simulate::Lab::new(setup(shape), net, seed);
        for (id, papers) in [GatewayId(0), GatewayId(1)].into_iter().zip(papers) {
            let papers = papers.of(&lab.fabric, id);
            lab.add_gateway(id, papers).await.expect("starts");
        }
        Self(lab)
    }

    /// Stops a gateway and starts it again with other papers.
    pub async fn restart(&mut self, me: GatewayId, papers: Papers) {
        let papers = papers.of(&self.fabric, me);
        self.0.restart(me, papers).await.expect("starts");
    }

    /// Stops a gateway and starts it again without a job.
    pub async fn drop_job(&mut self, me: GatewayId, job: &str) {
        let papers = Papers::Right.of(&self.fabric, me);
        self.0.drop_job(me, job, papers).await.expect("starts");
    }

    /// What a gateway says of itself.
    pub async fn status(&self, gateway: GatewayId) -> Status {
        self.0.status(gateway).await.expect("a status")
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
