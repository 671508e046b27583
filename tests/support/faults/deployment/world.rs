//! The deployment of a run: two gateways and the ranks of all jobs, each a process that can be
//! stopped and killed, and the link between the regions.

use crate::collectives::data::Dice;
use crate::faults::deployment::gate::{self, Gate};
use crate::faults::deployment::meeting::{Attempt, Meeting};
use crate::faults::deployment::trainer::Trainer;
use crate::faults::judge::oracle::Oracle;
use crate::faults::spec::fault::{Direction, Fault, GATEWAYS, Place, What};
use crate::faults::spec::scenario::Scenario;
use crate::faults::timeline::Timeline;
use crate::lab::credentials::Papers;
use crate::{address, jobs_of, setup};
use gateway::daemon::Gateway;
use gateway::host::{Host, VirtualHost};
use gateway::local::listener::InProcessConnector;
use gateway::observe::metrics::Metrics;
use gateway::observe::status::StatusDoor;
use gateway::simulate::gateway_spec;
use hier_collectives::fec::Fec;
use hier_collectives::ids::{Epoch, GatewayId, RankId};
use hier_collectives::plan;
use hier_collectives::topology::Fabric;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use units::{BitRate, ByteCount, Fraction, Span, TimeNs};
use wan_sim::{LinkSpec, QueueSize, Reorder, VirtualNet};

/// See the module.
pub struct World {
    pub(in crate::faults) scenario: Scenario,
    pub(in crate::faults) oracle: Oracle,
    pub(in crate::faults) meetings: Vec<Meeting>,
    timeline: Timeline,
    net: VirtualNet,
    clock: VirtualHost,
    fabric: Arc<Fabric>,
    seats: Mutex<Vec<Seat>>,
    ranks: Mutex<BTreeMap<(usize, u32), Process>>,
    /// Between each rank and its gateway.
    gates: BTreeMap<(usize, u32), Arc<Gate>>,
    /// From then on every attempt that begins must be good.
    calm_from: AtomicU64,
}

/// Where a gateway runs, or does not.
#[derive(Default)]
struct Seat {
    running: Option<Running>,
    /// Of all its lives.
    metrics: Vec<Arc<Metrics>>,
}

struct Running {
    process: Process,
    /// Taken away by whoever lets it drain.
    gateway: Option<Gateway>,
    knockers: BTreeMap<(usize, u32), InProcessConnector>,
    /// Nobody asks, but the engine listens.
    _status: StatusDoor,
}

#[derive(Clone)]
struct Process {
    host: Arc<VirtualHost>,
    state: State,
    /// Counts its lives.
    life: u64,
}

/// What a process is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Stopped,
    /// It goes on, and ends by itself; only what is wanted.
    Draining,
    Dead,
}

/// How many copies and overtaking packets disorder makes.
const DISORDER_PPM: u32 = 20_000;
/// What the buffer of a stopped relay's socket takes, as Linux has it.
const STOPPED_BUFFER: ByteCount = ByteCount::new(208 << 10);
/// Slower than anything that matters, so that nothing comes out of a stopped relay.
const STOPPED_RATE: BitRate = BitRate::from_bits_per_second(1);
/// A gateway that is not stopped has answered by then.
const ANSWERED_WITHIN: Span = Span::from_ms(1);
/// A gateway that drains ends within this, whatever its ranks and peers do,
const DRAINED_WITHIN: Span = Span::from_secs(25);
/// and what it then says to peers and trainers takes no more than this.
const SHUT_DOWN_WITHIN: Span = Span::from_secs(1);
/// The tasks of a process that was killed are gone within this.
const GONE_WITHIN: Span = Span::from_ms(10);

impl World {
    /// Starts the gateways, and no rank.
    pub async fn start(scenario: &Scenario, timeline: Timeline) -> Arc<Self> {
        let (shape, seed) = (&scenario.shape, scenario.seed);
        let net = VirtualNet::new();
        let clock = VirtualHost::new(net.clone(), seed);
        let [east, west] = ips();
        net.connect(east, west, shape.link(), shape.link(), seed);
        let ranks = shape.ranks.0 + shape.ranks.1;
        let meeting = |job| Meeting::new(job, ranks, scenario.load.rounds, timeline.clone());
        let world = Arc::new(Self {
            scenario: scenario.clone(),
            oracle: Oracle::new(scenario, timeline.clone()),
            meetings: (0..shape.jobs.len()).map(meeting).collect(),
            timeline,
            net,
            clock,
            fabric: shape.fabric(),
            seats: Mutex::new(GATEWAYS.iter().map(|_| Seat::default()).collect()),
            ranks: Mutex::default(),
            gates: who(shape.jobs.len(), ranks).map(|who| (who, Arc::default())).collect(),
            calm_from: AtomicU64::new(u64::MAX),
        });
        for id in world.fabric.gateway_ids() {
            world.start_gateway(id).await;
        }
        world
    }

    /// Starts a process for each rank of each job.
    pub fn start_ranks(self: &Arc<Self>) {
        for (job, rank) in self.gates.keys() {
            self.start_rank(*job, *rank);
        }
    }

    /// The time.
    pub fn now(&self) -> TimeNs {
        self.clock.now()
    }

    /// Lets time pass until then.
    pub async fn sleep_until(&self, at: TimeNs) {
        self.clock.sleep_until(at).await;
    }

    /// A fault begins or ends; `active` are those that last.
    pub async fn disturb(self: &Arc<Self>, active: &[Fault], text: String) {
        self.timeline.say("FAULT", || text);
        self.shape_link(active);
        for id in self.fabric.gateway_ids() {
            self.bring_gateway(id, wanted(active, Place::Gateway(id))).await;
        }
        for ((job, rank), gate) in &self.gates {
            let wanted = wanted(active, Place::Rank(*job, *rank));
            gate.shut(wanted == State::Stopped);
            self.bring_rank(*job, *rank, wanted);
        }
    }

    /// The last fault is over; from `calm_from` on every attempt that begins must be good.
    pub fn heal(&self, calm_from: TimeNs) {
        self.calm_from.store(calm_from.ns(), Ordering::Relaxed);
        self.meetings.iter().for_each(|meeting| meeting.healed(self.now()));
    }

    /// What happens once, when a fault begins.
    pub async fn strike(self: &Arc<Self>, fault: &Fault) {
        self.oracle.struck(fault, self.now());
        match (fault.what, fault.place) {
            (What::Kill, Place::Lane(lane)) => {
                let (side, peer) = (lane % 2, GatewayId(1 - lane % 2));
                let gateway = self.take_gateway(side);
                if let Some(gateway) = gateway {
                    // One that is stopped loses it when it goes on.
                    let left = tokio::select! {
                        biased;
                        left = gateway.lose_lane(peer, lane) => left,
                        () = self.sleep_until(self.now() + ANSWERED_WITHIN) => None,
                    };
                    if left == Some(0) {
                        self.oracle.cut_off(fault, self.now());
                    }
                    if let Some(running) = &mut lock(&self.seats)[usize::from(side)].running {
                        running.gateway = Some(gateway);
                    }
                }
            }
            (What::Kill, Place::Link(direction)) => {
                for (from, to, _) in ways(direction, ips()) {
                    self.net.drop_under_way(from, to);
                }
            }
            (What::Drain, Place::Gateway(id)) => self.drain(id),
            _ => {}
        }
    }

    fn take_gateway(&self, index: u16) -> Option<Gateway> {
        lock(&self.seats)[usize::from(index)].running.as_mut()?.gateway.take()
    }

    /// What a gateway's process does on SIGTERM.
    fn drain(self: &Arc<Self>, id: GatewayId) {
        let Some(gateway) = self.take_gateway(id.0) else { return };
        let index = usize::from(id.0);
        let Some(process) =
            lock(&self.seats)[index].running.as_ref().map(|running| running.process.clone())
        else {
            return;
        };
        let (world, begun) = (Arc::clone(self), self.now());
        let host = Arc::clone(&process.host);
        host.spawn(Box::pin(async move {
            gateway.drain(DRAINED_WITHIN).await;
            gateway.shut_down().await;
            world.drained(index, &process, begun);
        }));
    }

    /// A gateway that drained has ended.
    fn drained(&self, index: usize, process: &Process, begun: TimeNs) {
        let (now, late) = (self.now(), DRAINED_WITHIN + SHUT_DOWN_WITHIN);
        if now.since(begun) > late && !self.oracle.was_stopped(index, begun) {
            let took = now.since(begun);
            self.oracle.wrong(format!("{}: drained for {took}, {late} at most", GATEWAYS[index]));
        }
        self.timeline.say(GATEWAYS[index], || "has drained and ended");
        process.host.kill();
        lock(&self.seats)[index].running = None;
        self.epoch_over();
    }

    fn epoch_over(&self) {
        self.meetings.iter().for_each(Meeting::epoch_over);
        self.oracle.epoch_over();
    }

    /// A rank has ended its part of an attempt.
    pub(in crate::faults) fn ended(&self, (job, rank): (usize, u32), attempt: Attempt, good: bool) {
        let now = self.now();
        let Some(over) = self.meetings[job].ended(rank, attempt, good, now) else { return };
        self.oracle.forget(job, attempt.number + 1);
        if let Some(after) = over.recovered {
            self.oracle.recovered(after);
        }
        if over.good {
            return;
        }
        if over.begun.ns() >= self.calm_from.load(Ordering::Relaxed) {
            self.oracle.wrong(format!(
                "job {job}: attempt {} failed though all faults were long over",
                attempt.number
            ));
        }
        self.oracle.attempt_failed(job, attempt.number, over.begun, now);
    }

    /// Says something of a rank.
    pub(in crate::faults) fn say(&self, (job, rank): (usize, u32), what: impl FnOnce() -> String) {
        self.timeline.say(format_args!("rank {rank} job {job}"), what);
    }

    /// How to reach the gateway of a rank.
    pub(in crate::faults) fn knocker(&self, job: usize, rank: u32) -> Option<InProcessConnector> {
        let id = self.fabric.gateway_of(RankId(rank)).expect("a rank of the fabric");
        let seats = lock(&self.seats);
        let running = seats[usize::from(id.0)].running.as_ref()?;
        running.knockers.get(&(job, rank)).cloned()
    }

    /// Holds the gateways' memory against what they may use: what the fabric file gives for
    /// partials, and room for what may land before it is added. At the end all is free, and when
    /// the processes are gone nothing of any of their lives is left.
    pub async fn judge_memory(&self) {
        let (shape, load) = (&self.scenario.shape, &self.scenario.load);
        let segment = load.segment.get();
        let link = &self.fabric.links()[0];
        let early = link.bdp().get().max(4 * segment);
        let tail = Fec::of(link, shape.mtu, segment).tail_bytes();
        let partials = (shape.memory.get() / shape.jobs.len() as u64).max(segment);
        let limit = partials + 2 * (early + tail);
        for (name, seat) in GATEWAYS.iter().zip(lock(&self.seats).iter()) {
            for (life, metrics) in seat.metrics.iter().enumerate() {
                for (job, _) in &shape.jobs {
                    let of_job = metrics.job(job);
                    let most = u64::try_from(of_job.mapped.most.get()).unwrap_or(u64::MAX);
                    self.oracle.used(name, job, (most, limit));
                    let left = of_job.scratch_bytes.get();
                    if life + 1 == seat.metrics.len() && left != 0 {
                        self.oracle
                            .wrong(format!("{name}: {left} bytes for job {job} never freed"));
                    }
                }
            }
        }
        lock(&self.ranks).values().for_each(|process| process.host.kill());
        for seat in lock(&self.seats).iter_mut() {
            seat.running.take().into_iter().for_each(|running| running.process.host.kill());
        }
        self.sleep_until(self.now() + GONE_WITHIN).await;
        for (name, seat) in GATEWAYS.iter().zip(lock(&self.seats).iter()) {
            for (life, metrics) in (1..).zip(&seat.metrics) {
                for (job, _) in &shape.jobs {
                    let left = metrics.job(job).mapped.bytes.get();
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

    fn shape_link(&self, active: &[Fault]) {
        for (from, to, way) in ways(Direction::Both, ips()) {
            let here = |fault: &&Fault| match fault.place {
                Place::Link(direction) => direction == Direction::Both || direction == way,
                _ => false,
            };
            let mut spec = self.scenario.shape.link();
            let (mut cut, mut stopped) = (false, false);
            for fault in active.iter().filter(here) {
                match fault.what {
                    What::Delay(by) => spec = later(spec, by),
                    What::Disorder => spec = disordered(spec),
                    What::Stop => stopped = true,
                    _ => cut = true,
                }
            }
            let spec = if stopped { held(&spec) } else { spec };
            self.net.set_spec(from, to, spec).expect("a link");
            self.net.set_blackhole(from, to, cut).expect("a link");
        }
        for lane in 0..plan::lanes(&self.fabric) {
            let silent = |f: &Fault| f.what == What::Cut && f.place == Place::Lane(lane);
            let first = address(GatewayId(0));
            let socket = SocketAddr::new(first.ip(), first.port() + lane);
            self.net.set_muted(socket, active.iter().any(silent));
        }
    }

    async fn bring_gateway(self: &Arc<Self>, id: GatewayId, wanted: State) {
        let (running_before, was) = {
            let mut seats = lock(&self.seats);
            let running = &mut seats[usize::from(id.0)].running;
            let running_before = running.is_some();
            // Its time to drain is over.
            if wanted == State::Running && running.as_ref().is_some_and(|r| r.gateway.is_none()) {
                running.take().into_iter().for_each(|running| running.process.host.kill());
            }
            let was = running.as_ref().map_or(State::Dead, |running| running.process.state);
            if let Some(running) = running {
                running.process.bring(wanted);
            }
            if wanted == State::Dead {
                *running = None;
            }
            (running_before, was)
        };
        if running_before && lock(&self.seats)[usize::from(id.0)].running.is_none() {
            self.epoch_over();
        }
        if was == State::Dead && !matches!(wanted, State::Dead | State::Draining) {
            self.start_gateway(id).await;
            if wanted == State::Stopped
                && let Some(running) = &mut lock(&self.seats)[usize::from(id.0)].running
            {
                running.process.bring(wanted);
            }
        }
    }

    fn bring_rank(self: &Arc<Self>, job: usize, rank: u32, wanted: State) {
        let was = {
            let mut ranks = lock(&self.ranks);
            let process = ranks.get_mut(&(job, rank)).expect("it was started");
            let was = process.state;
            process.bring(wanted);
            was
        };
        if was != State::Dead && wanted == State::Dead {
            self.meetings[job].lost(rank);
            self.oracle.died(job, rank);
        }
        if was == State::Dead && wanted != State::Dead {
            self.start_rank(job, rank);
            let mut ranks = lock(&self.ranks);
            ranks.get_mut(&(job, rank)).expect("it was started").bring(wanted);
        }
    }

    async fn start_gateway(&self, id: GatewayId) {
        let index = usize::from(id.0);
        let life = lock(&self.seats)[index].metrics.len() as u64 + 1;
        let process = self.process(GATEWAYS[index].to_owned(), 100 + u64::from(id.0), life);
        let here = self.fabric.gateway(id).ranks.clone();
        let gates = self.gates.iter().filter(|((_, rank), _)| here.contains(rank));
        let (who, gates): (Vec<_>, Vec<_>) =
            gates.map(|(who, gate)| (*who, Arc::clone(gate))).unzip();
        let (door, knockers) = gate::door(gates);
        let knockers = who.into_iter().zip(knockers).collect();
        let (status, questions) = StatusDoor::new();
        let metrics = Arc::new(Metrics::new());
        let mut setup = setup(&self.scenario.shape);
        setup.plan.segment = self.scenario.load.segment;
        // Exactly what their ranks need: what a rank that is gone still held would be missed.
        let arenas = self.scenario.load.arena().get() * u64::from(here.end - here.start);
        setup.jobs = jobs_of(&self.scenario.shape.jobs, ByteCount::new(arenas));
        let spec = gateway_spec(&setup, id, Papers::Right.of(&self.fabric, id));
        let host: Arc<dyn Host> = Arc::<VirtualHost>::clone(&process.host);
        let observed = (Arc::clone(&metrics), questions);
        let gateway = Gateway::start(host, spec, Box::new(door), observed).await.expect("starts");
        let mut seats = lock(&self.seats);
        seats[index].metrics.push(metrics);
        let gateway = Some(gateway);
        seats[index].running = Some(Running { process, gateway, knockers, _status: status });
        drop(seats);
        self.timeline.say(GATEWAYS[index], || format!("starts, life {life}"));
    }

    fn start_rank(self: &Arc<Self>, job: usize, rank: u32) {
        let life = lock(&self.ranks).get(&(job, rank)).map_or(0, |process| process.life) + 1;
        let number = 200 + 100 * job as u64 + u64::from(rank);
        let process = self.process(format!("rank {rank} job {job}"), number, life);
        let dice = Dice(self.scenario.seed ^ (number << 20) ^ life);
        let (world, host) = (Arc::clone(self), Arc::clone(&process.host));
        let heard_of = Epoch(0);
        let trainer = Trainer { world, host: Arc::clone(&host), job, rank, dice, heard_of };
        host.spawn(Box::pin(trainer.run()));
        lock(&self.ranks).insert((job, rank), process);
        self.say((job, rank), || format!("starts, life {life}"));
    }

    fn process(&self, name: String, number: u64, life: u64) -> Process {
        let seed = Dice(self.scenario.seed ^ (number << 32) ^ life).roll();
        let host = Arc::new(self.clock.beside(&name, seed));
        Process { host, state: State::Running, life }
    }
}

impl Process {
    fn bring(&mut self, wanted: State) {
        match (self.state, wanted) {
            (State::Dead, _) => return,
            (_, State::Dead) => self.host.kill(),
            (State::Running, State::Stopped) => self.host.stop(),
            (State::Stopped, State::Running | State::Draining) => self.host.resume(),
            _ => {}
        }
        self.state = if wanted == State::Draining { State::Running } else { wanted };
    }
}

/// What the process at a place is to be under these faults.
fn wanted(active: &[Fault], place: Place) -> State {
    let here = || active.iter().filter(|fault| fault.place == place);
    if here().any(|fault| fault.what == What::Kill) {
        State::Dead
    } else if here().any(|fault| fault.what == What::Stop) {
        State::Stopped
    } else if here().any(|fault| fault.what == What::Drain) {
        State::Draining
    } else {
        State::Running
    }
}

fn who(jobs: usize, ranks: u32) -> impl Iterator<Item = (usize, u32)> {
    (0..jobs).flat_map(move |job| (0..ranks).map(move |rank| (job, rank)))
}

fn ips() -> [std::net::IpAddr; 2] {
    [0, 1].map(|id| address(GatewayId(id)).ip())
}

/// From, to, and which of the two ways that is.
fn ways(
    direction: Direction,
    [east, west]: [std::net::IpAddr; 2],
) -> Vec<(std::net::IpAddr, std::net::IpAddr, Direction)> {
    let mut ways = vec![(east, west, Direction::EastWest), (west, east, Direction::WestEast)];
    ways.retain(|(_, _, way)| direction == Direction::Both || direction == *way);
    ways
}

fn later(spec: LinkSpec, by: Span) -> LinkSpec {
    let rate = spec.rate().expect("a rate");
    let slow = LinkSpec::new(rate, spec.delay() + by).expect("a delay below an hour");
    let slow = slow.with_queue(spec.queue()).with_loss_model(spec.loss());
    slow.with_jitter(spec.jitter()).expect("jitter below the delay")
}

/// The relay takes in what its buffer takes, and passes nothing on.
fn held(spec: &LinkSpec) -> LinkSpec {
    let held = LinkSpec::new(STOPPED_RATE, spec.delay()).expect("a delay below an hour");
    held.with_queue(QueueSize::Bytes(STOPPED_BUFFER))
}

fn disordered(spec: LinkSpec) -> LinkSpec {
    let probability = Fraction::from_ppb(DISORDER_PPM * 1000).expect("at most one");
    let reorder = Reorder { probability, gap: NonZeroU32::new(2).expect("not zero") };
    spec.with_duplicate(probability).with_reorder(reorder)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
