//! `landbridge run`: the daemon's life, from its files to its exit code.
//!
//! `run` answers signals: SIGHUP reads certificates again, SIGTERM drains, SIGINT stops at once.
//! The thread in [`stop`] ends the process when the gateway does not.

mod own_certificate;
mod stop;

use crate::cli::output::exit::{CommandError, Exit};
use crate::cli::output::logging::{LOG_TARGET, log_to_stderr};
use crate::cli::output::parent::exit_with_parent;
use clap::Args;
use gateway::config::{GatewayConfig, JobConfig, RegionFile};
use gateway::daemon::{Gateway, GatewaySpec, ListenAddresses, Observability, StartError};
use gateway::host::RealHost;
use gateway::local::job::JobSpec;
use gateway::local::listener::UnixSocketListener;
use gateway::local::token_file;
use gateway::observe::metrics::MetricsRegistry;
use gateway::observe::server::{Observed, serve_http};
use gateway::observe::status_request::StatusHandle;
use gateway::wan::connect::tls::Credentials;
use hier_collectives::plan;
use std::convert::Infallible;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};
use units::{ByteCount, Span};

/// 25 s to finish posted collectives after SIGTERM: supervisors commonly kill after 30 s.
const DRAIN_TIMEOUT: Span = Span::from_secs(25);

/// Run a gateway until it is stopped. Logs go to stderr; LANDBRIDGE_LOG=debug logs more.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge run --config configs/two-region/east.toml")]
pub(super) struct RunCommand {
    /// The region file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The gateway, if the file has several
    #[arg(long, value_name = "NAME")]
    gateway: Option<String>,
    /// End when the parent process ends
    #[arg(long, hide = true)]
    exit_with_parent: bool,
    /// Length of segments instead of the plan's, for comparisons: set it at all gateways
    #[arg(long, value_name = "SIZE", hide = true)]
    segment: Option<ByteCount>,
}

impl RunCommand {
    /// Runs `landbridge run`: reads the files and runs the gateway until a signal stops it.
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        if self.exit_with_parent {
            exit_with_parent()?;
        }
        log_to_stderr()?;
        let region = RegionFile::load(&self.config)?;
        let config = region.gateway(self.gateway.as_deref())?;
        // Read before they are loaded, so that a change in between is noticed.
        let credential_files = read_credential_files(config);
        let mut spec = gateway_spec(&region, config)?;
        let fabric = region.fabric().fabric().name();
        own_certificate::warn_of_own_certificate(&spec.credentials, config, fabric);
        spec.plan.segment = self.segment.unwrap_or(spec.plan.segment);
        stop::spawn_stop_watchdog(DRAIN_TIMEOUT)?;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        runtime.block_on(run_gateway(config, spec, credential_files))
    }
}

/// Starts a gateway, renews its certificates, and stops it on SIGINT or, after a drain, on SIGTERM.
async fn run_gateway(
    config: &GatewayConfig,
    spec: GatewaySpec,
    credential_files: CredentialFiles,
) -> Result<Exit, CommandError> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let hangup = signal(SignalKind::hangup())?;
    let trainers = UnixSocketListener::open(&config.socket)
        .map_err(|source| CommandError::Path { path: config.socket.clone(), source })?;
    let listener = TcpListener::bind(config.status)
        .await
        .map_err(|source| CommandError::Address { address: config.status, source })?;
    let metrics = Arc::new(MetricsRegistry::new());
    let (status, status_requests) = StatusHandle::new();
    let observed = Observed { metrics: Arc::clone(&metrics), status };
    let observability = Observability { metrics, status_requests };
    let host = Arc::new(RealHost);
    let gateway = Gateway::start(host, spec, Box::new(trainers), observability).await?;
    info!(target: LOG_TARGET, "gateway {} is up; trainers attach at {}", config.name, config.socket.display());
    let mut serving = pin!(serve_http(listener, observed));
    let exit = tokio::select! {
        biased;
        _ = interrupt.recv() => Exit::Interrupted,
        _ = terminate.recv() => Exit::Good,
        () = gateway.wait_for_broken_task() => {
            error!(target: LOG_TARGET, "a task of the gateway ended, which is a bug: its panic is logged above");
            Exit::CheckFailed
        }
        never = &mut serving => match never {},
        never = renew_certificates(&gateway, config, credential_files, hangup) => match never {},
    };
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

/// Contents of the certificate, key and CA files; `None` for a file that cannot be read.
type CredentialFiles = [Option<Vec<u8>>; 3];

/// Reads certificate, key and CA, to notice when a file changes.
fn read_credential_files(config: &GatewayConfig) -> CredentialFiles {
    [&config.certificate, &config.key, &config.ca].map(|path| std::fs::read(path).ok())
}

/// Loads renewed certificates into the gateway on SIGHUP, and when the credential files have
/// changed.
async fn renew_certificates(
    gateway: &Gateway,
    config: &GatewayConfig,
    mut known: CredentialFiles,
    mut hangup: Signal,
) -> Infallible {
    loop {
        let signalled = tokio::select! {
            biased;
            Some(()) = hangup.recv() => true,
            () = tokio::time::sleep(CERTIFICATE_POLL_INTERVAL) => false,
        };
        let found = read_credential_files(config);
        if found == known && !signalled {
            continue;
        }
        known = found;
        match Credentials::load(&config.certificate, &config.key, &config.ca) {
            Ok(credentials) => {
                gateway.renew_credentials(credentials);
                info!(target: LOG_TARGET, "certificates read again: new connections use them; open connections continue");
            }
            Err(error) => warn!(target: LOG_TARGET, "certificates were not replaced: {error}"),
        }
    }
}

/// 30 s between reads of the credential files: without a signal, renewed certificates count after
/// that time at most.
const CERTIFICATE_POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Returns the specification of a gateway, with credentials and tokens loaded and the fabric
/// planned.
fn gateway_spec(region: &RegionFile, config: &GatewayConfig) -> Result<GatewaySpec, CommandError> {
    let file = region.fabric();
    let fabric = Arc::new(file.fabric().clone());
    let wan = |id| Some((id, file.lane_addresses(id)?.clone()));
    let lan = |id| Some((id, file.lan_addresses(id)?.clone()));
    let listen = config.listen.as_ref().or_else(|| file.lane_addresses(config.id));
    Ok(GatewaySpec {
        identity: file.identity(),
        me: config.id,
        listen: ListenAddresses {
            wan: listen.cloned(),
            lan: file.lan_addresses(config.id).cloned(),
            one_by_one: !config.segmentation_offload,
        },
        addresses: fabric.gateway_ids().filter_map(wan).collect(),
        mtu_pinned: file.mtu_pinned(),
        lan_addresses: fabric.gateway_ids().filter_map(lan).collect(),
        credentials: Credentials::load(&config.certificate, &config.key, &config.ca)?,
        jobs: region.jobs().map(job_spec).collect::<Result<_, _>>()?,
        memory: config.memory,
        plan: plan::make_plan(&fabric).map_err(StartError::from)?,
        policies: file.policies().clone(),
        fabric,
    })
}

/// Returns the specification of a job, with its token loaded.
fn job_spec(config: &JobConfig) -> Result<JobSpec, CommandError> {
    let token = token_file::load_token(&config.token)?;
    Ok(JobSpec { name: config.name.clone(), token, memory: config.memory, weight: config.weight })
}
