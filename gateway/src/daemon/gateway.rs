//! Starts a gateway's tasks, and the handle of a running gateway.

use super::fabric_judge::RunningFabricJudge;
use super::job_settings::JobSettings;
use super::link_setup::{LinkSide, link_setup_lane_threads, set_up_link_sides};
use super::memory_budget::divide_memory_budget;
use super::shutdown_messages::GatewayShutdownMessages;
use super::spec::{GatewaySpec, ObservabilitySpec, StartError};
use crate::engine::{Engine, EngineSpec};
use crate::events::{
    ChangesNotReloaded, ENGINE_QUEUE_MAX, Event, EventSender, FabricChange, FabricChangeError,
    FabricChangeReport, JobsUpdate, MembershipChange, MembershipChangeError, RateChange, RateError,
    ReloadedFiles,
};
use crate::host::{BoxFuture, Host};
use crate::local::job_spec::{JobSpec, LocalSpec};
use crate::local::local_server::{LAST_WRITE_TIMEOUT, LocalServer};
use crate::local::remote::attach_listener::AttachListenerSocket;
use crate::local::trainer_listener::TrainerListener;
use crate::observe::membership_report::MembershipReport;
use crate::observe::metrics::MetricsRegistry;
use crate::observe::status::LinkReport;
use crate::wan::connect::tls::Credentials;
use crate::wan::{self, LaneSpec, PeerLink};
use crate::warnings::Warnings;
use hier_collectives::ids::{BootId, GatewayId};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::error;
use units::Span;

/// The handle of a running gateway.
pub struct Gateway {
    events: EventSender,
    shutdown: CancellationToken,
    /// Ends once the engine has ended and peers have its last messages.
    engine: oneshot::Receiver<()>,
    /// Ends with the thread that serves trainers of other hosts, if there is one.
    attach: Option<oneshot::Receiver<()>>,
    credentials: watch::Sender<Arc<Credentials>>,
    /// The jobs whose trainers may attach.
    jobs: watch::Sender<Arc<Vec<JobSpec>>>,
    job_settings: JobSettings,
    metrics: Arc<MetricsRegistry>,
    /// The send queues and counters of each peer.
    pub peers: BTreeMap<GatewayId, Arc<PeerLink>>,
}

impl Gateway {
    /// Starts all tasks of a gateway; returns once lanes and the server for trainers listen.
    ///
    /// # Errors
    /// [`StartError`]: nothing is running then.
    pub async fn start(
        host: Arc<dyn Host>,
        spec: GatewaySpec,
        listener: Box<dyn TrainerListener>,
        ObservabilitySpec { metrics, status_requests, trace, spans }: ObservabilitySpec,
    ) -> Result<Self, StartError> {
        let (shutdown, control_writers) = (CancellationToken::new(), TaskTracker::new());
        let (events, inbox) = mpsc::channel(ENGINE_QUEUE_MAX);
        let attach = bind_gateway_attach_socket(&spec)?;
        let sides = set_up_link_sides(&host, &spec, (&metrics, &trace));
        let peers: BTreeMap<_, _> = sides.iter().flat_map(|side| side.peers.clone()).collect();
        let boot = draw_gateway_boot_id(&*host);
        let (jobs, local) = gateway_local_plane_spec(&spec, metrics.warnings.clone());
        let memory = divide_memory_budget(&spec, sides.len(), (&metrics.warnings, host.now()));
        let job_settings = JobSettings::new(&spec, boot, sides.len());
        let (credentials, renewed) = publish_gateway_credentials(&spec, &metrics);
        let engine = Engine::new(EngineSpec {
            host: Arc::clone(&host),
            spans,
            fabric: Arc::clone(&spec.fabric),
            identity: spec.identity,
            version: spec.version,
            judge: RunningFabricJudge::of_spec(&spec, sides.len(), &renewed),
            me: spec.me,
            boot,
            jobs: job_settings.sessions(&spec.jobs),
            peers: peers.clone(),
            policies: spec.policies.clone(),
            metrics: Arc::clone(&metrics),
            status_requests,
            events: events.clone(),
            inbox,
        });
        let threads = link_setup_lane_threads(&spec.fabric, spec.me, sides.len());
        for (LinkSide { listen, dials_only, peers }, threads) in sides.into_iter().zip(threads) {
            let lanes = LaneSpec {
                host: Arc::clone(&host),
                fabric: Arc::clone(&spec.fabric),
                identity: spec.identity,
                me: spec.me,
                boot,
                versions: spec.versions,
                listen,
                dials_only,
                threads,
                one_by_one: spec.listen.one_by_one,
                mtu_pinned: spec.mtu_pinned,
                segment_bytes: spec.plan.segment.get(),
                receive_windows_max: memory.receive_windows_per_network,
                credentials: renewed.clone(),
                peers,
                metrics: Arc::clone(&metrics),
                events: events.clone(),
                shutdown: shutdown.clone(),
                control_writers: control_writers.clone(),
            };
            wan::start_lane_endpoints(Arc::new(lanes)).await?;
        }
        let last_messages = GatewayShutdownMessages::new(&host, &peers, control_writers);
        let engine = spawn_gateway_engine(&*host, &shutdown, engine, last_messages);
        let local = LocalServer::new(Arc::clone(&host), local, events.clone(), shutdown.clone());
        let attach = spawn_gateway_attach_thread(&host, &local, attach, renewed)?;
        spawn_critical_gateway_task(&*host, &shutdown, Box::pin(local.serve(listener)));
        Ok(Self {
            events,
            shutdown,
            engine,
            attach,
            credentials,
            jobs,
            job_settings,
            metrics,
            peers,
        })
    }

    /// Uses other certificates and keys from the next handshake on; connections that exist keep
    /// theirs.
    pub async fn renew_credentials(&self, credentials: Credentials) {
        self.metrics.set_certificate_expiry(credentials.expiry());
        self.credentials.send_replace(Arc::new(credentials));
        // Without its engine the gateway ends.
        let _ = self.events.send(Event::CredentialsRenewed).await;
    }

    /// Replaces the jobs by those of the region file, read again. Trainers of a removed job are
    /// disconnected; those of a job with another token stay attached. `restart_needed` names
    /// changed keys that need a restart, for the status; returns those that do, now that a fabric may
    /// have come into force.
    pub async fn update_jobs(
        &self,
        jobs: Vec<JobSpec>,
        restart_needed: ChangesNotReloaded,
    ) -> Vec<String> {
        let sessions = self.job_settings.sessions(&jobs);
        let update = JobsUpdate { jobs: sessions, restart_needed };
        let (done, is_done) = oneshot::channel();
        if self.events.send(Event::UpdateJobs { update, done }).await.is_err() {
            return Vec::new();
        }
        // A trainer may attach only once the engine has the session of its job.
        let restart_needed = is_done.await.unwrap_or_default();
        let weights: BTreeMap<_, _> = jobs.iter().map(|job| (job.group(), job.weight)).collect();
        for peer in self.peers.values() {
            peer.send_queue.set_weights(weights.clone());
        }
        self.jobs.send_replace(Arc::new(jobs));
        restart_needed
    }

    /// Reports in the status why files cannot be used, with a text for each fault. An empty list
    /// ends the report about these files.
    pub async fn report_file_faults(&self, files: ReloadedFiles, faults: Vec<String>) {
        // Without its engine the gateway ends, and has no status.
        let _ = self.events.send(Event::FileFaults { files, faults }).await;
    }

    /// Waits until a task of the gateway ends without a shutdown, which is a bug. All other tasks
    /// and connections end then too.
    pub async fn wait_for_broken_task(&self) {
        self.shutdown.cancelled().await;
    }

    /// Sets an operator's rate limit of a link at both ends, or removes the limit; returns the
    /// link's state after that. `None` when the gateway is stopping.
    ///
    /// # Errors
    /// [`RateError`]: the caller's fault; nothing has changed.
    pub async fn change_link_rate(
        &self,
        change: RateChange,
    ) -> Option<Result<LinkReport, RateError>> {
        let (reply, changed) = oneshot::channel();
        self.events.send(Event::ChangeRate { change, reply }).await.ok()?;
        changed.await.ok()
    }

    /// Lets a region leave or join at a step's boundary, if a change is given; returns who goes on
    /// together now. `None` when the gateway is stopping.
    ///
    /// # Errors
    /// [`MembershipChangeError`]: the caller's fault; nothing has changed.
    pub async fn change_membership(
        &self,
        change: Option<MembershipChange>,
    ) -> Option<Result<MembershipReport, MembershipChangeError>> {
        let (reply, changed) = oneshot::channel();
        self.events.send(Event::ChangeMembership { change, reply }).await.ok()?;
        changed.await.ok()
    }

    /// Begins to put a signed fabric in force at all gateways, or has it checked; returns what it changes.
    /// `None` when the gateway is stopping.
    ///
    /// # Errors
    /// [`FabricChangeError`]: nothing has changed.
    pub async fn change_fabric(
        &self,
        change: FabricChange,
    ) -> Option<Result<FabricChangeReport, FabricChangeError>> {
        let (reply, changed) = oneshot::channel();
        self.events.send(Event::ChangeFabric { change, reply }).await.ok()?;
        changed.await.ok()
    }

    /// Closes a lane as if it had failed, for simulations; returns the number of other lanes to
    /// that peer that are up. `None` when the gateway is stopping.
    pub async fn close_lane(&self, peer: GatewayId, lane: u16) -> Option<usize> {
        let (reply, others) = oneshot::channel();
        self.events.send(Event::CloseLane { peer, lane, reply }).await.ok()?;
        others.await.ok()
    }

    /// Stops accepting posts, finishes posted collectives and waiting commits, and leaves the
    /// epochs, all within `bound`. Call [`Gateway::shut_down`] next.
    pub async fn drain(&self, bound: Span) {
        let (done, is_done) = oneshot::channel();
        if self.events.send(Event::Drain { bound, done }).await.is_ok() {
            let _ = is_done.await;
        }
    }

    /// Ends the epochs, tells peers and trainers why, and stops all tasks; returns once they have
    /// ended.
    pub async fn shut_down(self) {
        let (done, is_done) = oneshot::channel();
        if self.events.send(Event::Shutdown(done)).await.is_ok() {
            let _ = is_done.await;
        }
        let _ = self.engine.await;
        self.shutdown.cancel();
        if let Some(attach) = self.attach {
            let _ = attach.await;
        }
    }
}

/// Spawns the engine's task. Returns a receiver that ends with the task, which ends after the last
/// messages.
fn spawn_gateway_engine(
    host: &dyn Host,
    shutdown: &CancellationToken,
    engine: Engine,
    last_messages: GatewayShutdownMessages,
) -> oneshot::Receiver<()> {
    let (ended, is_ended) = oneshot::channel();
    let run_engine = async move {
        engine.run().await;
        last_messages.wait_until_acknowledged().await;
        let _ = ended.send(());
    };
    spawn_critical_gateway_task(host, shutdown, Box::pin(run_engine));
    is_ended
}

/// Starts the thread that serves trainers of other hosts, whose end shuts the whole gateway down. Its
/// TLS delays neither engine nor lanes. Returns a receiver that ends with the thread; `None` without a socket.
fn spawn_gateway_attach_thread(
    host: &Arc<dyn Host>,
    local: &Arc<LocalServer>,
    socket: Option<AttachListenerSocket>,
    credentials: watch::Receiver<Arc<Credentials>>,
) -> Result<Option<oneshot::Receiver<()>>, StartError> {
    let Some(socket) = socket else { return Ok(None) };
    let (ended, is_ended) = oneshot::channel();
    let (guard, of_thread) = (local.shutdown_guard(), Arc::clone(host));
    let local = Arc::clone(local);
    let start = move || -> BoxFuture<()> {
        Box::pin(async move {
            let _guard = guard;
            match socket.listen(credentials) {
                Ok(listener) => local.serve(Box::new(listener)).await,
                Err(error) => error!("no trainer of another host can attach: {error}"),
            }
            // The tasks of trainers write their last messages meanwhile.
            of_thread.sleep_until(of_thread.now() + LAST_WRITE_TIMEOUT).await;
            let _ = ended.send(());
        })
    };
    host.spawn_thread("attach", Box::new(start)).map_err(StartError::Thread)?;
    Ok(Some(is_ended))
}

/// Shows when the credentials expire, and makes the channel for renewed ones.
fn publish_gateway_credentials(
    spec: &GatewaySpec,
    metrics: &MetricsRegistry,
) -> (watch::Sender<Arc<Credentials>>, watch::Receiver<Arc<Credentials>>) {
    metrics.set_certificate_expiry(spec.credentials.expiry());
    watch::channel(Arc::clone(&spec.credentials))
}

/// Binds the TCP address for trainers of other hosts; `None` if the settings have none. It may be taken, so
/// nothing runs before.
fn bind_gateway_attach_socket(
    spec: &GatewaySpec,
) -> Result<Option<AttachListenerSocket>, StartError> {
    let attach = spec.attach.as_ref();
    let bound = attach.map(|attach| AttachListenerSocket::bind(attach, &spec.credentials));
    Ok(bound.transpose()?)
}

/// Spawns a task whose end, also by a panic, shuts the whole gateway down.
fn spawn_critical_gateway_task(host: &dyn Host, shutdown: &CancellationToken, task: BoxFuture<()>) {
    let guard = shutdown.clone().drop_guard();
    host.spawn(Box::pin(async move {
        let _guard = guard;
        task.await;
    }));
}

/// Draws the random number that names this start of the gateway.
fn draw_gateway_boot_id(host: &dyn Host) -> BootId {
    let mut boot = [0; 8];
    boot.copy_from_slice(&host.random_bytes()[..8]);
    BootId(u64::from_le_bytes(boot))
}

/// Makes the settings of the server for trainers and operators of this host, and the end by which its jobs
/// are replaced.
fn gateway_local_plane_spec(
    spec: &GatewaySpec,
    warnings: Warnings,
) -> (watch::Sender<Arc<Vec<JobSpec>>>, LocalSpec) {
    let (sender, jobs) = watch::channel(Arc::new(spec.jobs.clone()));
    let local = LocalSpec {
        ranks: spec.fabric.gateway(spec.me).ranks.clone(),
        world_size: spec.fabric.world_size(),
        fabric: spec.fabric.name().to_owned(),
        jobs,
        warnings,
    };
    (sender, local)
}
