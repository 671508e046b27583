//! `landbridge run`: the daemon's life, from its files to its exit code.
//!
//! `run` answers signals: SIGHUP reads files again ([`reload`]), SIGTERM drains, SIGINT stops at
//! once. The thread in [`stop`] ends the process when the gateway does not. [`service_manager`]
//! tells systemd that the gateway is ready, alive or stopping.

mod engine_runtime;
mod failure_dumps;
mod processor_monitor;
mod reload;
pub(in crate::cli) mod run_secrets;
mod service_manager;
mod span_exporter;
mod stop;
mod stray_signals;
mod system_limits;
mod trace_file;

use crate::cli::config::RegionGatewayArguments;
use crate::cli::output::command_error::CommandError;
use crate::cli::output::exit::Exit;
use crate::cli::output::logging::{LOG_TARGET, log_to_stderr};
use crate::cli::output::parent::exit_with_parent;
use clap::Args;
use engine_runtime::block_on_with_engine_runtime;
use failure_dumps::write_failure_dumps;
use gateway::access::{own_user_account, user_account_label};
use gateway::config::{GatewayConfig, RegionFile};
use gateway::daemon::{
    Gateway, GatewaySpec, KeptFabric, ListenSpec, ObservabilitySpec, StartError,
};
use gateway::host::{Host, RealHost};
use gateway::local::remote::attach_listener::AttachSpec;
use gateway::local::socket::{GatewaySocketSpec, UnixSocketListener};
use gateway::observe::engine_status_request::EngineStatusHandle;
use gateway::observe::http_server::{AnswerSources, run_http_server};
use gateway::observe::metrics::MetricsRegistry;
use hier_collectives::plan;
use hier_collectives::wire::WireVersions;
use processor_monitor::monitor_processor_throttle;
use reload::FilesToReload;
use service_manager::ServiceManager;
use signal_hook::consts::SIGXCPU;
use span_exporter::SpanExporter;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use stdio::ExitOnTerminalSignal;
use stray_signals::StraySignals;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use trace_file::TraceFile;
use tracing::{error, info};
use units::{ByteCount, Span};

/// 25 s: the longest time after SIGTERM in which a gateway finishes posted collectives; then those
/// under way fail, and it stops. Supervisors commonly kill a process after 30 s.
const DRAIN_TIMEOUT: Span = Span::from_secs(25);

/// Run a gateway until it is stopped. Logs go to stderr; LANDBRIDGE_LOG=debug logs more,
/// LANDBRIDGE_LOG_FORMAT=json logs JSON lines.
///
/// SIGTERM finishes what all ranks have posted, within 25 s; SIGINT stops at once. SIGHUP reads the
/// jobs of the region file and the certificates again. `landbridge status` shows the running
/// gateway. Under systemd it says when it is ready, stopping and alive (Type=notify, WatchdogSec=).
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge run --config configs/two-region/east.toml")]
pub(super) struct RunCommand {
    #[command(flatten)]
    gateway: RegionGatewayArguments,
    /// End when the parent process ends
    #[arg(long, hide = true)]
    exit_with_parent: bool,
    /// Write phase, rate, window, round-trip time and loss of each lane and link as JSON lines, for
    /// `landbridge trace`
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Length of segments instead of the plan's, for comparisons: set it at all gateways
    #[arg(long, value_name = "SIZE", hide = true)]
    segment: Option<ByteCount>,
}

impl RunCommand {
    /// Runs `landbridge run`: reads the files and runs the gateway until a signal stops it. Until the
    /// gateway handles signals itself, `interrupts` end the process.
    pub(super) fn run(self, interrupts: ExitOnTerminalSignal) -> Result<Exit, CommandError> {
        if self.exit_with_parent {
            exit_with_parent()?;
        }
        let metrics = Arc::new(MetricsRegistry::new());
        let lost_log_lines = metrics.lost_log_lines.clone();
        log_to_stderr(move |lines| {
            lost_log_lines.inc_by(lines);
        })?;
        let region = self.gateway.load_region()?;
        let config = self.gateway.choose(&region)?;
        system_limits::check_system_limits(&region, config, &metrics.warnings)?;
        // Read before they are loaded, so that a change in between is noticed.
        let credentials = run_secrets::read_run_secret_files(config);
        let socket = run_command_socket_spec(config)?;
        run_secrets::check_run_secret_tokens(&region, config)?;
        let mut spec = run_command_gateway_spec(&region, config)?;
        let files = FilesToReload {
            region: &region,
            config,
            credentials,
            jobs: spec.jobs.clone(),
            warnings: metrics.warnings.clone(),
        };
        spec.plan.segment = self.segment.unwrap_or(spec.plan.segment);
        spec.take_up_kept_fabric(&metrics.warnings, RealHost.now());
        let (file, trace) = self.trace.as_deref().map(TraceFile::create).transpose()?.unzip();
        stop::spawn_stop_watchdog(DRAIN_TIMEOUT)?;
        RealHost.start_threads()?;
        let (status, status_requests) = EngineStatusHandle::new();
        let (trace, metrics) = (trace.unwrap_or_default(), Arc::clone(&metrics));
        let (exporter, spans) = SpanExporter::start(&region, config, &metrics)?.unzip();
        let spans = spans.unwrap_or_default();
        let observability = ObservabilitySpec { metrics, status_requests, trace, spans };
        let observed = (observability, status);
        let ended =
            block_on_with_engine_runtime(run_gateway(files, spec, (socket, observed), interrupts));
        if let Some(file) = file {
            file.finish();
        }
        if let Some(exporter) = exporter {
            exporter.finish();
        }
        ended?
    }
}

/// Starts a gateway, follows changes of its files, and stops it on SIGINT or, after a drain, on
/// SIGTERM. Also stops it at the limit on processor time or after a task's panic, with
/// [`Exit::CheckFailed`].
async fn run_gateway(
    files: FilesToReload<'_>,
    spec: GatewaySpec,
    (socket, (observability, status)): (GatewaySocketSpec, (ObservabilitySpec, EngineStatusHandle)),
    interrupts: ExitOnTerminalSignal,
) -> Result<Exit, CommandError> {
    let (config, metrics) = (files.config, Arc::clone(&observability.metrics));
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut out_of_time = signal(SignalKind::from_raw(SIGXCPU))?;
    let hangup = signal(SignalKind::hangup())?;
    interrupts.end();
    let strays = StraySignals::listen()?;
    let trainers = UnixSocketListener::open(socket, metrics.warnings.clone())?;
    let socket_problem = trainers.problem();
    let listener = TcpListener::bind(config.status)
        .await
        .map_err(|source| CommandError::Address { address: config.status, source })?;
    let engine = status.clone();
    let manager = ServiceManager::from_environment(metrics.warnings.clone());
    let attach = config.attach.map(|address| address.to_string());
    let (processor, processor_problem) = watch::channel(None);
    let monitored = monitor_processor_throttle(processor, metrics.warnings.clone());
    let observed = AnswerSources { metrics, status, socket_problem, processor_problem, attach };
    let dumped = write_failure_dumps(config, Arc::clone(&spec.fabric), observed.clone());
    let gateway =
        Gateway::start(Arc::new(RealHost), spec, Box::new(trainers), observability).await?;
    log_running_gateway(config);
    manager.tell_ready(&config.name);
    let mut serving = pin!(async {
        tokio::select! {
            never = run_http_server(listener, observed) => never,
            (never, _) = async { tokio::join!(monitored, dumped) } => never,
            never = manager.ping_while_alive(async || engine.request().await.is_ok()) => never,
        }
    });
    let exit = tokio::select! {
        biased;
        _ = interrupt.recv() => Exit::Interrupted,
        _ = terminate.recv() => Exit::Good,
        _ = out_of_time.recv() => {
            error!(target: LOG_TARGET, "the limit on processor time is reached (ulimit -t): ending before the kernel kills this gateway");
            Exit::CheckFailed
        }
        () = gateway.wait_for_broken_task() => {
            error!(target: LOG_TARGET, "a task of the gateway ended, which is a bug: its panic is logged above");
            Exit::CheckFailed
        }
        never = &mut serving => match never {},
        never = reload::reload_changed_files(&gateway, files, hangup) => match never {},
        never = strays.tell() => match never {},
    };
    manager.tell_stopping(&config.name);
    if exit == Exit::Good {
        info!(target: LOG_TARGET, "shutting down: finishing posted collectives within {DRAIN_TIMEOUT}");
        tokio::select! {
            biased;
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = gateway.drain(DRAIN_TIMEOUT) => {}
            never = &mut serving => match never {},
        }
    }
    info!(target: LOG_TARGET, "stopping");
    gateway.shut_down().await;
    Ok(exit)
}

/// Logs that a gateway is up, and where trainers attach.
fn log_running_gateway(config: &GatewayConfig) {
    let over_tls = config.attach.map(|address| format!(", from other hosts at tls://{address}"));
    let (socket, over_tls) = (config.socket.display(), over_tls.unwrap_or_default());
    info!(target: LOG_TARGET, "gateway {} is up; trainers attach at {socket}{over_tls}", config.name);
}

/// Returns the settings of the gateway's socket. Refuses to run as another user than the one that
/// the region file names, if it names one.
fn run_command_socket_spec(config: &GatewayConfig) -> Result<GatewaySocketSpec, CommandError> {
    if let Some(user) = config.user_id()?.filter(|user| *user != own_user_account()) {
        let (own, user) = (user_account_label(own_user_account()), user_account_label(user));
        let text = format!(
            "this process runs as user {own}, and `user` of gateway {} is {user}: start it as that \
             user, or correct the region file",
            config.name
        );
        return Err(CommandError::Usage(text));
    }
    Ok(GatewaySocketSpec::new(config.socket.clone(), config.group_id()?, config.mode))
}

/// Returns the specification of a gateway, with credentials and tokens loaded and the fabric
/// planned.
fn run_command_gateway_spec(
    region: &RegionFile,
    config: &GatewayConfig,
) -> Result<GatewaySpec, CommandError> {
    let file = region.fabric();
    let fabric = Arc::new(file.fabric().clone());
    let wan = |id| Some((id, file.lane_addresses(id)?.clone()));
    let lan = |id| Some((id, file.lan_addresses(id)?.clone()));
    Ok(GatewaySpec {
        identity: file.identity(),
        version: file.version(),
        me: config.id,
        versions: WireVersions::OWN,
        listen: ListenSpec {
            wan: region.wan_addresses_to_bind(config),
            dials_only: file.dials_only(config.id),
            lan: region.lan_addresses_to_bind(config),
            one_by_one: !config.segmentation_offload,
        },
        addresses: fabric.gateway_ids().filter_map(wan).collect(),
        mtu_pinned: file.mtu_pinned(),
        lan_addresses: fabric.gateway_ids().filter_map(lan).collect(),
        credentials: Arc::new(run_secrets::load_run_secret_credentials(config, fabric.name())?),
        attach: config.attach.map(|address| {
            let trainers_ca = config.trainers_ca.clone();
            AttachSpec { address, trainers_ca }
        }),
        jobs: region.jobs().map(run_secrets::load_job_spec).collect::<Result<_, _>>()?,
        memory: config.memory,
        plan: plan::make_plan(&fabric).map_err(StartError::from)?,
        policies: file.policies().clone(),
        kept: Some(Arc::new(KeptFabric::beside(file.path(), &config.name, file.version()))),
        signed: None,
        fabric,
    })
}
