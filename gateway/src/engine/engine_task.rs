//! The engine's event loop.
//!
//! The daemon makes the engine and spawns [`Engine::run`]. The files beside this one hold the
//! methods for lanes and peers (`engine_peers`), jobs (`engine_jobs`), links (`engine_links`), the
//! status (`status_report`), and problems (`health`).
//!
//! The engine's task sleeps until an event or a deadline: of a session, of a connection that is
//! awaited, of the gauges each second, and of the next sample of the links. Links are sampled often
//! only while something passes or waits, lanes change, or events come; otherwise with the gauges.

use super::health::link_outages::LinkOutages;
use super::health::problem_log::ProblemLog;
use super::health::scheduling_delay::{SCHEDULING_DELAY_WARNED_MIN, SchedulingDelay};
use super::job::Job;
use super::job::engine_shared::EngineShared;
use super::peer_jobs::PeerJobs;
use super::peers::Peers;
use super::terms::engine_fabric_set::EngineFabrics;
use crate::events::{Event, EventSender, FabricJudge, JobSession, ReloadedFiles};
use crate::host::Host;
use crate::observe::engine_status_request::StatusRequest;
use crate::observe::metrics::MetricsRegistry;
use crate::observe::spans::span_queue::SpanSink;
use crate::wan::PeerLink;
use crate::wan::link::controller_policy::LinkPolicies;
use crate::wan::link::link_limits::LinkLimits;
use crate::warn_if_due;
use crate::warnings::WarningCause;
use hier_collectives::bound::LowerBound;
use hier_collectives::ids::{BootId, GatewayId, GroupId};
use hier_collectives::membership::{FabricVersion, TermAgreement, TermWitness};
use hier_collectives::operation::Operation;
use hier_collectives::topology::{Fabric, Quorum};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use units::{Span, TimeNs};

/// 1 s: interval between two updates of the gauges in the gateway's metrics, as scrapers ask no
/// more often. A scrape in between gets the values of the last update. Checks of paths begin, and
/// problems are logged, at the same times.
const GAUGE_INTERVAL: Span = Span::from_secs(1);
/// 100 ms: interval between readings of the traffic counters of all links, while any link is in use
/// or changes its lanes. Otherwise they are read each second, with the gauges. Link capacity is
/// measured over 100 ms at least.
const LINK_SAMPLE_INTERVAL: Span = Span::from_ms(100);
/// 64 events: after so many events in a row the engine runs the timers that are due, and answers
/// one status request. So a full queue of events does not keep timers and requests waiting. The
/// number is chosen.
/// Tested by `a_full_queue_delays_no_status_request`.
const EVENT_BURST_MAX: u32 = 64;

/// The parts of an engine.
pub struct EngineSpec {
    /// The host: clock, timers, sockets and threads of the system, or of a simulation.
    pub host: Arc<dyn Host>,
    /// The deployment.
    pub fabric: Arc<Fabric>,
    /// Digest of the fabric's identity, which the status shows.
    pub identity: [u8; 32],
    /// The version of the fabric.
    pub version: FabricVersion,
    /// The judge of fabrics that operators sign.
    pub judge: Arc<dyn FabricJudge>,
    /// This gateway.
    pub me: GatewayId,
    /// The random number of this start, which other gateways know it by.
    pub boot: BootId,
    /// The jobs.
    pub jobs: Vec<JobSession>,
    /// The gateways that this one has lanes to.
    pub peers: BTreeMap<GatewayId, Arc<PeerLink>>,
    /// How links are used.
    pub policies: LinkPolicies,
    /// Metrics of the gateway.
    pub metrics: Arc<MetricsRegistry>,
    /// The queue of spans of collectives that have ended.
    pub spans: SpanSink,
    /// Requests of the status server.
    pub status_requests: mpsc::Receiver<StatusRequest>,
    /// The senders' end of the engine's queue, for the tasks that the engine spawns.
    pub events: EventSender,
    /// The receiving end of the engine's queue.
    pub inbox: mpsc::Receiver<Event>,
}

/// The state of the engine's task.
pub struct Engine {
    pub(super) fabric: Arc<Fabric>,
    pub(super) identity: [u8; 32],
    pub(super) me: GatewayId,
    pub(super) boot: BootId,
    /// The time at which the engine was made.
    pub(super) started: TimeNs,
    pub(super) jobs: BTreeMap<GroupId, Job>,
    /// The agreement on who goes on; `None` where all regions have to, and at a witness.
    pub(super) terms: Option<TermAgreement>,
    /// The part of a witness in it; `None` at a gateway with ranks.
    pub(super) witness: Option<TermWitness>,
    /// The fabrics that operators have signed.
    pub(super) fabrics: EngineFabrics,
    /// The jobs of other gateways, as they said.
    pub(super) peer_jobs: PeerJobs,
    pub(super) shared: EngineShared,
    pub(super) links: LinkLimits,
    pub(super) metrics: Arc<MetricsRegistry>,
    /// Keys of the region file whose new values need a restart.
    pub(super) restart_needed: Vec<String>,
    /// The faults that keep changed files from being taken up.
    pub(super) file_faults: BTreeMap<ReloadedFiles, Vec<String>>,
    /// The links that are down.
    pub(super) outages: LinkOutages,
    /// The problems that last, for the log.
    pub(super) problem_log: ProblemLog,
    inbox: mpsc::Receiver<Event>,
    status_requests: mpsc::Receiver<StatusRequest>,
    /// Receives a value when the drain under way is done.
    pub(super) draining: Option<oneshot::Sender<()>>,
}

/// When the engine's periodic work is due next.
struct Timers {
    gauges: TimeNs,
    /// The next sample of the links, at the latest with the gauges.
    links: TimeNs,
}

impl Engine {
    /// Makes an engine; [`Engine::run`] starts it.
    pub fn new(spec: EngineSpec) -> Self {
        let EngineSpec { host, fabric, me, metrics, status_requests, events, inbox, .. } = spec;
        let warnings = metrics.warnings.clone();
        let jobs = spec.jobs.into_iter().map(|job| Job::of_session(job, me, &metrics));
        let mut jobs: BTreeMap<GroupId, Job> = jobs.map(|job| (job.id(), job)).collect();
        let is_witness = fabric.witness() == Some(me);
        let witness = is_witness.then(|| TermWitness::new(Arc::clone(&fabric), me, spec.boot));
        let mut terms = (*fabric.quorum() != Quorum::All && !is_witness)
            .then(|| TermAgreement::new(Arc::clone(&fabric), spec.version, me, spec.boot));
        if let (Some(terms), Some(signed)) = (&mut terms, spec.judge.signed_at_start()) {
            terms.hold_fabric_of_file(signed);
        }
        if terms.is_some() {
            jobs.values_mut().for_each(Job::await_first_term);
        }
        let peers = Peers::new(Arc::clone(&fabric), me, spec.peers);
        let links = LinkLimits::new(Arc::clone(&fabric), me, &spec.policies);
        let shared = EngineShared { host, peers, events, bound: Arc::default(), spans: spec.spans };
        let started = shared.host.now();
        let longest_rtt = fabric.links().iter().map(|link| link.rtt).max();
        Self {
            fabric,
            identity: spec.identity,
            me,
            boot: spec.boot,
            started,
            jobs,
            terms,
            witness,
            fabrics: EngineFabrics::of_file(spec.version, spec.judge),
            peer_jobs: PeerJobs::default(),
            shared,
            links,
            metrics,
            restart_needed: Vec::new(),
            file_faults: BTreeMap::new(),
            outages: LinkOutages::new(warnings.clone()),
            problem_log: ProblemLog::new(longest_rtt.unwrap_or(Span::ZERO), warnings),
            inbox,
            status_requests,
            draining: None,
        }
    }

    /// Runs the engine, as a task, until a shutdown or until every sender of events is gone.
    pub async fn run(mut self) {
        let host = Arc::clone(&self.shared.host);
        self.compute_bound();
        self.apply_link_rate_limits();
        self.for_each_job_group(|group, now| group.session.handle_start(now));
        let mut timers = Timers {
            gauges: host.now() + GAUGE_INTERVAL,
            links: host.now() + LINK_SAMPLE_INTERVAL,
        };
        let (mut burst, mut delay) = (0, SchedulingDelay::new(host.now()));
        loop {
            let deadlines = [
                self.job_deadline(),
                self.shared.peers.connection_deadline(),
                self.terms.as_ref().and_then(TermAgreement::poll_timeout),
            ];
            let due = deadlines.into_iter().flatten().fold(timers.links, TimeNs::min);
            let due = due.min(timers.gauges);
            delay.note_sleep(due);
            let event = tokio::select! {
                biased;
                event = self.inbox.recv() => event,
                Some(request) = self.status_requests.recv() => {
                    self.answer_status_request(request);
                    continue;
                }
                () = host.sleep_until(due) => {
                    self.note_scheduling_delay(&mut delay, host.now());
                    self.run_due_timers(&mut timers);
                    continue;
                }
            };
            match event {
                Some(Event::Shutdown(done)) => {
                    self.for_each_job_group(|group, now| group.session.handle_shutdown(now));
                    let _ = done.send(());
                    return;
                }
                Some(event) => {
                    let now = host.now();
                    self.note_scheduling_delay(&mut delay, now);
                    // Bytes may follow, or have come.
                    timers.links = timers.links.min(now + LINK_SAMPLE_INTERVAL);
                    self.handle_event(event, now);
                    self.follow_terms("", now);
                }
                None => return,
            }
            self.report_if_drained();
            burst += 1;
            if burst == EVENT_BURST_MAX {
                burst = 0;
                if let Ok(request) = self.status_requests.try_recv() {
                    self.answer_status_request(request);
                }
                self.run_due_timers(&mut timers);
            }
        }
    }

    /// Tells the sessions, and warns, if this gateway goes on at `now` after it did not run.
    fn note_scheduling_delay(&mut self, delay: &mut SchedulingDelay, now: TimeNs) {
        let Some(late) = delay.note_run(now) else { return };
        self.for_each_job_group(|group, now| group.session.handle_scheduling_delay(now));
        let is_long = late >= SCHEDULING_DELAY_WARNED_MIN;
        let (late, borne) = (late.rounded(), self.fabric.patience().stalled_after_least());
        warn_if_due!(
            is_long && self.metrics.warnings.is_due(WarningCause::Limit, "scheduling delay", now),
            "this gateway did not run for {late}: it was stopped, or its machine was, or other \
             programs had the processors; its peers fail collectives after {borne} of that, so give it \
             processors of its own"
        );
    }

    /// Starts to compute the lower bound of an all-reduce, which takes a while for many regions.
    /// Collectives that complete before it is known have no efficiency.
    pub(super) fn compute_bound(&self) {
        let (fabric, bound) = (self.fabric.without_witness(), Arc::clone(&self.shared.bound));
        let computing = self.shared.host.run_blocking(Box::new(move || {
            let _ = bound.set(LowerBound::new(&fabric, Operation::AllReduce));
        }));
        self.shared.host.spawn(Box::pin(async move {
            // A panic is logged, and leaves the efficiency unknown.
            let _ = computing.await;
        }));
    }

    /// Runs the periodic work, and the timeouts of sessions and stores that are due by now.
    fn run_due_timers(&mut self, timers: &mut Timers) {
        let now = self.shared.host.now();
        let are_gauges_due = timers.gauges <= now;
        if are_gauges_due {
            timers.gauges = now + GAUGE_INTERVAL;
        }
        if timers.links <= now {
            let is_busy = self.sample_links(now);
            timers.links = if is_busy { now + LINK_SAMPLE_INTERVAL } else { timers.gauges };
        }
        if are_gauges_due {
            // The schedule of a link may give it another rate by now.
            self.apply_link_rate_limits();
            self.update_gauges(now);
        }
        if self.shared.peers.connection_deadline().is_some_and(|deadline| deadline <= now) {
            self.shared.peers.handle_connection_time(now);
            self.follow_connections("it did not come up", now);
        }
        self.follow_terms("", now);
        if self.job_deadline().is_some_and(|deadline| deadline <= now) {
            let silences = self.shared.peers.silences();
            for job in self.jobs.values_mut() {
                job.for_each_group(|group| group.note_peer_silences(&silences));
                job.handle_timeout(now);
                job.perform_actions(&self.shared);
            }
            self.report_if_drained();
        }
    }

    /// Updates the gauges of all peers and jobs, begins checks of paths, and logs problems.
    fn update_gauges(&mut self, now: TimeNs) {
        self.shared.peers.update_traffic_gauges(&self.metrics.warnings, now);
        self.jobs.values_mut().for_each(|job| job.report_gauges(now));
        self.check_paths(now);
        self.note_problems(now);
    }

    /// Tells the waiting caller that the drain of the gateway has ended, once every session is
    /// drained.
    fn report_if_drained(&mut self) {
        if self.draining.is_some()
            && self.jobs.values().all(Job::is_drained)
            && let Some(done) = self.draining.take()
        {
            let _ = done.send(());
        }
    }

    /// Handles one event of the queue, except a shutdown.
    fn handle_event(&mut self, event: Event, now: TimeNs) {
        match event {
            Event::Local(event) => {
                self.with_job_of(event.group(), |job, shared| {
                    job.handle_trainer_event(event, shared, now);
                });
            }
            Event::LaneUp { .. }
            | Event::LaneFinished { .. }
            | Event::LaneDown { .. }
            | Event::DialFailed { .. }
            | Event::LaneRefused { .. }
            | Event::PathChecked { .. }
            | Event::CloseLane { .. } => self.handle_peer_lane_event(event, now),
            Event::Message { from, id, envelope, message } => {
                if self.shared.peers.is_control_connection(from, id) {
                    self.handle_peer_message((from, id), envelope, message, now);
                }
            }
            Event::LinkMessage { from, id, message } => {
                if self.shared.peers.is_current_connection(from, id) {
                    self.handle_link_message((from, id), message, now);
                }
            }
            Event::ChangeRate { change, reply } => {
                let _ = reply.send(self.change_link_rate(&change));
            }
            Event::ChangeMembership { change, reply } => {
                let _ = reply.send(self.change_membership(change.as_ref(), now));
            }
            Event::ChangeFabric { .. } | Event::FabricVersion(_) | Event::FabricJudged { .. } => {
                self.handle_fabric_event(event, now);
            }
            Event::UpdateJobs { update, done } => drop(done.send(self.update_jobs(update, now))),
            Event::CredentialsRenewed => self.reconsider_fabrics(now),
            Event::FileFaults { files, faults } => {
                self.file_faults.insert(files, faults);
            }
            Event::Arrival { .. } | Event::ArrivalEnd { .. } | Event::ArrivalProgress { .. } => {
                self.handle_peer_arrival_event(event, now)
            }
            Event::ReduceDone { group, task: id } => {
                self.with_job_group(group, |group| group.session.handle_task_done(id, now));
            }
            // No rank may take what happens to be in the buffer for a result.
            Event::TaskPanicked => panic!("a reduction, copy or plan panicked"),
            Event::Planned { group, as_measured, plan } => {
                self.with_job_group(group, |group| {
                    group.session.handle_planned(&as_measured, plan, now);
                });
            }
            Event::SendsCancelled { group, sequence } => {
                self.with_job_group(group, |group| {
                    group.session.handle_streams_cancelled(sequence, now)
                });
            }
            Event::Drain { bound, done } => {
                self.draining = Some(done);
                self.for_each_job_group(|group, now| group.session.handle_drain(bound, now));
            }
            Event::Shutdown(_) => unreachable!("taken by the loop"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::terms::engine_fabric_set::testing::NoFabrics;
    use crate::events::ENGINE_QUEUE_MAX;
    use crate::host::VirtualHost;
    use crate::observe::engine_status_request::EngineStatusHandle;
    use hier_collectives::ids::Sequence;
    use hier_collectives::topology::{FabricGatewaySpec, FabricRegionSpec};
    use std::pin::pin;
    use wan_sim::VirtualNet;

    #[test]
    fn a_full_queue_delays_no_status_request() {
        let alone = FabricRegionSpec {
            name: "a".to_owned(),
            speeds: vec![1.0],
            gateways: vec![FabricGatewaySpec::new("a-0", 1, None)],
        };
        let fabric = Arc::new(Fabric::new("alone", 1500, vec![alone], vec![]).expect("valid"));
        let answered = crate::simulate::run_with_simulated_clock(async {
            let host = Arc::new(VirtualHost::new(VirtualNet::new(), 1));
            let (events, inbox) = mpsc::channel(ENGINE_QUEUE_MAX);
            for number in 0..ENGINE_QUEUE_MAX as u64 {
                let (group, sequence) = (GroupId::of_job("gone"), Sequence(number));
                events.try_send(Event::SendsCancelled { group, sequence }).expect("room");
            }
            let (status, status_requests) = EngineStatusHandle::new();
            let engine = Engine::new(EngineSpec {
                host,
                spans: SpanSink::default(),
                fabric,
                identity: [1; 32],
                version: FabricVersion::default(),
                judge: Arc::new(NoFabrics),
                me: GatewayId(0),
                boot: BootId(1),
                jobs: vec![],
                peers: BTreeMap::new(),
                policies: LinkPolicies::new(),
                metrics: Arc::new(MetricsRegistry::new()),
                status_requests,
                events: events.clone(),
                inbox,
            });
            let mut running = pin!(engine.run());
            tokio::select! {
                biased;
                answer = status.request() => answer.map(|_| events.capacity()),
                () = &mut running => panic!("it ended"),
            }
        });
        let handled = answered.expect("runs").expect("answered");
        assert!(handled < ENGINE_QUEUE_MAX / 2, "answered after {handled} events");
    }
}
