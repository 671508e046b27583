//! Gateways in virtual time, on a virtual network.

use super::key_folder::GatewayIdentity;
use super::simulated_addresses::simulated_lan_address;
use crate::client::{AttachError, AttachOptions, Client, GatewayAddress};
use crate::daemon::{Gateway, GatewaySpec, ListenSpec, ObservabilitySpec, StartError};
use crate::host::{Host, VirtualHost};
use crate::local::job_spec::JobSpec;
use crate::local::trainer_listener::{self, TrainerListenerConnector};
use crate::observe::engine_status_request::{EngineStatusHandle, StatusError};
use crate::observe::metrics::MetricsRegistry;
use crate::observe::spans::span_queue::SpanSink;
use crate::observe::status::{DumpReport, GatewayReport};
use crate::wan::connect::lane_addresses::LaneAddresses;
use crate::wan::connect::peer_addresses::PeerAddresses;
use crate::wan::link::controller_policy::LinkPolicies;
use crate::wan::link_trace::LinkTrace;
use hier_collectives::ids::{GatewayId, RankId};
use hier_collectives::membership::FabricVersion;
use hier_collectives::plan::Plan;
use hier_collectives::topology::Fabric;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use units::{ByteCount, Span};
use wan_sim::VirtualNet;

/// The settings that all gateways of a virtual deployment share.
#[derive(Clone)]
pub struct FabricSetup {
    /// The fabric.
    pub fabric: Arc<Fabric>,
    /// The plan that the gateways begin with.
    pub plan: Plan,
    /// Addresses of each gateway's lanes, in the order of gateways.
    pub addresses: Vec<LaneAddresses>,
    /// The jobs that every gateway with ranks serves.
    pub jobs: Vec<JobSpec>,
    /// Memory of each gateway for partial sums, in bytes.
    pub memory: ByteCount,
    /// Rate schedules and congestion controllers of the links.
    pub policies: LinkPolicies,
    /// Whether packets have the fabric's MTU; otherwise lanes probe for the largest packet.
    pub mtu_pinned: bool,
    /// The host names by which peers know a gateway, in place of its addresses.
    pub host_names: BTreeMap<GatewayId, String>,
    /// The gateways that no other can dial, and that dial all others.
    pub dials_only: BTreeSet<GatewayId>,
    /// The version of the fabric.
    pub version: FabricVersion,
}

/// The gateways of a fabric in virtual time.
pub struct VirtualDeployment {
    /// The network.
    pub net: VirtualNet,
    /// The host of all gateways, with the virtual clock.
    pub host: Arc<dyn Host>,
    /// The fabric.
    pub fabric: Arc<Fabric>,
    /// The running gateways, in order of their ids.
    pub gateways: Vec<Gateway>,
    setup: FabricSetup,
    /// The same host: the one process of all gateways, whose threads may seem busy.
    process: Arc<VirtualHost>,
    /// Handles of the running gateways, in order.
    handles: Vec<GatewayHandles>,
    /// Traces of gateways.
    traces: BTreeMap<GatewayId, LinkTrace>,
}

/// The ways to reach one running gateway.
struct GatewayHandles {
    id: GatewayId,
    connector: TrainerListenerConnector,
    status: EngineStatusHandle,
    metrics: Arc<MetricsRegistry>,
}

/// Makes the settings of a simulated gateway, which listens at its addresses of the setup.
pub fn virtual_deployment_gateway_spec(
    setup: &FabricSetup,
    me: GatewayId,
    identity: GatewayIdentity,
) -> GatewaySpec {
    let at = |id: GatewayId| setup.addresses[usize::from(id.0)].clone();
    let seen_at = |id: GatewayId| match setup.host_names.get(&id) {
        Some(name) => PeerAddresses::of_host_name(name, at(id).first().port()),
        None => at(id).into(),
    };
    let has_port = |id: GatewayId| setup.fabric.gateway(id).wan.is_some();
    let all = || setup.fabric.gateway_ids();
    let ports = all().filter(|id| has_port(*id) && !setup.dials_only.contains(id));
    GatewaySpec {
        fabric: Arc::clone(&setup.fabric),
        identity: identity.fabric,
        version: setup.version,
        me,
        versions: identity.versions,
        listen: ListenSpec {
            wan: has_port(me).then(|| at(me)),
            dials_only: setup.dials_only.contains(&me),
            lan: Some(simulated_lan_address(me).into()),
            one_by_one: false,
        },
        addresses: ports.map(|id| (id, seen_at(id))).collect(),
        lan_addresses: all().map(|id| (id, simulated_lan_address(id).into())).collect(),
        mtu_pinned: setup.mtu_pinned,
        credentials: Arc::new(identity.credentials),
        attach: None,
        jobs: if setup.fabric.witness() == Some(me) { vec![] } else { setup.jobs.clone() },
        memory: setup.memory,
        plan: setup.plan.clone(),
        policies: setup.policies.clone(),
        kept: None,
        signed: None,
    }
}

impl VirtualDeployment {
    /// Makes a deployment without gateways, on a network that has its links. All randomness of the
    /// gateways comes from `seed`.
    pub fn new(setup: FabricSetup, net: VirtualNet, seed: u64) -> Self {
        let process = Arc::new(VirtualHost::new(net.clone(), seed));
        let host: Arc<dyn Host> = Arc::clone(&process) as _;
        let fabric = Arc::clone(&setup.fabric);
        Self {
            net,
            host,
            fabric,
            gateways: Vec::new(),
            setup,
            process,
            handles: Vec::new(),
            traces: BTreeMap::new(),
        }
    }

    /// Traces the lanes and links of a gateway, from its next start on.
    pub fn trace_gateway(&mut self, gateway: GatewayId, trace: LinkTrace) {
        self.traces.insert(gateway, trace);
    }

    /// Makes the threads of all lanes seem busy for this part of the time, from 0 to 1.
    pub fn set_thread_load(&self, load: f64) {
        self.process.set_thread_load(load);
    }

    /// Stops all gateways, as a pause of their machine does; their sockets go on receiving.
    pub fn stop_gateway_processes(&self) {
        self.process.stop();
    }

    /// Resumes all gateways that were stopped.
    pub fn resume_gateway_processes(&self) {
        self.process.resume();
    }

    /// Gives a host name these addresses, in place of those that it had.
    pub fn set_host_name(&self, name: &str, addresses: Vec<IpAddr>) {
        self.process.set_host_name(name, addresses);
    }

    /// Makes the resolver of host names answer no question, or all again.
    pub fn silence_resolver(&self, silent: bool) {
        self.process.silence_resolver(silent);
    }

    /// Gives a gateway other addresses, from its next start on.
    pub fn move_gateway(&mut self, gateway: GatewayId, addresses: LaneAddresses) {
        self.setup.addresses[usize::from(gateway.0)] = addresses;
    }

    /// Returns how often the gateways have woken so far, all together: the times of the virtual
    /// clock at which a task of one of them ran.
    pub fn wakeups(&self) -> u64 {
        self.process.wakeups()
    }

    /// Starts a gateway of the deployment under virtual time. Gateways start in any order.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn add_gateway(
        &mut self,
        me: GatewayId,
        identity: GatewayIdentity,
    ) -> Result<(), StartError> {
        let (listener, connector) = trainer_listener::in_process_trainer_listener();
        let (status, requests) = EngineStatusHandle::new();
        let spec = virtual_deployment_gateway_spec(&self.setup, me, identity);
        let metrics = Arc::new(MetricsRegistry::new());
        let trace = self.traces.get(&me).cloned().unwrap_or_default();
        let observed = ObservabilitySpec {
            metrics: Arc::clone(&metrics),
            status_requests: requests,
            trace,
            spans: SpanSink::default(),
        };
        let host = Arc::clone(&self.host);
        let gateway = Gateway::start(host, spec, Box::new(listener), observed).await?;
        let index = self.handles.partition_point(|handles| handles.id < me);
        self.gateways.insert(index, gateway);
        self.handles.insert(index, GatewayHandles { id: me, connector, status, metrics });
        Ok(())
    }

    /// Lets gateways that start from now on have a fabric file of this version.
    pub fn set_version(&mut self, version: FabricVersion) {
        self.setup.version = version;
    }

    /// Shuts down a gateway, which has to run.
    pub async fn stop_gateway(&mut self, me: GatewayId) {
        let index = self.handles.partition_point(|handles| handles.id < me);
        self.gateways.remove(index).shut_down().await;
        self.handles.remove(index);
    }

    /// Stops a gateway and starts it again 30 s of virtual time later, with another identity.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn restart_gateway(
        &mut self,
        me: GatewayId,
        identity: GatewayIdentity,
    ) -> Result<(), StartError> {
        self.stop_gateway(me).await;
        // Its sockets are free once its peers have had time to answer.
        self.sleep(Span::from_secs(30)).await;
        self.add_gateway(me, identity).await
    }

    /// Stops a gateway and starts it again 30 s of virtual time later, with a region file that
    /// lacks one job.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn restart_without_job(
        &mut self,
        me: GatewayId,
        job: &str,
        identity: GatewayIdentity,
    ) -> Result<(), StartError> {
        let all = self.setup.jobs.clone();
        self.setup.jobs.retain(|kept| kept.name != job);
        let restarted = self.restart_gateway(me, identity).await;
        self.setup.jobs = all;
        restarted
    }

    /// Requests the status of a gateway from its engine.
    ///
    /// # Errors
    /// The gateway is busy or gone.
    ///
    /// # Panics
    /// The gateway does not run.
    pub async fn status(&self, gateway: GatewayId) -> Result<GatewayReport, StatusError> {
        self.handles_of(gateway).expect("a running gateway").status.request().await
    }

    /// Requests the status of a gateway with its flight recorders from its engine.
    ///
    /// # Errors
    /// The gateway is busy or gone.
    ///
    /// # Panics
    /// The gateway does not run.
    pub async fn dump(&self, gateway: GatewayId) -> Result<DumpReport, StatusError> {
        self.handles_of(gateway).expect("a running gateway").status.request_dump().await
    }

    /// Returns the metrics of a gateway.
    ///
    /// # Panics
    /// The gateway does not run.
    pub fn metrics(&self, gateway: GatewayId) -> &MetricsRegistry {
        &self.handles_of(gateway).expect("a running gateway").metrics
    }

    /// Returns the handles by which a running gateway is reached; `None` when it does not run.
    fn handles_of(&self, gateway: GatewayId) -> Option<&GatewayHandles> {
        self.handles.iter().find(|handles| handles.id == gateway)
    }

    /// Waits for `span` of virtual time.
    pub async fn sleep(&self, span: Span) {
        self.host.sleep_until(self.host.now() + span).await;
    }

    /// Begins or ends an outage of all links in both directions.
    pub fn set_outage(&self, outage: bool) {
        self.fabric.gateway_ids().for_each(|from| self.set_outage_from(from, outage));
    }

    /// Begins or ends an outage of all links from a gateway to others.
    pub fn set_outage_from(&self, from: GatewayId, outage: bool) {
        for to in self.fabric.gateway_ids().filter(|to| *to != from) {
            self.set_outage_to(from, to, outage);
        }
    }

    /// Begins or ends an outage of the links between two gateways, in both directions.
    pub fn set_outage_between(&self, one: GatewayId, other: GatewayId, outage: bool) {
        self.set_outage_to(one, other, outage);
        self.set_outage_to(other, one, outage);
    }

    /// Begins or ends an outage of the links from a gateway to another.
    fn set_outage_to(&self, from: GatewayId, to: GatewayId, outage: bool) {
        let all = |id: GatewayId| self.setup.addresses[usize::from(id.0)].all();
        for (from, to) in all(from).zip(all(to)) {
            // Gateways without a link between them have no outage.
            let _ = self.net.set_blackhole(from.ip(), to.ip(), outage);
        }
    }

    /// Returns the WAN address of a gateway's first lane.
    pub fn address(&self, id: GatewayId) -> SocketAddr {
        self.setup.addresses[usize::from(id.0)].first()
    }

    /// Returns the connector by which trainers of a rank reach its gateway; `None` when the gateway
    /// does not run.
    pub fn connector(&self, rank: u32) -> Option<&TrainerListenerConnector> {
        let gateway = self.fabric.gateway_of(RankId(rank))?;
        self.handles_of(gateway).map(|handles| &handles.connector)
    }

    /// Attaches a rank of a job, and waits at most `epoch_timeout` for an epoch of the job.
    ///
    /// # Errors
    /// The errors of [`Client::attach`].
    ///
    /// # Panics
    /// The fabric has no such rank.
    pub async fn attach_to(
        &self,
        job: &str,
        rank: u32,
        arena_bytes: u64,
        epoch_timeout: Span,
    ) -> Result<Client, AttachError> {
        let connector = self.connector(rank).expect("a rank of the fabric").clone();
        let options = self.attach_options(job, rank, arena_bytes);
        let options = AttachOptions { epoch_timeout, ..options };
        Client::attach(&GatewayAddress::InProcess(connector), options).await
    }

    /// Attaches a rank whose arena takes much less memory than it says, and waits at most
    /// `epoch_timeout` for the gateways to meet: for simulations of sizes and times, which read no
    /// values.
    ///
    /// # Errors
    /// The errors of [`Client::attach`].
    ///
    /// # Panics
    /// The fabric has no such rank.
    pub async fn attach_folded(
        &self,
        job: &str,
        rank: u32,
        arena_bytes: u64,
        epoch_timeout: Span,
    ) -> Result<Client, AttachError> {
        let connector = self.connector(rank).expect("a rank of the fabric").clone();
        let options = self.attach_options(job, rank, arena_bytes);
        let options = AttachOptions { epoch_timeout, ..options };
        Client::attach(&GatewayAddress::InProcessFolded(connector), options).await
    }

    /// Makes attach options with the job's token. For an unknown job the token is wrong, so that
    /// the gateway refuses.
    fn attach_options(&self, job: &str, rank: u32, arena_bytes: u64) -> AttachOptions {
        let token = self.setup.jobs.iter().find(|known| known.name == job).map(|job| job.token);
        AttachOptions::new(job, token.unwrap_or_else(|| [0; 32].into()), rank, arena_bytes)
    }
}
