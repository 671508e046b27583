//! The wishes of a program that connects: the gateway, the job and the rank.
//!
//! A region file is read by the reader of the gateways themselves, so that all take the same files.

use crate::call_error::CallError;
use crate::call_status::CallStatus;
use gateway::client::{AttachOptions, AttachTlsGateway, GatewayAddress};
use gateway::config::RegionFile;
use gateway::local::protocol::Token;
use gateway::local::token_file::load_token_file;
use hier_collectives::ids::RankId;
use hier_collectives::topology::Fabric;
use std::path::{Path, PathBuf};
use units::Span;

/// The rank that a program asks for.
#[derive(Debug, Clone, Copy)]
pub enum RankChoice<'a> {
    /// By its number in the fabric.
    Number(u32),
    /// By its number in a region.
    InRegion {
        /// Name of the region.
        region: &'a str,
        /// Number of the rank there.
        local_rank: u32,
    },
}

/// Where a token comes from.
#[derive(Debug, Clone, Copy)]
pub enum TokenSource<'a> {
    /// A file.
    File(&'a Path),
    /// The program.
    Given(Token),
}

/// How a program says where its gateway is.
#[derive(Debug, Clone)]
pub enum GatewayChoice<'a> {
    /// By a region file.
    File {
        /// Path of the file.
        config: &'a Path,
        /// Name of a gateway.
        gateway: Option<&'a str>,
        /// Name of a job.
        job: Option<&'a str>,
        /// The rank.
        rank: RankChoice<'a>,
    },
    /// By its socket.
    Socket {
        /// Path of the socket.
        socket: &'a Path,
        /// Number of the user as whom the gateway runs.
        gateway_user: Option<u32>,
        /// The rank and its job.
        of: RankOfJob<'a>,
    },
    /// By its address on another host.
    Tls {
        /// Address and files for TLS.
        gateway: AttachTlsGateway,
        /// The rank and its job.
        of: RankOfJob<'a>,
    },
}

/// A rank of a job, where no file says which jobs there are.
#[derive(Debug, Clone, Copy)]
pub struct RankOfJob<'a> {
    /// Name of the job.
    pub job: &'a str,
    /// The job's token.
    pub token: TokenSource<'a>,
    /// Number of the rank.
    pub rank: u32,
}

impl RankOfJob<'_> {
    /// Returns how the rank attaches, with an arena of `arena_bytes` bytes.
    fn attach_options(self, arena_bytes: u64) -> Result<AttachOptions, CallError> {
        let token = match self.token {
            TokenSource::Given(token) => token,
            TokenSource::File(path) => read_token_connect_setting(path)?,
        };
        Ok(AttachOptions::new(self.job, token, self.rank, arena_bytes))
    }
}

/// Everything that attaching takes.
#[derive(Debug)]
pub struct ConnectSettings {
    /// The gateway's socket or address.
    pub address: GatewayAddress,
    /// Number of ranks of the fabric, where a file says it.
    pub world_size: Option<u32>,
    /// Job, rank, token, arena and timeout.
    pub attach: AttachOptions,
}

impl ConnectSettings {
    /// Returns the socket or address, the world size and the attach options of a rank, read from
    /// the files that `choice` names. The rank's arena has `arena_bytes` bytes.
    ///
    /// # Errors
    /// [`CallStatus::Config`]: a file cannot be used. [`CallStatus::InvalidArgument`]: it has no
    /// such gateway, job or rank.
    pub fn resolve(
        choice: &GatewayChoice<'_>,
        arena_bytes: u64,
        timeout: Span,
    ) -> Result<Self, CallError> {
        let (address, world_size, attach) = match choice {
            GatewayChoice::Socket { socket, gateway_user, of } => {
                let attach = of.attach_options(arena_bytes)?;
                let attach = AttachOptions { gateway_user: *gateway_user, ..attach };
                (GatewayAddress::Socket(socket.to_path_buf()), None, attach)
            }
            GatewayChoice::Tls { gateway, of } => {
                let attach = of.attach_options(arena_bytes)?;
                (GatewayAddress::Tls(gateway.clone()), None, attach)
            }
            GatewayChoice::File { config, gateway, job, rank } => {
                let file = RegionFile::load(config)
                    .map_err(|faults| CallError::new(CallStatus::Config, faults.to_string()))?;
                let found =
                    read_region_connect_settings(&file, *gateway, *job, *rank, arena_bytes)?;
                (GatewayAddress::Socket(found.0), found.1, found.2)
            }
        };
        let attach = AttachOptions { gateway_timeout: timeout, epoch_timeout: timeout, ..attach };
        Ok(Self { address, world_size, attach })
    }
}

/// Returns a rank's socket, the number of ranks, and how it attaches, by its region file.
fn read_region_connect_settings(
    file: &RegionFile,
    gateway: Option<&str>,
    job: Option<&str>,
    rank: RankChoice<'_>,
    arena_bytes: u64,
) -> Result<(PathBuf, Option<u32>, AttachOptions), CallError> {
    let fabric = file.fabric().fabric();
    let rank = find_rank_connect_setting(fabric, rank)?;
    let serving = fabric.gateway_of(rank).map(|id| fabric.gateway(id).name.as_str());
    let serving = serving.filter(|name| file.gateways().any(|found| found.name == *name));
    let gateways: Vec<_> = file.gateways().map(|found| (found.name.as_str(), found)).collect();
    let found =
        choose_named_connect_setting(file.path(), "gateway", &gateways, gateway.or(serving))?;
    let jobs: Vec<_> = file.jobs().map(|found| (found.name.as_str(), found)).collect();
    let job = choose_named_connect_setting(file.path(), "job", &jobs, job)?;
    let user = found.user_id().map_err(|error| {
        let text = format!("{}: gateway.{}.user: {error}", file.path().display(), found.name);
        CallError::new(CallStatus::Config, text)
    })?;
    let attach =
        AttachOptions::new(&job.name, read_token_connect_setting(&job.token)?, rank.0, arena_bytes);
    let attach = AttachOptions { gateway_user: user, ..attach };
    Ok((found.socket.clone(), Some(fabric.world_size()), attach))
}

/// Returns the number in the job of the rank that a program chose, by that number or by its place
/// in a region.
fn find_rank_connect_setting(fabric: &Fabric, choice: RankChoice<'_>) -> Result<RankId, CallError> {
    let last = fabric.world_size().saturating_sub(1);
    match choice {
        RankChoice::Number(rank) if rank <= last => Ok(RankId(rank)),
        RankChoice::Number(rank) => {
            Err(CallError::invalid(format!("rank {rank}: the fabric has ranks 0 to {last}")))
        }
        RankChoice::InRegion { region, local_rank } => {
            let Some(found) = fabric.regions().iter().find(|found| found.name == region) else {
                let known: Vec<&str> =
                    fabric.regions().iter().map(|found| found.name.as_str()).collect();
                let known = known.join(", ");
                let text = format!("the fabric has no region `{region}`; it has: {known}");
                return Err(CallError::invalid(text));
            };
            let rank = found.ranks.start.checked_add(local_rank);
            let rank = rank.filter(|rank| found.ranks.contains(rank)).ok_or_else(|| {
                let last = found.ranks.len().saturating_sub(1);
                let there = format!("region `{region}` has local ranks 0 to {last}");
                CallError::invalid(format!("local_rank {local_rank}: {there}"))
            })?;
            Ok(RankId(rank))
        }
    }
}

/// Returns the one of `tables` in the file `path` that has this name; without a name the only one.
/// Errors list the names; `kind` is the tables' word, such as `job`.
fn choose_named_connect_setting<'a, T>(
    path: &Path,
    kind: &str,
    tables: &[(&str, &'a T)],
    name: Option<&str>,
) -> Result<&'a T, CallError> {
    let known = || tables.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let path = path.display();
    match (name, tables) {
        (None, [(_, only)]) => Ok(only),
        (None, _) => {
            let text = format!("{path} has several tables [{kind}.NAME]; set `{kind}` to one of");
            Err(CallError::invalid(format!("{text}: {}", known())))
        }
        (Some(name), _) => {
            let found = tables.iter().find(|(known, _)| *known == name);
            found.map(|(_, table)| *table).ok_or_else(|| {
                let text = format!("{path} has no {kind} `{name}`; it has: {}", known());
                CallError::invalid(text)
            })
        }
    }
}

/// Reads a job's token from the file that the region file names.
fn read_token_connect_setting(path: &Path) -> Result<Token, CallError> {
    load_token_file(path).map_err(|error| CallError::new(CallStatus::Config, error.to_string()))
}
