//! `landbridge run`.

use super::{CommandError, Exit};
use crate::config::{GatewayConfig, JobConfig, RegionFile};
use crate::daemon::{Gateway, GatewaySpec};
use crate::host::RealHost;
use crate::local::door::UnixDoor;
use crate::local::server::Job;
use crate::observe::metrics::Metrics;
use crate::observe::server::{Observed, serve};
use crate::observe::status::StatusDoor;
use crate::wan::tls::Credentials;
use clap::Args;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

/// Run a gateway until it is stopped. Logs go to stderr; LANDBRIDGE_LOG=debug shows more.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge run --config configs/two-region/east.toml")]
pub(super) struct Run {
    /// The region file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Which gateway, where the file has several
    #[arg(long, value_name = "NAME")]
    gateway: Option<String>,
    /// End when the parent process ends
    #[arg(long, hide = true)]
    exit_with_parent: bool,
}

impl Run {
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        if self.exit_with_parent {
            super::exit_with_parent()?;
        }
        super::log_to_stderr();
        let region = RegionFile::load(&self.config)?;
        let config = region.gateway(self.gateway.as_deref())?;
        let spec = gateway_spec(&region, config)?;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        runtime.block_on(run(config, spec))
    }
}

async fn run(config: &GatewayConfig, spec: GatewaySpec) -> Result<Exit, CommandError> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let door = UnixDoor::open(&config.socket)
        .map_err(|source| CommandError::Path { path: config.socket.clone(), source })?;
    let listener = TcpListener::bind(config.status)
        .await
        .map_err(|source| CommandError::Address { address: config.status, source })?;
    let metrics = Arc::new(Metrics::new());
    let (status, questions) = StatusDoor::new();
    let observed = Observed { metrics: Arc::clone(&metrics), door: status };
    let host = Arc::new(RealHost);
    let gateway = Gateway::start(host, spec, Box::new(door), (metrics, questions)).await?;
    info!("gateway {} is up; trainers attach at {}", config.name, config.socket.display());
    let exit = tokio::select! {
        biased;
        _ = interrupt.recv() => Exit::Interrupted,
        _ = terminate.recv() => Exit::Good,
        served = serve(listener, observed) => {
            warn!("the status server ended: {served:?}");
            Exit::CheckFailed
        }
    };
    info!("stopping");
    gateway.shut_down().await;
    Ok(exit)
}

fn gateway_spec(region: &RegionFile, config: &GatewayConfig) -> Result<GatewaySpec, CommandError> {
    let file = region.fabric();
    let fabric = Arc::new(file.fabric().clone());
    let addresses = fabric.gateway_ids().filter_map(|id| Some((id, file.address(id)?))).collect();
    let own = config.listen.or_else(|| file.address(config.id));
    Ok(GatewaySpec {
        identity: file.identity(),
        me: config.id,
        // A gateway without a port dials nobody and is dialled by nobody.
        listen: own.unwrap_or_else(|| ([127, 0, 0, 1], 0).into()),
        addresses,
        credentials: Credentials::load(&config.certificate, &config.key, &config.ca)?,
        jobs: region.jobs().map(job).collect::<Result<_, _>>()?,
        memory: config.memory,
        segment: None,
        fabric,
    })
}

fn job(config: &JobConfig) -> Result<Job, CommandError> {
    let token = super::token::load(&config.token)?;
    Ok(Job { name: config.name.clone(), token, memory: config.memory, weight: config.weight })
}
