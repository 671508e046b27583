//! The control of a deployment: it starts processes, and disturbs them as faults say.

use super::gate;
use super::link::{self, ways};
use super::process::{Process, ProcessState, wanted};
use super::rendezvous::Rendezvous;
use super::trainer::Trainer;
use super::world::{DRAINED_WITHIN, GatewaySlot, Running, World, lock};
use crate::collectives::data::SplitMix64;
use crate::faults::judge::crossing::SentBytes;
use crate::faults::judge::oracle::Oracle;
use crate::faults::spec::fault::{Fault, FaultKind};
use crate::faults::spec::place::{Direction, FaultPlace, GatewayPlace, RegionPair};
use crate::faults::spec::scenario::Scenario;
use crate::faults::timeline::Timeline;
use crate::lab::credentials::CredentialKind;
use crate::lab::jobs::jobs_of;
use crate::lab::mesh::EXPRESS_SEGMENTS;
use crate::{simulated_address, simulated_dialling_address};
use gateway::daemon::{Gateway, ObservabilitySpec};
use gateway::host::{Host, VirtualHost};
use gateway::observe::engine_status_request::EngineStatusHandle;
use gateway::observe::metrics::MetricsRegistry;
use gateway::simulate::{FabricSetup, virtual_deployment_gateway_spec};
use gateway::wan::link::controller_policy::LinkPolicies;
use hier_collectives::ids::{Epoch, GatewayId};
use hier_collectives::membership::FabricVersion;
use hier_collectives::plan::{self, Plan};
use hier_collectives::tail_fec::TailFec;
use hier_collectives::topology::{Fabric, Link};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use units::{ByteCount, Span};
use wan_sim::LinkSpec;

/// The processes of a run: gateways, and the ranks of all jobs.
pub struct Deployment {
    world: Arc<World>,
}

impl Deref for Deployment {
    type Target = World;
    /// Returns the world that all processes of the run share.
    fn deref(&self) -> &World {
        &self.world
    }
}

impl Deployment {
    /// Starts the gateways, and no rank.
    pub async fn start(scenario: &Scenario, timeline: Timeline) -> Self {
        let (shape, seed) = (&scenario.shape, scenario.seed);
        let net = link::network(&scenario.layout, shape, seed);
        let clock = VirtualHost::new(net.clone(), seed);
        let ranks = scenario.layout.world();
        let fabric = scenario.layout.fabric(shape);
        let plan = plan_of(scenario, &fabric);
        let rendezvous = |job| Rendezvous::new(job, ranks, scenario.load.rounds, timeline.clone());
        let world = Arc::new(World {
            scenario: scenario.clone(),
            oracle: Oracle::new(scenario, &plan, timeline.clone()),
            rendezvous: (0..shape.jobs.len()).map(rendezvous).collect(),
            timeline,
            net,
            clock,
            plan,
            fabric,
            gateways: Mutex::new(
                scenario.layout.gateways().map(|_| GatewaySlot::default()).collect(),
            ),
            ranks: Mutex::default(),
            gates: all_ranks(shape.jobs.len(), ranks).map(|who| (who, Arc::default())).collect(),
            calm_from: AtomicU64::new(u64::MAX),
        });
        let deployment = Self { world };
        for id in deployment.fabric.gateway_ids() {
            deployment.start_gateway(id).await;
        }
        deployment
    }

    /// Starts a process for each rank of each job.
    pub fn start_ranks(&self) {
        for (job, rank) in self.gates.keys() {
            self.start_rank(*job, *rank);
        }
    }

    /// A fault begins or ends; `active` are those that last.
    pub async fn disturb(&self, active: &[Fault], text: String) {
        self.timeline.say("FAULT", || text);
        self.shape_links(active);
        for id in self.fabric.gateway_ids() {
            self.bring_gateway(id, wanted(active, FaultPlace::Gateway(self.place(id)))).await;
        }
        for ((job, rank), gate) in &self.gates {
            let wanted = wanted(active, FaultPlace::Rank(*job, *rank));
            gate.shut(wanted == ProcessState::Stopped);
            self.bring_rank(*job, *rank, wanted);
        }
    }

    /// Applies the part of a fault that happens once, when it begins.
    pub async fn strike(&self, fault: &Fault) {
        self.oracle.struck(fault, self.now());
        match (fault.what, fault.place) {
            (FaultKind::Kill, FaultPlace::Lane(lane, RegionPair(one, other))) => {
                let ends = [one, other].map(|region| GatewayPlace { region, number: 0 });
                let [one, other] = ends.map(|place| self.scenario.layout.id(place));
                let (side, peer) = if lane % 2 == 0 { (one, other) } else { (other, one) };
                let gateway = self.take_gateway(side);
                if let Some(gateway) = gateway {
                    // One that is stopped loses it when it goes on.
                    let left = tokio::select! {
                        biased;
                        left = gateway.close_lane(peer, lane) => left,
                        () = self.sleep_until(self.now() + ANSWERED_WITHIN) => None,
                    };
                    if left == Some(0) {
                        self.oracle.cut_off(fault, self.now());
                    }
                    if let Some(running) = &mut lock(&self.gateways)[usize::from(side.0)].running {
                        running.gateway = Some(gateway);
                    }
                }
            }
            (FaultKind::Kill, FaultPlace::Link(regions, direction)) => {
                for (from, to, _) in ways(&self.scenario.layout, regions, direction) {
                    self.net.drop_under_way(from, to);
                }
            }
            (FaultKind::Drain, FaultPlace::Gateway(place)) => {
                self.drain(self.scenario.layout.id(place));
            }
            _ => {}
        }
    }

    /// Drains a gateway and ends its process, as on SIGTERM.
    fn drain(&self, id: GatewayId) {
        let Some(gateway) = self.take_gateway(id) else { return };
        let index = usize::from(id.0);
        let Some(process) =
            lock(&self.gateways)[index].running.as_ref().map(|running| running.process.clone())
        else {
            return;
        };
        let (world, begun) = (Arc::clone(&self.world), self.now());
        let host = Arc::clone(&process.host);
        host.spawn(Box::pin(async move {
            gateway.drain(DRAINED_WITHIN).await;
            gateway.shut_down().await;
            world.drained(id, &process, begun);
        }));
    }

    /// Checks the gateways' memory against its limit: the fabric's memory for partials, and room
    /// for segments that land before they are added. At the end all is free, and nothing stays
    /// mapped once the processes are gone.
    pub async fn judge_memory(&self) {
        let (shape, load) = (&self.scenario.shape, &self.scenario.load);
        let segment = load.segment.get();
        let early = |link: &Link| {
            let tail = TailFec::for_link(link, shape.mtu, segment).tail_bytes();
            link.bdp().get().max(4 * segment) + tail
        };
        let early: u64 = self.fabric.links().iter().map(early).sum();
        let partials = (shape.memory.get() / shape.jobs.len() as u64).max(segment);
        // Each group may hold a little.
        let of_groups = self.scenario.groups_max() * (GROUP_EARLY_BYTES_MAX + segment);
        let of_two = partials + 2 * early + of_groups;
        let trees = self.plan.owner_trees(&self.fabric);
        let limit_at = |place: GatewayPlace| {
            if !self.scenario.layout.is_mesh() {
                return of_two;
            }
            // The job and a group of all its ranks may have operations at once.
            let me = self.scenario.layout.id(place);
            let partials = ByteCount::new(partials);
            let bound = self.plan.memory_bound(&self.fabric, &trees, me, partials);
            2 * bound.total().get() + of_groups
        };
        for (name, slot) in self.scenario.layout.gateways().zip(lock(&self.gateways).iter()) {
            for (life, metrics) in slot.metrics.iter().enumerate() {
                for (job, _) in &shape.jobs {
                    let of_job = metrics.job_metrics(job);
                    let most = u64::try_from(of_job.mapped.most.get()).unwrap_or(u64::MAX);
                    self.oracle.used(&name.to_string(), job, most, limit_at(name));
                    let left = of_job.scratch_bytes.get();
                    if life + 1 == slot.metrics.len() && left != 0 {
                        self.oracle
                            .wrong(format!("{name}: {left} bytes for job {job} never freed"));
                    }
                }
            }
        }
        lock(&self.ranks).values().for_each(|process| process.host.kill());
        for slot in lock(&self.gateways).iter_mut() {
            slot.running.take().into_iter().for_each(|running| running.process.host.kill());
        }
        self.sleep_until(self.now() + GONE_WITHIN).await;
        for (name, slot) in self.scenario.layout.gateways().zip(lock(&self.gateways).iter()) {
            for (life, metrics) in (1..).zip(&slot.metrics) {
                for (job, _) in &shape.jobs {
                    let left = metrics.job_metrics(job).mapped.bytes.get();
                    if left != 0 {
                        self.oracle.wrong(format!(
                            "{name}, life {life}: {left} bytes for job {job} are mapped though \
                             it is gone"
                        ));
                    }
                }
            }
        }
    }

    /// Checks the bytes that gateways of different regions have sent to each other, if no fault was to
    /// strike.
    pub fn judge_bytes(&self) {
        if !self.scenario.faults.is_empty() {
            return;
        }
        let mut sent = SentBytes::new();
        for (place, slot) in self.scenario.layout.gateways().zip(lock(&self.gateways).iter()) {
            let gateway = slot.running.as_ref().and_then(|running| running.gateway.as_ref());
            for (peer, link) in gateway.iter().flat_map(|gateway| &gateway.peers) {
                let ways = (place.region, self.place(*peer).region);
                if ways.0 != ways.1 {
                    *sent.entry(ways).or_default() += link.metrics.sent_bytes.get();
                }
            }
        }
        self.oracle.judge_bytes(sent);
    }

    fn shape_links(&self, active: &[Fault]) {
        let layout = &self.scenario.layout;
        for link in &layout.links {
            for (from, to, way) in ways(layout, link.regions, Direction::Both) {
                let here = |fault: &&Fault| match fault.place {
                    FaultPlace::Link(regions, direction) => {
                        let is_way = direction == Direction::Both || direction == way;
                        regions == link.regions && is_way
                    }
                    _ => false,
                };
                self.shape_way(
                    from,
                    to,
                    link.spec(&self.scenario.shape),
                    active.iter().filter(here),
                );
            }
        }
        for lane in 0..plan::plan_lanes_limit(&self.fabric) {
            let place = FaultPlace::Lane(lane, RegionPair::EAST_WEST);
            let silent = |f: &Fault| f.what == FaultKind::Cut && f.place == place;
            // The first gateway dials.
            let socket = simulated_dialling_address(GatewayId(0), lane);
            self.net.set_muted(socket, active.iter().any(silent));
        }
    }

    /// Shapes one way between two gateways.
    fn shape_way<'a>(
        &self,
        from: IpAddr,
        to: IpAddr,
        mut spec: LinkSpec,
        here: impl Iterator<Item = &'a Fault>,
    ) {
        let (mut cut, mut stopped) = (false, false);
        for fault in here {
            match fault.what {
                FaultKind::Delay(by) => spec = link::delayed(spec, by),
                FaultKind::Disorder => spec = link::disordered(spec),
                FaultKind::Stop => stopped = true,
                _ => cut = true,
            }
        }
        let spec = if stopped { link::stopped(&spec) } else { spec };
        self.net.set_spec(from, to, spec).expect("a link");
        self.net.set_blackhole(from, to, cut).expect("a link");
    }

    async fn bring_gateway(&self, id: GatewayId, wanted: ProcessState) {
        let (running_before, was) = {
            let mut gateways = lock(&self.gateways);
            let running = &mut gateways[usize::from(id.0)].running;
            let running_before = running.is_some();
            // Its time to drain is over.
            if wanted == ProcessState::Running
                && running.as_ref().is_some_and(|r| r.gateway.is_none())
            {
                running.take().into_iter().for_each(|running| running.process.host.kill());
            }
            let was = running.as_ref().map_or(ProcessState::Dead, |running| running.process.state);
            if let Some(running) = running {
                running.process.bring(wanted);
            }
            if wanted == ProcessState::Dead {
                *running = None;
            }
            (running_before, was)
        };
        if running_before && lock(&self.gateways)[usize::from(id.0)].running.is_none() {
            self.epoch_over();
        }
        if was == ProcessState::Dead
            && !matches!(wanted, ProcessState::Dead | ProcessState::Draining)
        {
            self.start_gateway(id).await;
            if wanted == ProcessState::Stopped
                && let Some(running) = &mut lock(&self.gateways)[usize::from(id.0)].running
            {
                running.process.bring(wanted);
            }
        }
    }

    fn bring_rank(&self, job: usize, rank: u32, wanted: ProcessState) {
        let was = {
            let mut ranks = lock(&self.ranks);
            let process = ranks.get_mut(&(job, rank)).expect("it was started");
            let was = process.state;
            process.bring(wanted);
            was
        };
        if was != ProcessState::Dead && wanted == ProcessState::Dead {
            self.rendezvous[job].lost(rank);
            self.oracle.died(job, rank);
        }
        if was == ProcessState::Dead && wanted != ProcessState::Dead {
            self.start_rank(job, rank);
            let mut ranks = lock(&self.ranks);
            ranks.get_mut(&(job, rank)).expect("it was started").bring(wanted);
        }
    }

    async fn start_gateway(&self, id: GatewayId) {
        let index = usize::from(id.0);
        let life = lock(&self.gateways)[index].metrics.len() as u64 + 1;
        let process = self.process(self.place(id).to_string(), 100 + u64::from(id.0), life);
        let here = self.fabric.gateway(id).ranks.clone();
        let gates = self.gates.iter().filter(|((_, rank), _)| here.contains(rank));
        let (who, gates): (Vec<_>, Vec<_>) =
            gates.map(|(who, gate)| (*who, Arc::clone(gate))).unzip();
        let (door, knockers) = gate::door(gates);
        let knockers = who.into_iter().zip(knockers).collect();
        let (status, questions) = EngineStatusHandle::new();
        let metrics = Arc::new(MetricsRegistry::new());
        let setup = self.setup(here.end - here.start);
        let spec =
            virtual_deployment_gateway_spec(&setup, id, CredentialKind::Valid.of(&self.fabric, id));
        let host: Arc<dyn Host> = Arc::<VirtualHost>::clone(&process.host);
        let observed = ObservabilitySpec {
            metrics: Arc::clone(&metrics),
            status_requests: questions,
            trace: Default::default(),
            spans: Default::default(),
        };
        let gateway = Gateway::start(host, spec, Box::new(door), observed).await.expect("starts");
        let mut gateways = lock(&self.gateways);
        gateways[index].metrics.push(metrics);
        let gateway = Some(gateway);
        gateways[index].running = Some(Running { process, gateway, knockers, _status: status });
        drop(gateways);
        self.timeline.say(self.place(id), || format!("starts, life {life}"));
    }

    /// Returns the settings of a gateway with so many ranks.
    fn setup(&self, ranks: u32) -> FabricSetup {
        let Scenario { shape, load, .. } = &self.scenario;
        // Exactly what their ranks need: what a rank that is gone still held would be missed.
        let arenas = ByteCount::new(load.arena().get() * u64::from(ranks));
        FabricSetup {
            plan: self.plan.clone(),
            addresses: self.fabric.gateway_ids().map(|id| simulated_address(id).into()).collect(),
            jobs: jobs_of(&shape.jobs, arenas),
            memory: shape.memory,
            policies: LinkPolicies::new(),
            mtu_pinned: true,
            host_names: BTreeMap::new(),
            dials_only: BTreeSet::new(),
            version: FabricVersion::default(),
            fabric: Arc::clone(&self.fabric),
        }
    }

    fn start_rank(&self, job: usize, rank: u32) {
        let life = lock(&self.ranks).get(&(job, rank)).map_or(0, |process| process.life) + 1;
        let number = 200 + 100 * job as u64 + u64::from(rank);
        let process = self.process(format!("rank {rank} job {job}"), number, life);
        let dice = SplitMix64(self.scenario.seed ^ (number << 20) ^ life);
        let (world, host) = (Arc::clone(&self.world), Arc::clone(&process.host));
        let heard_of = Epoch(0);
        let trainer = Trainer { world, host: Arc::clone(&host), job, rank, dice, heard_of };
        host.spawn(Box::pin(trainer.run()));
        lock(&self.ranks).insert((job, rank), process);
        self.say(job, rank, || format!("starts, life {life}"));
    }

    fn process(&self, name: String, number: u64, life: u64) -> Process {
        let seed = SplitMix64(self.scenario.seed ^ (number << 32) ^ life).roll();
        let host = Arc::new(self.clock.new_process(&name, seed));
        Process { host, state: ProcessState::Running, life }
    }
}

/// Returns the plan with which gateways begin.
fn plan_of(Scenario { layout, load, .. }: &Scenario, fabric: &Fabric) -> Plan {
    let mut plan = plan::make_plan(fabric).expect("a plan");
    plan.segment = load.segment;
    if layout.is_mesh() {
        // Short buffers use all trees.
        let most = ByteCount::new(EXPRESS_SEGMENTS * load.segment.get());
        plan.express_bytes = plan.express_bytes.min(most);
    }
    plan
}

fn all_ranks(jobs: usize, ranks: u32) -> impl Iterator<Item = (usize, u32)> {
    (0..jobs).flat_map(move |job| (0..ranks).map(move |rank| (job, rank)))
}

/// 1 ms: a gateway that is not stopped answers a request to close a lane within this virtual time.
const ANSWERED_WITHIN: Span = Span::from_ms(1);

/// 10 ms: the tasks of a killed process have ended within this virtual time.
const GONE_WITHIN: Span = Span::from_ms(10);

/// 64 KiB: the most bytes that a group's gateway takes before its ranks have posted.
const GROUP_EARLY_BYTES_MAX: u64 = 64 << 10;
