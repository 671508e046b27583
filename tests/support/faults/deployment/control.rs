//! The control of a deployment: it starts processes, and disturbs them as faults say.

use super::gate;
use super::link::{self, ips, ways};
use super::process::{Process, ProcessState, wanted};
use super::rendezvous::Rendezvous;
use super::trainer::Trainer;
use super::world::{DRAINED_WITHIN, GatewaySlot, Running, World, lock};
use crate::collectives::data::SplitMix64;
use crate::faults::judge::oracle::Oracle;
use crate::faults::spec::fault::{Direction, Fault, FaultKind, FaultPlace, GATEWAYS};
use crate::faults::spec::scenario::Scenario;
use crate::faults::timeline::Timeline;
use crate::lab::credentials::CredentialKind;
use crate::lab::jobs::jobs_of;
use crate::lab::running::setup;
use crate::simulated_dialling_address;
use gateway::daemon::{Gateway, ObservabilitySpec};
use gateway::host::{Host, VirtualHost};
use gateway::observe::engine_status_request::EngineStatusHandle;
use gateway::observe::metrics::MetricsRegistry;
use gateway::simulate::virtual_deployment_gateway_spec;
use hier_collectives::ids::{Epoch, GatewayId};
use hier_collectives::plan;
use hier_collectives::tail_fec::TailFec;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use units::{ByteCount, Span};
use wan_sim::VirtualNet;

/// The processes of a run: two gateways, and the ranks of all jobs.
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
        let net = VirtualNet::new();
        let clock = VirtualHost::new(net.clone(), seed);
        let [east, west] = ips();
        net.connect(east, west, shape.link(), shape.link(), seed);
        let ranks = shape.ranks.0 + shape.ranks.1;
        let rendezvous = |job| Rendezvous::new(job, ranks, scenario.load.rounds, timeline.clone());
        let world = Arc::new(World {
            scenario: scenario.clone(),
            oracle: Oracle::new(scenario, timeline.clone()),
            rendezvous: (0..shape.jobs.len()).map(rendezvous).collect(),
            timeline,
            net,
            clock,
            fabric: shape.fabric(),
            gateways: Mutex::new(GATEWAYS.iter().map(|_| GatewaySlot::default()).collect()),
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
        self.shape_link(active);
        for id in self.fabric.gateway_ids() {
            self.bring_gateway(id, wanted(active, FaultPlace::Gateway(id))).await;
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
            (FaultKind::Kill, FaultPlace::Lane(lane)) => {
                let (side, peer) = (lane % 2, GatewayId(1 - lane % 2));
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
                    if let Some(running) = &mut lock(&self.gateways)[usize::from(side)].running {
                        running.gateway = Some(gateway);
                    }
                }
            }
            (FaultKind::Kill, FaultPlace::Link(direction)) => {
                for (from, to, _) in ways(direction, ips()) {
                    self.net.drop_under_way(from, to);
                }
            }
            (FaultKind::Drain, FaultPlace::Gateway(id)) => self.drain(id),
            _ => {}
        }
    }

    /// Drains a gateway and ends its process, as on SIGTERM.
    fn drain(&self, id: GatewayId) {
        let Some(gateway) = self.take_gateway(id.0) else { return };
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
            world.drained(index, &process, begun);
        }));
    }

    /// Checks the gateways' memory against its limit: the fabric's memory for partials, and room
    /// for segments that land before they are added. At the end all is free, and nothing stays
    /// mapped once the processes are gone.
    pub async fn judge_memory(&self) {
        let (shape, load) = (&self.scenario.shape, &self.scenario.load);
        let segment = load.segment.get();
        let link = &self.fabric.links()[0];
        let early = link.bdp().get().max(4 * segment);
        let tail = TailFec::for_link(link, shape.mtu, segment).tail_bytes();
        let partials = (shape.memory.get() / shape.jobs.len() as u64).max(segment);
        // Each group may hold a little.
        let of_groups = self.scenario.groups_max() * (GROUP_EARLY_BYTES_MAX + segment);
        let limit = partials + 2 * (early + tail) + of_groups;
        for (name, slot) in GATEWAYS.iter().zip(lock(&self.gateways).iter()) {
            for (life, metrics) in slot.metrics.iter().enumerate() {
                for (job, _) in &shape.jobs {
                    let of_job = metrics.job_metrics(job);
                    let most = u64::try_from(of_job.mapped.most.get()).unwrap_or(u64::MAX);
                    self.oracle.used(name, job, most, limit);
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
        for (name, slot) in GATEWAYS.iter().zip(lock(&self.gateways).iter()) {
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

    /// Checks the bytes that gateways have sent to each other, if no fault was to strike.
    pub fn judge_bytes(&self) {
        if !self.scenario.faults.is_empty() {
            return;
        }
        let sent = |from: usize, to: u16| {
            let gateways = lock(&self.gateways);
            let gateway = gateways[from].running.as_ref().and_then(|r| r.gateway.as_ref());
            let link = gateway.and_then(|gateway| gateway.peers.get(&GatewayId(to)));
            link.map_or(0, |link| link.metrics.sent_bytes.get())
        };
        self.oracle.judge_bytes([sent(0, 1), sent(1, 0)]);
    }

    fn shape_link(&self, active: &[Fault]) {
        for (from, to, way) in ways(Direction::Both, ips()) {
            let here = |fault: &&Fault| match fault.place {
                FaultPlace::Link(direction) => direction == Direction::Both || direction == way,
                _ => false,
            };
            let mut spec = self.scenario.shape.link();
            let (mut cut, mut stopped) = (false, false);
            for fault in active.iter().filter(here) {
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
        for lane in 0..plan::plan_lanes_limit(&self.fabric) {
            let silent = |f: &Fault| f.what == FaultKind::Cut && f.place == FaultPlace::Lane(lane);
            // The first gateway dials.
            let socket = simulated_dialling_address(GatewayId(0), lane);
            self.net.set_muted(socket, active.iter().any(silent));
        }
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
        let process = self.process(GATEWAYS[index].to_owned(), 100 + u64::from(id.0), life);
        let here = self.fabric.gateway(id).ranks.clone();
        let gates = self.gates.iter().filter(|((_, rank), _)| here.contains(rank));
        let (who, gates): (Vec<_>, Vec<_>) =
            gates.map(|(who, gate)| (*who, Arc::clone(gate))).unzip();
        let (door, knockers) = gate::door(gates);
        let knockers = who.into_iter().zip(knockers).collect();
        let (status, questions) = EngineStatusHandle::new();
        let metrics = Arc::new(MetricsRegistry::new());
        let mut setup = setup(&self.scenario.shape);
        setup.plan.segment = self.scenario.load.segment;
        // Exactly what their ranks need: what a rank that is gone still held would be missed.
        let arenas = self.scenario.load.arena().get() * u64::from(here.end - here.start);
        setup.jobs = jobs_of(&self.scenario.shape.jobs, ByteCount::new(arenas));
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
        self.timeline.say(GATEWAYS[index], || format!("starts, life {life}"));
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

fn all_ranks(jobs: usize, ranks: u32) -> impl Iterator<Item = (usize, u32)> {
    (0..jobs).flat_map(move |job| (0..ranks).map(move |rank| (job, rank)))
}

/// 1 ms: a gateway that is not stopped answers a request to close a lane within this virtual time.
const ANSWERED_WITHIN: Span = Span::from_ms(1);

/// 10 ms: the tasks of a killed process have ended within this virtual time.
const GONE_WITHIN: Span = Span::from_ms(10);

/// 64 KiB: the most bytes that a group's gateway takes before its ranks have posted.
const GROUP_EARLY_BYTES_MAX: u64 = 64 << 10;
