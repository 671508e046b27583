//! The content of a region file and its fabric that trainers need.

use crate::cli::output::command_error::CommandError;
use crate::cli::output::table::{render_field_table, render_table};
use gateway::config::RegionFile;
use serde::Serialize;
use std::path::Path;

/// The content of a region file and its fabric for trainers. The field names are keys of the JSON.
#[derive(Serialize)]
pub(super) struct TrainerConfig {
    /// Name of the fabric.
    fabric: String,
    /// The gateways of the file, in name order.
    gateways: Vec<TrainerGateway>,
    /// The jobs of the file, in name order.
    jobs: Vec<TrainerJob>,
    /// All ranks of the fabric, by number.
    ranks: Vec<NumberedRank>,
}

/// A gateway to which trainers attach.
#[derive(Serialize)]
struct TrainerGateway {
    /// Its name.
    gateway: String,
    /// Path of its socket.
    socket: String,
    /// The user as whom it runs, if the file says; a name or a number.
    user: Option<String>,
    /// The TCP address at which it serves trainers of other hosts, if it does.
    attach: Option<String>,
    /// Path of the certificate of its CA.
    ca: String,
}

/// A job whose ranks may attach.
#[derive(Serialize)]
struct TrainerJob {
    /// Its name.
    job: String,
    /// Path of the file with its token.
    token: String,
}

/// A rank by its number in the fabric and by its number in its region.
#[derive(Serialize)]
struct NumberedRank {
    /// Its number in the fabric.
    rank: u32,
    /// The name of its region.
    region: String,
    /// Its number in its region.
    local_rank: u32,
    /// The name of the gateway that serves it.
    gateway: String,
    /// Its compute speed in relation to other ranks.
    speed: f64,
}

/// Collects what trainers need of a region file and its fabric.
///
/// # Errors
/// A path is not UTF-8, so that JSON cannot hold it.
pub(super) fn trainer_config(file: &RegionFile) -> Result<TrainerConfig, CommandError> {
    let fabric = file.fabric().fabric();
    let gateways = file.gateways().map(|gateway| {
        let (name, user) = (gateway.name.clone(), gateway.user.as_ref().map(ToString::to_string));
        let (socket, ca) =
            (utf8_trainer_config_path(&gateway.socket)?, utf8_trainer_config_path(&gateway.ca)?);
        let attach = gateway.attach.map(|address| address.to_string());
        Ok(TrainerGateway { gateway: name, socket, user, attach, ca })
    });
    let jobs = file.jobs().map(|job| {
        let name = job.name.clone();
        utf8_trainer_config_path(&job.token).map(|token| TrainerJob { job: name, token })
    });
    let gateways = gateways.collect::<Result<Vec<_>, CommandError>>()?;
    let jobs = jobs.collect::<Result<Vec<_>, CommandError>>()?;
    let mut ranks = Vec::new();
    for gateway in fabric.gateways() {
        let region = fabric.region(gateway.region);
        for rank in gateway.ranks.clone() {
            let local_rank = rank - region.ranks.start;
            let speed = usize::try_from(local_rank).ok().and_then(|at| region.speeds.get(at));
            ranks.push(NumberedRank {
                rank,
                region: region.name.clone(),
                local_rank,
                gateway: gateway.name.clone(),
                speed: speed.copied().unwrap_or(1.0),
            });
        }
    }
    ranks.sort_by_key(|rank| rank.rank);
    Ok(TrainerConfig { fabric: fabric.name().to_owned(), gateways, jobs, ranks })
}

/// Returns a path as text.
///
/// # Errors
/// The path is not UTF-8.
fn utf8_trainer_config_path(path: &Path) -> Result<String, CommandError> {
    let text = path.to_str().map(ToOwned::to_owned);
    text.ok_or_else(|| {
        CommandError::Usage(format!("{}: not UTF-8; accepted: a path in UTF-8", path.display()))
    })
}

/// Returns what trainers need as text: sockets and tokens' files, then a table of all ranks.
pub(super) fn describe_trainer_config(config: &TrainerConfig) -> String {
    let mut fields = vec![["fabric".to_owned(), config.fabric.clone()]];
    let socket = |gateway: &TrainerGateway| {
        [format!("socket of {}", gateway.gateway), gateway.socket.clone()]
    };
    let token = |job: &TrainerJob| [format!("token of {}", job.job), job.token.clone()];
    fields.extend(config.gateways.iter().map(socket));
    fields.extend(config.jobs.iter().map(token));
    let row = |rank: &NumberedRank| {
        [
            rank.rank.to_string(),
            rank.region.clone(),
            rank.local_rank.to_string(),
            rank.gateway.clone(),
            rank.speed.to_string(),
        ]
    };
    let rows: Vec<_> = config.ranks.iter().map(row).collect();
    let header = ["rank", "region", "local rank", "gateway", "speed"];
    format!("{}\n{}", render_field_table(&fields), render_table(header, &rows))
}
