//! Two gateways at work under virtual time, and the link between them.

use super::credentials::CredentialKind;
use super::jobs::{JOB, JOB_MEMORY, TOKEN, jobs_of};
use super::shape::{Shape, carrier_address, mbit};
use gateway::client::{AttachError, AttachOptions, Client, DEFAULT_TIMEOUT, GatewayAddress};
use gateway::observe::status::GatewayReport;
use gateway::simulate::{FabricSetup, simulated_address};
use gateway::wan::connect::lane_addresses::LaneAddresses;
use gateway::wan::link_trace::LinkTrace;
use hier_collectives::ids::GatewayId;
use hier_collectives::membership::FabricVersion;
use hier_collectives::plan;
use std::future::Future;
use std::net::SocketAddr;
use std::ops::Deref;
use units::Span;
use wan_sim::{LinkSpec, VirtualNet};

/// The setup that the gateways of a shape share.
pub(crate) fn setup(shape: &Shape) -> FabricSetup {
    let fabric = shape.fabric();
    let mut plan = plan::make_plan(&fabric).expect("a plan");
    plan.segment = shape.segment.unwrap_or(plan.segment);
    let lanes = |id: GatewayId| {
        let on_each = (0..shape.carriers).map(|carrier| carrier_address(id, carrier));
        LaneAddresses::from_addresses(&on_each.collect::<Vec<_>>()).expect("they differ")
    };
    let links = fabric.links().iter();
    FabricSetup {
        plan,
        addresses: fabric.gateway_ids().map(lanes).collect(),
        jobs: jobs_of(&shape.jobs, JOB_MEMORY),
        memory: shape.memory,
        policies: links.map(|link| ((link.a, link.b), shape.policy.clone())).collect(),
        mtu_pinned: shape.path_mtu.is_none(),
        host_names: shape.west_name.iter().map(|name| (GatewayId(1), (*name).to_owned())).collect(),
        dials_only: shape.dials_only.iter().copied().collect(),
        version: FabricVersion::default(),
        fabric,
    }
}

/// Runs a future to its end under a paused clock.
pub fn simulate<T>(future: impl Future<Output = T>) -> T {
    gateway::simulate::run_with_simulated_clock(future).expect("a runtime")
}

/// Gateways and the links between them.
pub struct Lab(pub(super) gateway::simulate::VirtualDeployment);

impl Deref for Lab {
    type Target = gateway::simulate::VirtualDeployment;
    /// Returns the simulated deployment of both gateways.
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Lab {
    /// Starts both gateways. Everything random comes from `seed`.
    pub async fn start(shape: &Shape, seed: u64) -> Self {
        Self::start_with(shape, seed, [CredentialKind::Valid; 2]).await
    }

    /// Starts both gateways, each with credentials of its own.
    pub async fn start_with(shape: &Shape, seed: u64, credentials: [CredentialKind; 2]) -> Self {
        Self::launch(shape, seed, credentials, (Span::ZERO, LinkTrace::default())).await
    }

    /// Starts both gateways, the first of which writes a trace.
    pub async fn start_traced(shape: &Shape, seed: u64, trace: LinkTrace) -> Self {
        Self::launch(shape, seed, [CredentialKind::Valid; 2], (Span::ZERO, trace)).await
    }

    /// Starts east, and west `gap` later.
    pub async fn start_apart(shape: &Shape, seed: u64, gap: Span) -> Self {
        Self::launch(shape, seed, [CredentialKind::Valid; 2], (gap, LinkTrace::default())).await
    }

    /// Starts both gateways, the second one `gap` after the first, which writes the trace.
    async fn launch(
        shape: &Shape,
        seed: u64,
        credentials: [CredentialKind; 2],
        (gap, trace): (Span, LinkTrace),
    ) -> Self {
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
        let mut lab = gateway::simulate::VirtualDeployment::new(setup(shape), net, seed);
        lab.trace_gateway(GatewayId(0), trace);
        for (id, credentials) in [GatewayId(0), GatewayId(1)].into_iter().zip(credentials) {
            let credentials = credentials.of(&lab.fabric, id);
            if id != GatewayId(0) && gap > Span::ZERO {
                lab.sleep(gap).await;
            }
            lab.add_gateway(id, credentials).await.expect("starts");
        }
        Self(lab)
    }

    /// Starts a gateway that does not run.
    pub async fn start_gateway(&mut self, me: GatewayId) {
        let credentials = CredentialKind::Valid.of(&self.fabric, me);
        self.0.add_gateway(me, credentials).await.expect("starts");
    }

    /// Stops a gateway, which runs.
    pub async fn stop_gateway(&mut self, me: GatewayId) {
        self.0.stop_gateway(me).await;
    }

    /// Stops a gateway and starts it again at another address, with a link from there to the gateway
    /// `peer`.
    pub async fn move_gateway(&mut self, me: GatewayId, to: SocketAddr, peer: GatewayId) {
        let link = LinkSpec::new(mbit(1000), Span::from_ms(40)).expect("a link");
        self.net.connect(simulated_address(peer).ip(), to.ip(), link, link, 9);
        self.stop_gateway(me).await;
        self.0.move_gateway(me, to.into());
        self.start_gateway(me).await;
    }

    /// Stops a gateway and starts it again with other credentials.
    pub async fn restart(&mut self, me: GatewayId, credentials: CredentialKind) {
        let credentials = credentials.of(&self.fabric, me);
        self.0.restart_gateway(me, credentials).await.expect("starts");
    }

    /// Stops a gateway and starts it again with a fabric file of this version.
    pub async fn restart_with_version(&mut self, me: GatewayId, version: FabricVersion) {
        self.0.set_version(version);
        self.restart(me, CredentialKind::Valid).await;
    }

    /// Stops a gateway and starts it again without a job.
    pub async fn drop_job(&mut self, me: GatewayId, job: &str) {
        let credentials = CredentialKind::Valid.of(&self.fabric, me);
        self.0.restart_without_job(me, job, credentials).await.expect("starts");
    }

    /// Gives a running gateway other jobs, by name and weight.
    pub async fn set_jobs(&self, me: GatewayId, jobs: &[(&str, u32)]) {
        let jobs = jobs_of(jobs, JOB_MEMORY);
        self.gateways[usize::from(me.0)].update_jobs(jobs, Default::default()).await;
    }

    /// The status of a gateway.
    pub async fn status(&self, gateway: GatewayId) -> GatewayReport {
        self.0.status(gateway).await.expect("a status")
    }

    /// Returns the bytes that all gateways sent for the first time, and those of requeued segments.
    pub fn sent_and_resent_bytes(&self) -> (u64, u64) {
        let peers = self.gateways.iter().flat_map(|gateway| gateway.peers.values());
        peers.fold((0, 0), |(sent, resent), peer| {
            let metrics = &peer.metrics;
            (sent + metrics.sent_bytes.get(), resent + metrics.resent_bytes.get())
        })
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

    /// Attaches every rank: those with even numbers are sent bytes, the others share memory.
    pub async fn mixed_clients(&self, arena_bytes: u64) -> Vec<Client> {
        let attaching = (0..self.fabric.world_size()).map(|rank| {
            let connector = self.connector(rank).expect("a rank").clone();
            let way = match rank % 2 {
                0 => GatewayAddress::InProcessStreamed(connector),
                _ => GatewayAddress::InProcess(connector),
            };
            let options = AttachOptions::new(JOB, TOKEN, rank, arena_bytes);
            tokio::spawn(async move { Client::attach(&way, options).await })
        });
        let mut clients = Vec::new();
        for attached in attaching.collect::<Vec<_>>() {
            clients.push(attached.await.expect("no panic").expect("attaches"));
        }
        clients
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
