//! `landbridge run`.

use super::{CommandError, Exit};
use crate::config::{GatewayConfig, JobConfig, RegionFile};
use crate::daemon::{Gateway, GatewaySpec, Listen, StartError};
use crate::host::RealHost;
use crate::local::job::JobSpec;
use crate::local::listener::UnixSocketListener;
use crate::observe::metrics::Metrics;
use crate::observe::server::{Observed, serve};
use crate::observe::status::StatusDoor;
use crate::wan::connect::tls::Credentials;
use clap::Args;
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

/// How long what is posted may take after SIGTERM; supervisors commonly kill after 30 s.
const DRAIN_BOUND: Span = Span::from_secs(25);

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
    /// Length of segments, at all gateways, in place of the plan's: for comparisons
    #[arg(long, value_name = "SIZE", hide = true)]
    segment: Option<ByteCount>,
}

impl Run {
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        if self.exit_with_parent {
            super::exit_with_parent()?;
        }
        super::log_to_stderr()?;
        let region = RegionFile::load(&self.config)?;
        let config = region.gateway(self.gateway.as_deref())?;
        // Before they are loaded, so that no change falls between.
        let papers = papers(config);
        let mut spec = gateway_spec(&region, config)?;
        spec.plan.segment = self.segment.unwrap_or(spec.plan.segment);
        super::stop::watch(DRAIN_BOUND)?;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        runtime.block_on(run(config, spec, papers))
    }
}

async fn run(
    config: &GatewayConfig,
    spec: GatewaySpec,
    papers: Papers,
) -> Result<Exit, CommandError> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let hangup = signal(SignalKind::hangup())?;
    let door = UnixSocketListener::open(&config.socket)
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
    let mut serving = pin!(serve(listener, observed));
    let exit = tokio::select! {
        biased;
        _ = interrupt.recv() => Exit::Interrupted,
        _ = terminate.recv() => Exit::Good,
        () = gateway.broken() => {
            error!("a part of the gateway has ended, which is a bug; see above for its panic");
            Exit::CheckFailed
        }
        never = &mut serving => match never {},
        never = renew(&gateway, config, papers, hangup) => match never {},
    };
    if exit == Exit::Good {
        info!("finishing what is posted, within {DRAIN_BOUND}");
        tokio::select! {
            biased;
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = gateway.drain(DRAIN_BOUND) => {}
            never = &mut serving => match never {},
        }
    }
    info!("stopping");
    gateway.shut_down().await;
    Ok(exit)
}

/// What the files of the credentials hold; `None` for one that cannot be read.
type Papers = [Option<Vec<u8>>; 3];

fn papers(config: &GatewayConfig) -> Papers {
    [&config.certificate, &config.key, &config.ca].map(|path| std::fs::read(path).ok())
}

/// Takes up renewed certificates: when told by SIGHUP, or when the files are seen to differ.
async fn renew(
    gateway: &Gateway,
    config: &GatewayConfig,
    mut known: Papers,
    mut hangup: Signal,
) -> Infallible {
    loop {
        let told = tokio::select! {
            biased;
            Some(()) = hangup.recv() => true,
            () = tokio::time::sleep(LOOK_EVERY) => false,
        };
        let found = papers(config);
        if found == known && !told {
            continue;
        }
        known = found;
        match Credentials::load(&config.certificate, &config.key, &config.ca) {
            Ok(credentials) => {
                gateway.renew(credentials);
                info!("certificates read again: new connections use them, the others go on");
            }
            Err(error) => warn!("certificates stay as they were: {error}"),
        }
    }
}

/// How often the files of the credentials are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(30);

fn gateway_spec(region: &RegionFile, config: &GatewayConfig) -> Result<GatewaySpec, CommandError> {
    let file = region.fabric();
    let fabric = Arc::new(file.fabric().clone());
    let wan = |id| Some((id, file.lane_addresses(id)?.clone()));
    let lan = |id| Some((id, file.lan_addresses(id)?.clone()));
    let own = config.listen.as_ref().or_else(|| file.lane_addresses(config.id));
    Ok(GatewaySpec {
        identity: file.identity(),
        me: config.id,
        listen: Listen {
            wan: own.cloned(),
            lan: file.lan_addresses(config.id).cloned(),
            one_by_one: !config.segmentation_offload,
        },
        addresses: fabric.gateway_ids().filter_map(wan).collect(),
        mtu_pinned: file.mtu_pinned(),
        lan_addresses: fabric.gateway_ids().filter_map(lan).collect(),
        credentials: Credentials::load(&config.certificate, &config.key, &config.ca)?,
        jobs: region.jobs().map(job).collect::<Result<_, _>>()?,
        memory: config.memory,
        plan: plan::plan(&fabric).map_err(StartError::from)?,
        policies: file.policies().clone(),
        fabric,
    })
}

fn job(config: &JobConfig) -> Result<JobSpec, CommandError> {
    let token = super::token::load(&config.token)?;
    Ok(JobSpec { name: config.name.clone(), token, memory: config.memory, weight: config.weight })
}
