//! The world of a run, as its trainers see it: time, rendezvous, oracle, and the processes.

use super::gate::Gate;
use super::process::Process;
use super::rendezvous::{Attempt, Rendezvous};
use crate::faults::judge::oracle::Oracle;
use crate::faults::spec::place::GatewayPlace;
use crate::faults::spec::scenario::Scenario;
use crate::faults::timeline::Timeline;
use gateway::daemon::Gateway;
use gateway::host::{Host, VirtualHost};
use gateway::local::trainer_listener::TrainerListenerConnector;
use gateway::observe::engine_status_request::EngineStatusHandle;
use gateway::observe::metrics::MetricsRegistry;
use hier_collectives::ids::{GatewayId, RankId};
use hier_collectives::plan::Plan;
use hier_collectives::topology::Fabric;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use units::{Span, TimeNs};
use wan_sim::VirtualNet;

/// Everything that the trainers and the control of a run share.
pub struct World {
    pub(in crate::faults) scenario: Scenario,
    pub(in crate::faults) oracle: Oracle,
    pub(in crate::faults) rendezvous: Vec<Rendezvous>,
    pub(super) timeline: Timeline,
    pub(super) net: VirtualNet,
    pub(super) clock: VirtualHost,
    pub(super) fabric: Arc<Fabric>,
    /// The plan with which gateways begin.
    pub(super) plan: Plan,
    pub(super) gateways: Mutex<Vec<GatewaySlot>>,
    pub(super) ranks: Mutex<BTreeMap<(usize, u32), Process>>,
    /// The gates between ranks and their gateways.
    pub(super) gates: BTreeMap<(usize, u32), Arc<Gate>>,
    /// The time in nanoseconds from which every attempt that begins must be good.
    pub(super) calm_from: AtomicU64,
}

/// A gateway's process, while it runs, and the metrics of all its lives.
#[derive(Default)]
pub(super) struct GatewaySlot {
    pub(super) running: Option<Running>,
    /// One set for each life.
    pub(super) metrics: Vec<Arc<MetricsRegistry>>,
}

pub(super) struct Running {
    pub(super) process: Process,
    /// The gateway; `None` while it drains.
    pub(super) gateway: Option<Gateway>,
    pub(super) knockers: BTreeMap<(usize, u32), TrainerListenerConnector>,
    /// Kept alive, since the engine listens for questions.
    pub(super) _status: EngineStatusHandle,
}

/// 25 s: the longest time for which a gateway drains, whatever its ranks and peers do.
pub(super) const DRAINED_WITHIN: Span = Span::from_secs(25);

/// 1 s: the longest time that a gateway takes to end after its drain, for last messages to peers
/// and trainers.
const SHUT_DOWN_WITHIN: Span = Span::from_secs(1);

impl World {
    /// The time.
    pub fn now(&self) -> TimeNs {
        self.clock.now()
    }

    /// Waits until `at`.
    pub async fn sleep_until(&self, at: TimeNs) {
        self.clock.sleep_until(at).await;
    }

    /// The last fault is over; from `calm_from` on every attempt that begins must be good.
    pub fn heal(&self, calm_from: TimeNs) {
        self.calm_from.store(calm_from.ns(), Ordering::Relaxed);
        self.rendezvous.iter().for_each(|rendezvous| rendezvous.healed(self.now()));
    }

    pub(super) fn take_gateway(&self, id: GatewayId) -> Option<Gateway> {
        lock(&self.gateways)[usize::from(id.0)].running.as_mut()?.gateway.take()
    }

    /// Returns the place of a gateway, which names it.
    pub(super) fn place(&self, id: GatewayId) -> GatewayPlace {
        self.scenario.layout.place(id)
    }

    /// Records that a gateway has ended after its drain, and judges how long that took.
    pub(super) fn drained(&self, id: GatewayId, process: &Process, begun: TimeNs) {
        let (now, late) = (self.now(), DRAINED_WITHIN + SHUT_DOWN_WITHIN);
        let place = self.place(id);
        if now.since(begun) > late && !self.oracle.was_stopped(place, begun) {
            let took = now.since(begun);
            self.oracle.wrong(format!("{place}: drained for {took}, {late} at most"));
        }
        self.timeline.say(place, || "has drained and ended");
        process.host.kill();
        lock(&self.gateways)[usize::from(id.0)].running = None;
        self.epoch_over();
    }

    pub(super) fn epoch_over(&self) {
        self.rendezvous.iter().for_each(Rendezvous::epoch_over);
        self.oracle.epoch_over();
    }

    /// A rank has ended its part of an attempt.
    pub(in crate::faults) fn ended(&self, job: usize, rank: u32, attempt: Attempt, good: bool) {
        let now = self.now();
        let Some(over) = self.rendezvous[job].ended(rank, attempt, good, now) else { return };
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

    /// Adds an event of a rank to the timeline.
    pub(in crate::faults) fn say(&self, job: usize, rank: u32, what: impl FnOnce() -> String) {
        self.timeline.say(format_args!("rank {rank} job {job}"), what);
    }

    /// The connector to the gateway of a rank, while it runs.
    pub(in crate::faults) fn knocker(
        &self,
        job: usize,
        rank: u32,
    ) -> Option<TrainerListenerConnector> {
        let id = self.fabric.gateway_of(RankId(rank)).expect("a rank of the fabric");
        let gateways = lock(&self.gateways);
        let running = gateways[usize::from(id.0)].running.as_ref()?;
        running.knockers.get(&(job, rank)).cloned()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
