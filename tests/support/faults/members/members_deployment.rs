//! The gateways of a run, each a process that can be killed, and the links between them.

use crate::collectives::data::SplitMix64;
use crate::faults::timeline::Timeline;
use crate::lab::credentials::CredentialKind;
use crate::lab::mesh::Mesh;
use crate::{simulated_address, simulated_lan_address};
use gateway::daemon::{Gateway, ObservabilitySpec};
use gateway::host::{Host, VirtualHost};
use gateway::local::trainer_listener::{TrainerListenerConnector, in_process_trainer_listener};
use gateway::observe::engine_status_request::EngineStatusHandle;
use gateway::observe::fabric_report::FabricVersionReport;
use gateway::observe::membership_report::MembershipReport;
use gateway::observe::metrics::MetricsRegistry;
use gateway::simulate::{FabricSetup, virtual_deployment_gateway_spec};
use gateway::wan::link_trace::LinkTrace;
use hier_collectives::ids::GatewayId;
use hier_collectives::topology::Fabric;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use wan_sim::VirtualNet;

/// The ways to the gateways that run, which ranks share.
#[derive(Clone, Default)]
pub(super) struct GatewayDoors(Arc<Mutex<BTreeMap<GatewayId, TrainerListenerConnector>>>);

/// The gateways of a run.
pub(super) struct MembersDeployment {
    pub fabric: Arc<Fabric>,
    /// The process of the ranks, which has the clock.
    pub host: Arc<VirtualHost>,
    pub doors: GatewayDoors,
    net: VirtualNet,
    setup: FabricSetup,
    seed: u64,
    timeline: Timeline,
    /// How often each gateway was started.
    lives: BTreeMap<GatewayId, u64>,
    running: BTreeMap<GatewayId, RunningGateway>,
}

struct RunningGateway {
    process: Arc<VirtualHost>,
    gateway: Gateway,
    status: EngineStatusHandle,
}

impl GatewayDoors {
    /// Returns the way to a gateway; `None` while it does not run.
    pub fn door(&self, id: GatewayId) -> Option<TrainerListenerConnector> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    fn set(&self, id: GatewayId, door: Option<TrainerListenerConnector>) {
        let mut doors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = match door {
            Some(door) => doors.insert(id, door),
            None => doors.remove(&id),
        };
    }
}

impl MembersDeployment {
    /// Makes the deployment of a mesh, in which no gateway runs. All random numbers come from `seed`.
    pub fn new(mesh: &Mesh, seed: u64, timeline: Timeline) -> Self {
        let (setup, net) = (mesh.setup(), mesh.network(seed));
        Self {
            fabric: Arc::clone(&setup.fabric),
            host: Arc::new(VirtualHost::new(net.clone(), seed)),
            doors: GatewayDoors::default(),
            net,
            setup,
            seed,
            timeline,
            lives: BTreeMap::new(),
            running: BTreeMap::new(),
        }
    }

    /// Starts a gateway that does not run.
    pub async fn start(&mut self, id: GatewayId) {
        let life = self.lives.entry(id).or_default();
        *life += 1;
        let (life, name) = (*life, &self.fabric.gateway(id).name);
        let seed = SplitMix64(self.seed ^ u64::from(id.0 + 1) << 32 ^ life).roll();
        let process = Arc::new(self.host.new_process(name, seed));
        let (listener, connector) = in_process_trainer_listener();
        let (status, status_requests) = EngineStatusHandle::new();
        let identity = CredentialKind::Valid.of(&self.fabric, id);
        let spec = virtual_deployment_gateway_spec(&self.setup, id, identity);
        let metrics = Arc::new(MetricsRegistry::new());
        let observed = ObservabilitySpec {
            metrics,
            status_requests,
            trace: LinkTrace::default(),
            spans: Default::default(),
        };
        let host: Arc<dyn Host> = Arc::<VirtualHost>::clone(&process);
        let started = Gateway::start(host, spec, Box::new(listener), observed).await;
        let gateway = started.expect("starts");
        self.running.insert(id, RunningGateway { process, gateway, status });
        self.doors.set(id, Some(connector));
        self.timeline.say(name, || format!("starts, life {life}"));
    }

    /// Kills a gateway; returns whether it ran.
    pub fn kill(&mut self, id: GatewayId) -> bool {
        let Some(running) = self.running.remove(&id) else { return false };
        self.doors.set(id, None);
        running.process.kill();
        self.timeline.say(&self.fabric.gateway(id).name, || "is killed");
        true
    }

    /// Returns the first gateway that runs.
    pub fn first(&self) -> Option<GatewayId> {
        self.running.keys().next().copied()
    }

    /// Returns a gateway if it runs.
    pub fn gateway(&self, id: GatewayId) -> Option<&Gateway> {
        Some(&self.running.get(&id)?.gateway)
    }

    /// Returns who takes part, as a gateway sees it that runs.
    pub async fn membership(&self, id: GatewayId) -> MembershipReport {
        let running = self.running.get(&id).expect("it runs");
        let report = running.status.request().await.expect("a status");
        report.membership.expect("a membership")
    }

    /// Returns the versions of the fabric, as a gateway sees them that runs.
    pub async fn fabric_version(&self, id: GatewayId) -> FabricVersionReport {
        let running = self.running.get(&id).expect("it runs");
        running.status.request().await.expect("a status").fabric_version
    }

    /// Cuts all that a gateway sends to another, or mends that.
    pub fn cut(&self, from: GatewayId, to: GatewayId, is_cut: bool) {
        for address in [simulated_address, simulated_lan_address] {
            // Most pairs have one of these links, and some have none.
            let _ = self.net.set_blackhole(address(from).ip(), address(to).ip(), is_cut);
        }
    }
}
