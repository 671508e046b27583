//! A fabric under way, and what collectives on it take.

use super::network::region_address;
use super::{Keys, Lab, Network, Setup, SimulateError};
use crate::client::{Client, DEFAULT_TIMEOUT, Operation};
use crate::local::job::JobSpec;
use crate::wan::link::policy::Policies;
use hier_collectives::descriptor::{Dtype, Pattern, ReduceOp};
use hier_collectives::ids::{GatewayId, RegionId};
use hier_collectives::plan::{self, Plan};
use hier_collectives::topology::Fabric;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use units::{ByteCount, Span, TimeNs};
use wan_sim::{Counters, VirtualNet};

/// What is simulated.
#[derive(Clone)]
pub struct Deployment {
    /// The deployment.
    pub fabric: Arc<Fabric>,
    /// What its gateways do.
    pub plan: Plan,
    /// Where each gateway is, in order.
    pub addresses: Vec<SocketAddr>,
    /// The links between these addresses.
    pub network: Network,
}

/// A deployment whose gateways have met.
pub struct Simulation {
    lab: Lab,
    clients: Vec<Client>,
    network: Network,
    seed: u64,
}

/// A collective of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Post {
    /// When all ranks post it, from the start of the sequence.
    pub after: Span,
    /// Its buffer.
    pub bytes: ByteCount,
    /// Who gives and who gets.
    pub pattern: Pattern,
}

/// What a link saw, one way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkSeen {
    /// From this region
    pub from: RegionId,
    /// to this one.
    pub to: RegionId,
    /// Packets, as the link counted them.
    pub counters: Counters,
    /// First-sent payload, as its sender counted it.
    pub payload: ByteCount,
    /// The most that ever waited.
    pub queue_peak: ByteCount,
}

impl Deployment {
    /// The job that all ranks are of.
    pub const JOB: &str = "simulation";

    /// A fabric as it is, with its own plan.
    ///
    /// # Errors
    /// [`SimulateError`]: what cannot be simulated.
    pub fn of(fabric: Fabric, plan: Plan) -> Result<Self, SimulateError> {
        let seat = |id: GatewayId| {
            let mut address = region_address(&fabric, fabric.gateway(id).region);
            let first = fabric.region(fabric.gateway(id).region).gateways.start;
            address.set_port(address.port() + PORTS * (id.0 - first));
            address
        };
        let addresses = fabric.gateway_ids().map(seat).collect();
        let network = Network::of(&fabric)?;
        Ok(Self { fabric: Arc::new(fabric), plan, addresses, network })
    }

    /// About what it takes to simulate collectives of `bytes` at most: what is under way and
    /// waits on each link, what gateways hold, and what their connections do.
    fn memory(&self, bytes: ByteCount) -> ByteCount {
        let fabric = &self.fabric;
        let lanes = u64::from(plan::lanes(fabric));
        let links = fabric.links().iter().map(|link| {
            let under_way = 3 * link.bdp().get().min(bytes.get());
            2 * (under_way + lanes * CONNECTION_BYTES)
        });
        let forecast = self.plan.forecast(fabric, plan::Operation::AllReduce, bytes);
        let held = forecast.gateways.iter().map(|load| load.held.get() + MEMORY.get());
        let ranks = u64::from(fabric.world_size()) * (2 * bytes.get() / 256 + (1 << 20));
        ByteCount::new(links.sum::<u64>() + held.sum::<u64>() + ranks)
    }

    /// Its gateways, for ranks whose memory is whole. Everything random comes from `seed`.
    ///
    /// # Errors
    /// [`SimulateError`].
    pub async fn lab(self, seed: u64) -> Result<Lab, SimulateError> {
        let Self { fabric, plan, addresses, network } = self;
        let net = VirtualNet::new();
        network.lay(&net, seed);
        let job = JobSpec {
            name: Self::JOB.to_owned(),
            token: [7; 32].into(),
            // It is folded, or small.
            memory: ByteCount::new(u64::MAX),
            weight: NonZeroU32::MIN,
        };
        let keys = Keys::make(&fabric)?;
        let setup = Setup {
            fabric: Arc::clone(&fabric),
            plan,
            addresses: addresses.into_iter().map(Into::into).collect(),
            jobs: vec![job],
            memory: MEMORY,
            policies: Policies::new(),
            mtu_pinned: true,
        };
        let mut lab = Lab::new(setup, net, seed);
        for id in fabric.gateway_ids() {
            lab.add_gateway(id, keys.papers(&fabric, id)?).await?;
        }
        Ok(lab)
    }

    fn check(&self, bytes: ByteCount) -> Result<(), SimulateError> {
        let (needed, limit) = (self.memory(bytes), MEMORY_MAX);
        if needed > limit {
            return Err(SimulateError::TooLarge { needed, limit });
        }
        Ok(())
    }
}

impl Simulation {
    /// Starts all gateways and attaches all ranks, each with room for `room` bytes of buffers
    /// at once. Everything random comes from `seed`. Call it, and all else, inside
    /// [`run`](super::run).
    ///
    /// # Errors
    /// [`SimulateError`].
    pub async fn start(
        deployment: Deployment,
        room: ByteCount,
        seed: u64,
    ) -> Result<Self, SimulateError> {
        deployment.check(room)?;
        let network = deployment.network.clone();
        let lab = deployment.lab(seed).await?;
        // A slot's ends are rounded up to whole cache lines.
        let arena = 2 * room.get() + SLOTS_BYTES;
        let mut clients = Vec::new();
        for rank in 0..lab.fabric.world_size() {
            clients.push(lab.attach_folded(Deployment::JOB, rank, arena).await?);
        }
        let simulation = Self { lab, clients, network, seed };
        simulation.settle().await;
        Ok(simulation)
    }

    /// Lets what is under way arrive, and lays the links anew: their counters begin at zero.
    async fn settle(&self) {
        let longest = self.lab.fabric.links().iter().map(|link| link.rtt).max();
        let rtt = longest.unwrap_or(Span::ZERO);
        // All lanes are up a few round trips after the first.
        self.lab.sleep(Span::from_ns(10 * rtt.ns()) + Span::from_secs(1)).await;
        self.network.lay(&self.lab.net, self.seed);
    }

    /// The time.
    pub fn now(&self) -> TimeNs {
        self.lab.host.now()
    }

    /// First-sent payload so far, from each gateway to each other one.
    pub fn sent(&self) -> BTreeMap<(GatewayId, GatewayId), u64> {
        let gateways = self.lab.fabric.gateway_ids().zip(&self.lab.gateways);
        let to_each = gateways.flat_map(|(from, gateway)| {
            let peers = gateway.peers.iter();
            peers.map(move |(to, peer)| ((from, *to), peer.metrics.sent_bytes.get()))
        });
        to_each.collect()
    }

    /// Runs a sequence of collectives, posts in order of time, all ranks at once; returns when
    /// each was done on all ranks, from the start of the sequence. `meanwhile` is called every
    /// 50 ms of it.
    ///
    /// # Errors
    /// [`SimulateError`].
    pub async fn collectives(
        &self,
        posts: &[Post],
        dtype: Dtype,
        mut meanwhile: impl FnMut(),
    ) -> Result<Vec<Span>, SimulateError> {
        let begin = self.now();
        let each = async {
            let mut under_way: Vec<Vec<Operation>> = Vec::new();
            let mut done = Vec::new();
            for post in posts {
                self.lab.host.sleep_until(begin + post.after).await;
                under_way.push(self.post(post, dtype).await?);
            }
            for operations in &mut under_way {
                let mut last = begin;
                for operation in operations {
                    last = last.max(operation.ready().await?.ready);
                }
                done.push(last.since(begin));
            }
            Ok::<_, SimulateError>(done)
        };
        tokio::pin!(each);
        loop {
            tokio::select! {
                biased;
                done = &mut each => return done,
                () = self.lab.sleep(MEANWHILE_EVERY) => meanwhile(),
            }
        }
    }

    async fn post(&self, post: &Post, dtype: Dtype) -> Result<Vec<Operation>, SimulateError> {
        let elements = post.bytes.get() / dtype.size();
        let what = (post.pattern, ReduceOp::Sum);
        let mut operations = Vec::new();
        for client in &self.clients {
            let tensor = client.allocate(dtype, elements)?;
            operations.push(client.post(tensor, what, 1.0, DEFAULT_TIMEOUT).await?);
        }
        Ok(operations)
    }

    /// What each link saw since the gateways met, each way.
    ///
    /// # Errors
    /// [`SimulateError::NoLink`].
    pub fn links(&self) -> Result<Vec<LinkSeen>, SimulateError> {
        let region = |id: GatewayId| self.lab.fabric.gateway(id).region;
        let mut payloads = BTreeMap::new();
        for ((from, to), bytes) in self.sent() {
            if region(from) != region(to) {
                *payloads.entry((region(from), region(to))).or_insert(0) += bytes;
            }
        }
        let seen = payloads.into_iter().map(|((from, to), bytes)| {
            let [here, there] = [from, to].map(|id| region_address(&self.lab.fabric, id).ip());
            let (counters, queue_peak) = self.between(here, there)?;
            Ok(LinkSeen { from, to, counters, payload: ByteCount::new(bytes), queue_peak })
        });
        seen.collect()
    }

    /// What the link between two addresses saw, one way, and the most that waited.
    ///
    /// # Errors
    /// [`SimulateError::NoLink`].
    pub fn between(
        &self,
        from: IpAddr,
        to: IpAddr,
    ) -> Result<(Counters, ByteCount), SimulateError> {
        let net = &self.lab.net;
        Ok((net.counters(from, to)?, net.queue_bytes_peak(from, to)?))
    }
}

/// UDP ports from one gateway of a region to the next: room for the most lanes.
const PORTS: u16 = 32;

/// Each gateway's memory for partials.
const MEMORY: ByteCount = ByteCount::new(64 << 20);

/// What a simulation may need in all, so that it fits beside other work.
const MEMORY_MAX: ByteCount = ByteCount::new(8 << 30);

/// What one end of a connection holds, about.
const CONNECTION_BYTES: u64 = 256 << 10;

/// What slots may take beside their buffers.
const SLOTS_BYTES: u64 = 1 << 20;

/// In virtual time.
const MEANWHILE_EVERY: Span = Span::from_ms(50);
