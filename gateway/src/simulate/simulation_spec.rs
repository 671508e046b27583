//! The parameters of a simulation, and the memory that it needs.

use super::error::SimulateError;
use super::key_folder::KeyFolder;
use super::network_layout::NetworkLayout;
use super::simulated_addresses::simulated_region_address;
use super::virtual_deployment::{FabricSetup, VirtualDeployment};
use crate::limits::memory_limits::arena_memory_limit;
use crate::local::job_spec::JobSpec;
use crate::wan::link::controller_policy::LinkPolicies;
use hier_collectives::ids::GatewayId;
use hier_collectives::membership::FabricVersion;
use hier_collectives::plan::{self, Plan};
use hier_collectives::topology::Fabric;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use units::ByteCount;
use wan_sim::VirtualNet;

/// The parameters of a simulation.
#[derive(Clone)]
pub struct SimulationSpec {
    /// The fabric.
    pub fabric: Arc<Fabric>,
    /// The plan that the gateways begin with.
    pub plan: Plan,
    /// Address of each gateway's lanes, in the order of gateways.
    pub addresses: Vec<SocketAddr>,
    /// The links between these addresses.
    pub network: NetworkLayout,
}

impl SimulationSpec {
    /// `simulation`: the name of the only job in a simulation, to which all simulated ranks attach.
    pub const JOB_NAME: &str = "simulation";

    /// Makes the simulation of a fabric with a plan.
    ///
    /// # Errors
    /// [`SimulateError::Link`]: a link that `wan-sim` does not support.
    pub fn of_fabric(fabric: Fabric, plan: Plan) -> Result<Self, SimulateError> {
        let address = |id: GatewayId| {
            let mut address = simulated_region_address(&fabric, fabric.gateway(id).region);
            let first = fabric.region(fabric.gateway(id).region).gateways.start;
            address.set_port(address.port() + (id.0 - first));
            address
        };
        let addresses = fabric.gateway_ids().map(address).collect();
        let network = NetworkLayout::of_fabric(&fabric)?;
        Ok(Self { fabric: Arc::new(fabric), plan, addresses, network })
    }

    /// Estimates the memory that collectives of `bytes` bytes in all take: packets on links and in
    /// queues, memory of gateways, and memory of connections.
    fn estimate_memory(&self, bytes: ByteCount) -> ByteCount {
        let fabric = &self.fabric;
        let lanes = u64::from(plan::plan_lanes_limit(fabric));
        let links = fabric.links().iter().map(|link| {
            let under_way = 3 * link.bdp().get().min(bytes.get());
            2 * (under_way + lanes * CONNECTION_END_BYTES)
        });
        let forecast = self.plan.forecast(fabric, plan::Operation::AllReduce, bytes);
        let held =
            forecast.gateways.iter().map(|load| load.held.get() + SIMULATED_GATEWAY_MEMORY.get());
        let ranks = u64::from(fabric.world_size()) * (2 * bytes.get() / 256 + (1 << 20));
        ByteCount::new(links.sum::<u64>() + held.sum::<u64>() + ranks)
    }

    /// Starts all gateways in virtual time. All randomness comes from `seed`.
    ///
    /// # Errors
    /// [`SimulateError`]: a gateway did not start.
    pub async fn start_gateways(self, seed: u64) -> Result<VirtualDeployment, SimulateError> {
        let Self { fabric, plan, addresses, network } = self;
        let net = VirtualNet::new();
        network.apply(&net, seed);
        let job = JobSpec {
            name: Self::JOB_NAME.to_owned(),
            token: [7; 32].into(),
            // Arenas are folded, or small.
            memory: ByteCount::new(u64::MAX),
            weight: NonZeroU32::MIN,
        };
        let keys = KeyFolder::make(&fabric)?;
        let setup = FabricSetup {
            fabric: Arc::clone(&fabric),
            plan,
            addresses: addresses.into_iter().map(Into::into).collect(),
            jobs: vec![job],
            memory: SIMULATED_GATEWAY_MEMORY,
            policies: LinkPolicies::new(),
            mtu_pinned: true,
            host_names: BTreeMap::new(),
            dials_only: BTreeSet::new(),
            version: FabricVersion::default(),
        };
        let mut gateways = VirtualDeployment::new(setup, net, seed);
        for id in fabric.gateway_ids() {
            gateways.add_gateway(id, keys.identity(&fabric, id)?).await?;
        }
        Ok(gateways)
    }

    /// Refuses a simulation of collectives of `bytes` bytes in all that needs too much memory.
    pub(super) fn check_memory(&self, bytes: ByteCount) -> Result<(), SimulateError> {
        let (needed, limit) = (self.estimate_memory(bytes), SIMULATION_MEMORY_MAX);
        if needed > limit {
            return Err(SimulateError::TooLarge { needed, limit });
        }
        if let Some(limit) = arena_memory_limit(needed.get()) {
            return Err(SimulateError::ShortMemory { needed, limit });
        }
        Ok(())
    }
}

/// 64 MiB: memory of each simulated gateway for partial sums, enough for the simulated buffers. The
/// estimate of a simulation's memory has as much for each gateway.
const SIMULATED_GATEWAY_MEMORY: ByteCount = ByteCount::new(64 << 20);

/// 8 GiB: the most memory of a simulation, as estimated before its start, so that other programs
/// have room on the machine. A simulation that needs more is refused.
const SIMULATION_MEMORY_MAX: ByteCount = ByteCount::new(8 << 30);

/// 256 KiB: memory of one end of a simulated QUIC connection, in the estimate of a simulation's
/// memory. Each lane of a link has two ends.
const CONNECTION_END_BYTES: u64 = 256 << 10;
