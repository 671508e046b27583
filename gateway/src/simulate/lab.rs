//! A simulated deployment: gateways, their network, their clock.

use super::Papers;
use crate::client::{Attach, AttachError, Client, DEFAULT_TIMEOUT, Way};
use crate::daemon::{Gateway, GatewaySpec, Listen, Observability, StartError};
use crate::host::{Host, VirtualHost};
use crate::local::job::JobSpec;
use crate::local::listener::{self, InProcessConnector};
use crate::observe::metrics::Metrics;
use crate::observe::status::{NoStatus, Status, StatusDoor};
use crate::wan::connect::addresses::LaneAddresses;
use crate::wan::link::policy::Policies;
use hier_collectives::ids::{GatewayId, RankId};
use hier_collectives::plan::Plan;
use hier_collectives::topology::Fabric;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use units::{ByteCount, Span};
use wan_sim::VirtualNet;

/// What the gateways of a lab have in common.
#[derive(Clone)]
pub struct Setup {
    /// The deployment.
    pub fabric: Arc<Fabric>,
    /// What its gateways do.
    pub plan: Plan,
    /// Where the lanes of each gateway are, in order.
    pub addresses: Vec<LaneAddresses>,
    /// The jobs.
    pub jobs: Vec<JobSpec>,
    /// Memory of each gateway for partials.
    pub memory: ByteCount,
    /// How links are used.
    pub policies: Policies,
    /// Whether packets are as long as the fabric says, and not as what gets through.
    pub mtu_pinned: bool,
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
    setup: Setup,
    doors: Vec<(InProcessConnector, StatusDoor, Arc<Metrics>)>,
}

/// Where a gateway is in a simulated network, by default.
pub fn address(gateway: GatewayId) -> SocketAddr {
    let [high, low] = (gateway.0 + 1).to_be_bytes();
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, high, low)), 7400)
}

/// Where the other gateways of its region reach it.
pub fn lan_address(gateway: GatewayId) -> SocketAddr {
    let [high, low] = (gateway.0 + 1).to_be_bytes();
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 1, high, low)), 7400)
}

/// What a simulated gateway is made of.
pub fn gateway_spec(setup: &Setup, me: GatewayId, papers: Papers) -> GatewaySpec {
    let at = |id: GatewayId| setup.addresses[usize::from(id.0)].clone();
    let has_port = |id: GatewayId| setup.fabric.gateway(id).wan.is_some();
    let others = || setup.fabric.gateway_ids().filter(|id| *id != me);
    let ports = others().filter(|id| has_port(*id));
    GatewaySpec {
        fabric: Arc::clone(&setup.fabric),
        identity: papers.identity,
        me,
        listen: Listen {
            wan: has_port(me).then(|| at(me)),
            lan: Some(lan_address(me).into()),
            one_by_one: false,
        },
        addresses: ports.map(|id| (id, at(id))).collect(),
        lan_addresses: others().map(|id| (id, lan_address(id).into())).collect(),
        mtu_pinned: setup.mtu_pinned,
        credentials: papers.credentials,
        jobs: setup.jobs.clone(),
        memory: setup.memory,
        plan: setup.plan.clone(),
        policies: setup.policies.clone(),
    }
}

impl Lab {
    /// A lab without gateways on a network whose links are laid. Everything random of its
    /// gateways comes from `seed`.
    pub fn new(setup: Setup, net: VirtualNet, seed: u64) -> Self {
        let host: Arc<dyn Host> = Arc::new(VirtualHost::new(net.clone(), seed));
        let fabric = Arc::clone(&setup.fabric);
        Self { net, host, fabric, gateways: Vec::new(), setup, doors: Vec::new() }
    }

    /// Starts a gateway; those before it run.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn add_gateway(&mut self, me: GatewayId, papers: Papers) -> Result<(), StartError> {
        let (door, knocker) = listener::in_process();
        let (status, questions) = StatusDoor::new();
        let spec = gateway_spec(&self.setup, me, papers);
        let metrics = Arc::new(Metrics::new());
        let observed = Observability { metrics: Arc::clone(&metrics), status_requests: questions };
        let host = Arc::clone(&self.host);
        let gateway = Gateway::start(host, spec, Box::new(door), observed).await?;
        let index = self.gateways.len().min(usize::from(me.0));
        self.gateways.insert(index, gateway);
        self.doors.insert(index, (knocker, status, metrics));
        Ok(())
    }

    /// Stops a gateway and starts it again with other papers.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn restart(&mut self, me: GatewayId, papers: Papers) -> Result<(), StartError> {
        let index = usize::from(me.0);
        self.gateways.remove(index).shut_down().await;
        self.doors.remove(index);
        // Its sockets are free once its peers have had time to answer.
        self.sleep(Span::from_secs(30)).await;
        self.add_gateway(me, papers).await
    }

    /// Stops a gateway and starts it again without a job.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn drop_job(
        &mut self,
        me: GatewayId,
        job: &str,
        papers: Papers,
    ) -> Result<(), StartError> {
        let all = self.setup.jobs.clone();
        self.setup.jobs.retain(|kept| kept.name != job);
        let restarted = self.restart(me, papers).await;
        self.setup.jobs = all;
        restarted
    }

    /// What a gateway says of itself.
    ///
    /// # Errors
    /// It is busy or gone.
    pub async fn status(&self, gateway: GatewayId) -> Result<Status, NoStatus> {
        self.doors[usize::from(gateway.0)].1.ask().await
    }

    /// What a gateway counts.
    pub fn metrics(&self, gateway: GatewayId) -> &Metrics {
        &self.doors[usize::from(gateway.0)].2
    }

    /// Lets time pass.
    pub async fn sleep(&self, span: Span) {
        self.host.sleep_until(self.host.now() + span).await;
    }

    /// Cuts all links both ways, or joins them again.
    pub fn cut(&self, cut: bool) {
        self.fabric.gateway_ids().for_each(|from| self.cut_from(from, cut));
    }

    /// Cuts what goes out from a gateway, or joins it again.
    pub fn cut_from(&self, from: GatewayId, cut: bool) {
        let all = |id: GatewayId| self.setup.addresses[usize::from(id.0)].all();
        for to in self.fabric.gateway_ids().filter(|to| *to != from) {
            for (from, to) in all(from).zip(all(to)) {
                // Where there is no link there is nothing to cut.
                let _ = self.net.set_blackhole(from.ip(), to.ip(), cut);
            }
        }
    }

    /// Where a gateway's first lane is.
    pub fn address(&self, id: GatewayId) -> SocketAddr {
        self.setup.addresses[usize::from(id.0)].first()
    }

    /// The way to the gateway of a rank, for trainers that are to see their results.
    pub fn knocker(&self, rank: u32) -> Option<&InProcessConnector> {
        let gateway = self.fabric.gateway_of(RankId(rank))?;
        self.doors.get(usize::from(gateway.0)).map(|(knocker, ..)| knocker)
    }

    /// Attaches a rank of a job, waiting at most `patience` for the gateways to meet.
    ///
    /// # Errors
    /// As [`Client::attach`].
    ///
    /// # Panics
    /// When the fabric has no such rank.
    pub async fn attach_to(
        &self,
        job: &str,
        rank: u32,
        arena_bytes: u64,
        patience: Span,
    ) -> Result<Client, AttachError> {
        let knocker = self.knocker(rank).expect("a rank of the fabric").clone();
        self.attach_by(&Way::InProcess(knocker), (job, rank), arena_bytes, patience).await
    }

    /// Attaches a rank whose memory is much smaller than it says, for simulations of sizes and
    /// times: what it holds is of no account.
    ///
    /// # Errors
    /// As [`Client::attach`].
    ///
    /// # Panics
    /// When the fabric has no such rank.
    pub async fn attach_folded(
        &self,
        job: &str,
        rank: u32,
        arena_bytes: u64,
    ) -> Result<Client, AttachError> {
        let knocker = self.knocker(rank).expect("a rank of the fabric").clone();
        self.attach_by(&Way::Folded(knocker), (job, rank), arena_bytes, DEFAULT_TIMEOUT).await
    }

    async fn attach_by(
        &self,
        way: &Way,
        (job, rank): (&str, u32),
        arena_bytes: u64,
        patience: Span,
    ) -> Result<Client, AttachError> {
        let token = self.setup.jobs.iter().find(|known| known.name == job).map(|job| job.token);
        // A job that is not there has no token: the gateway says so.
        let token = token.unwrap_or_else(|| [0; 32].into());
        let attach = Attach { patience, ..Attach::new(job, token, rank, arena_bytes) };
        Client::attach(way, attach).await
    }
}
