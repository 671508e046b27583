//! `landbridge check`: faults of config files.

use super::config_fix::{FixedConfigFile, fix_config_files};
use super::fabric_deadlines::FabricDeadlines;
use super::host_names::check_fabric_host_names;
use crate::cli::output::command_error::CommandError;
use crate::cli::output::exit::Exit;
use crate::cli::output::print::{print_json, print_text, print_verbatim};
use crate::cli::output::table::render_table;
use crate::cli::run::run_secrets::{RefusedRunSecret, refused_run_secrets};
use clap::Args;
use gateway::access::{TrustedSocketUsers, check_trusted_socket_folder};
use gateway::config::{ConfigFaults, ConfigFile, FabricFile, Fault, GatewayConfig, RegionFile};
use gateway::daemon::{least_memory_budget, process_memory_budget_needs, reserved_memory_budget};
use gateway::limits::memory_limits::{MemoryLimitNeeds, memory_limit_below_needs};
use hier_collectives::ids::RegionId;
use hier_collectives::plan::{self, Plan};
use hier_collectives::topology::{Fabric, Quorum};
use serde::Serialize;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Check fabric and region files. Their content tells which is which. Prints the deadlines that follow from
/// each fabric's `patience`.
///
/// Reports every fault of every file with its line, key and value, and the values that would be
/// accepted. The certificates, keys and tokens that a region file names are checked as `landbridge run`
/// does, in its words, unless --no-secrets is given. Host names in `wan` and `lan` that this host cannot resolve are warnings, since other
/// hosts may know them, or faults with --resolve.
///
/// With --fix, values that earlier versions took are replaced first, in the files and in the fabric files
/// that they name: the changed lines are shown, and the former text is kept in FILE.bak.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge check --no-secrets configs/two-region/*.toml")]
pub(in crate::cli) struct ConfigCheckCommand {
    /// Fabric or region files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Check the files alone, not the certificates, keys and tokens that they name
    #[arg(long)]
    no_secrets: bool,
    /// Check the secrets of this gateway alone, where those of others are on other hosts
    #[arg(long, value_name = "NAME", conflicts_with = "no_secrets")]
    gateway: Option<String>,
    /// Take host names that this host cannot resolve for faults
    #[arg(long)]
    resolve: bool,
    /// Replace values of earlier versions; the former text is kept in FILE.bak
    #[arg(long)]
    fix: bool,
    /// Show what --fix would change, and write nothing
    #[arg(long, requires = "fix")]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct CheckReport {
    ok: bool,
    files: Vec<CheckedFile>,
    /// The deadlines of each fabric, which several files may name.
    fabrics: Vec<FabricDeadlines>,
    faults: Vec<Fault>,
    /// The files that --fix has changed, or would change.
    fixed: Vec<FixedConfigFile>,
}

#[derive(Serialize)]
struct CheckedFile {
    #[serde(serialize_with = "gateway::observe::versioned::serialize_versioned_path")]
    file: PathBuf,
    kind: &'static str,
    summary: String,
}

/// The kind of a file, its summary and the deadlines of its fabric, or its faults.
type CheckOutcome = Result<(&'static str, String, FabricDeadlines), ConfigFaults>;

impl ConfigCheckCommand {
    /// Runs `landbridge check`: lists the files with a summary each, and all their faults. Faults
    /// end it with [`Exit::Usage`].
    pub(in crate::cli) fn run(self) -> Result<Exit, CommandError> {
        let fixed = match self.fix {
            true => fix_config_files(&self.files, self.dry_run)?,
            false => Vec::new(),
        };
        let (mut files, mut faults) = (Vec::new(), Vec::new());
        let mut fabrics: Vec<FabricDeadlines> = Vec::new();
        for file in self.files.clone() {
            let (kind, summary) = match self.check_file(&file)? {
                Ok((kind, summary, deadlines)) => {
                    if !fabrics.contains(&deadlines) {
                        fabrics.push(deadlines);
                    }
                    (kind, summary)
                }
                Err(found) => {
                    let count = found.iter().count();
                    faults.extend(found);
                    let plural = if count == 1 { "" } else { "s" };
                    ("FAULTY", format!("{count} fault{plural}"))
                }
            };
            files.push(CheckedFile { file, kind, summary });
        }
        // A fabric is read by itself and by each region that names it: report each fault once.
        let faults = ConfigFaults::collect(faults);
        if self.json {
            let listed = faults.iter().flat_map(ConfigFaults::iter).cloned().collect();
            let ok = faults.is_none();
            print_json(&CheckReport { ok, files, fabrics, faults: listed, fixed })?;
        } else {
            let row = |checked: &CheckedFile| {
                let file = checked.file.display().to_string();
                [file, checked.kind.to_owned(), checked.summary.clone()]
            };
            let rows: Vec<_> = files.iter().map(row).collect();
            let tables = fabrics.iter().map(FabricDeadlines::render);
            let tables: String = tables.collect();
            let changes: String = fixed.iter().map(FixedConfigFile::render).collect();
            if !changes.is_empty() {
                print_verbatim(changes.trim_end())?;
            }
            print_text(&(render_table(["file", "kind", "summary"], &rows) + &tables))?;
        }
        match faults {
            None => Ok(Exit::Good),
            Some(_) if self.json => Ok(Exit::Usage),
            Some(faults) => Err(faults.into()),
        }
    }
}

impl ConfigCheckCommand {
    /// Checks one file. Returns its kind, its summary with all warnings and the deadlines of its fabric, or
    /// its faults.
    fn check_file(&self, path: &Path) -> Result<CheckOutcome, CommandError> {
        let (file, plan) = match load_and_check_config_plan(path) {
            Ok(loaded) => loaded,
            Err(faults) => return Ok(Err(faults)),
        };
        let (kind, fabric, summary) = match &file {
            ConfigFile::Fabric(fabric) => ("fabric", fabric, describe_config_check_fabric(fabric)),
            ConfigFile::Region(region) => {
                ("region", region.fabric(), describe_config_check_region(region, &plan))
            }
        };
        let names = check_fabric_host_names(fabric)?;
        let warning = |Fault { key, value, problem, accepted, .. }: &Fault| {
            let value = value.as_deref().unwrap_or_default();
            format!("; WARNING: {key} = {value}: {problem}; accepted: {accepted}")
        };
        let warnings: String = names.iter().map(warning).collect();
        let names = if self.resolve { names } else { Vec::new() };
        let secrets = match &file {
            ConfigFile::Region(region) if !self.no_secrets => self.check_secrets(region)?,
            _ => Vec::new(),
        };
        match ConfigFaults::collect(names.into_iter().chain(secrets)) {
            Some(faults) => Ok(Err(faults)),
            None => {
                let deadlines = FabricDeadlines::of_file(fabric, &plan);
                Ok(Ok((kind, summary + &warnings, deadlines)))
            }
        }
    }

    /// Returns the faults of the secrets for which `landbridge run` would not start the gateways of a
    /// region file, or the one that was chosen.
    ///
    /// # Errors
    /// The file has no gateway of that name.
    fn check_secrets(&self, region: &RegionFile) -> Result<Vec<Fault>, CommandError> {
        let gateways: Vec<&GatewayConfig> = match &self.gateway {
            Some(name) => vec![region.gateway(Some(name))?],
            None => region.gateways().collect(),
        };
        let refused = gateways.into_iter().flat_map(|gateway| refused_run_secrets(region, gateway));
        let fault = |RefusedRunSecret { key, error }| Fault {
            file: region.path().to_owned(),
            line: None,
            key,
            value: None,
            problem: error.to_string(),
            accepted: "what `landbridge run` takes, or --no-secrets for files of another host"
                .to_owned(),
            replacement: None,
        };
        Ok(refused.map(fault).collect())
    }
}

/// Loads a config file and plans its fabric: no gateway starts without a plan.
fn load_and_check_config_plan(path: &Path) -> Result<(ConfigFile, Plan), ConfigFaults> {
    let file = ConfigFile::load(path)?;
    let fabric = match &file {
        ConfigFile::Fabric(fabric) => fabric,
        ConfigFile::Region(region) => region.fabric(),
    };
    match plan::make_plan(fabric.fabric()) {
        Ok(plan) => Ok((file, plan)),
        Err(error) => Err(ConfigFaults::no_plan(path, &error)),
    }
}

/// Returns the summary of a fabric file. The summary has the numbers of regions, gateways, ranks
/// and links, the ranks of each region, the quorum, and 4 bytes of the identity.
fn describe_config_check_fabric(file: &FabricFile) -> String {
    let fabric = file.fabric();
    let identity = file.identity();
    let count = |number: usize, word: &str| {
        format!("{number} {word}{}", if number == 1 { "" } else { "s" })
    };
    let ranks = usize::try_from(fabric.world_size()).unwrap_or(usize::MAX);
    format!(
        "{}: {}, {}, {}, {}; {}; {}{}; identity {:02x}{:02x}{:02x}{:02x}",
        fabric.name(),
        count(fabric.regions().len(), "region"),
        count(fabric.gateways().len(), "gateway"),
        count(ranks, "rank"),
        count(fabric.links().len(), "link"),
        describe_config_check_ranks(fabric),
        describe_config_check_quorum(fabric),
        describe_config_check_diallers(file),
        identity[0],
        identity[1],
        identity[2],
        identity[3],
    )
}

/// Returns a text on the gateways that no other can dial, for those are rare; nothing where there are
/// none.
fn describe_config_check_diallers(file: &FabricFile) -> String {
    let fabric = file.fabric();
    let hidden = fabric.gateway_ids().filter(|id| file.dials_only(*id));
    let names: Vec<&str> = hidden.map(|id| &*fabric.gateway(id).name).collect();
    match names.as_slice() {
        [] => String::new(),
        names => format!("; without `wan`, and so dialling all others: {}", names.join(", ")),
    }
}

/// Returns a text on the fabric's quorum: which regions go on when some are lost, or the fabric is
/// partitioned.
fn describe_config_check_quorum(fabric: &Fabric) -> String {
    let count = fabric.regions().len();
    match fabric.quorum() {
        Quorum::All if count == 1 => "one region".to_owned(),
        Quorum::All => "quorum: all regions, none goes on without the others".to_owned(),
        Quorum::Count(least) => {
            let losses = count - usize::from(*least);
            let plural = if losses == 1 { "" } else { "s" };
            let witness = fabric.witness().map_or_else(String::new, |id| {
                let region = &fabric.region(fabric.gateway(id).region).name;
                format!(" (the witness {region} counts as one)")
            });
            format!(
                "quorum: {least} of {count} regions{witness}, which go on after the loss of up to \
                 {losses} region{plural}; of the parts of a partition, one with {least} or more goes on"
            )
        }
        Quorum::Votes { least, votes } => {
            let total: u32 = votes.iter().sum();
            let named = fabric.regions().iter().zip(votes);
            let named: Vec<String> =
                named.map(|(region, votes)| format!("{} {votes}", region.name)).collect();
            let name = |id: &RegionId| &*fabric.region(*id).name;
            let parts = fabric.quorum().smallest(count).map_or_else(String::new, |quorums| {
                let parts = quorums.iter().map(|part| part.iter().map(name).collect::<Vec<_>>());
                let parts: Vec<String> = parts.map(|names| names.join(" + ")).collect();
                format!(", which is the one with {}", parts.join(", or "))
            });
            format!(
                "quorum: {least} of {total} votes ({}); of the parts of a partition, the one with {least} \
                 or more goes on{parts}",
                named.join(", ")
            )
        }
        Quorum::Named(named) => {
            let names: Vec<&str> = named.iter().map(|id| &*fabric.region(*id).name).collect();
            let names = names.join(", ");
            format!(
                "quorum: {names}, with or without the others; of the parts of a partition, the one \
                 with {names} goes on"
            )
        }
    }
}

/// Returns the ranks of each region, such as `ranks: east 0-2, west 3`. A region whose name sorts
/// first renumbers the ranks of all others.
fn describe_config_check_ranks(fabric: &Fabric) -> String {
    let ranks = fabric.regions().iter().map(|region| match region.ranks.len() {
        0 => format!("{} none", region.name),
        1 => format!("{} {}", region.name, region.ranks.start),
        _ => format!("{} {}-{}", region.name, region.ranks.start, region.ranks.end - 1),
    });
    format!("ranks: {}", ranks.collect::<Vec<_>>().join(", "))
}

/// Returns the ranks that a gateway serves, such as `ranks 0-2`.
fn describe_config_check_served_ranks(ranks: &Range<u32>) -> String {
    match ranks.len() {
        0 => "no ranks".to_owned(),
        1 => format!("rank {}", ranks.start),
        _ => format!("ranks {}-{}", ranks.start, ranks.end - 1),
    }
}

/// Returns the summary of a region file: gateways, jobs, and the memory that windows and lanes
/// reserve. Warnings follow on memory that is too small or exceeds this host, and on unsafe folders
/// of sockets.
fn describe_config_check_region(file: &RegionFile, plan: &Plan) -> String {
    let gateways: Vec<String> = file
        .gateways()
        .map(|gateway| {
            let ranks = &file.fabric().fabric().gateway(gateway.id).ranks;
            let ranks = describe_config_check_served_ranks(ranks);
            let attach = gateway.attach.map(|at| format!(", other hosts at tls://{at}"));
            format!("{} ({ranks}{})", gateway.name, attach.unwrap_or_default())
        })
        .collect();
    let jobs: Vec<&str> = file.jobs().map(|job| job.name.as_str()).collect();
    let fabric = file.fabric().fabric();
    let windows_and_lanes = |gateway: &GatewayConfig| {
        reserved_memory_budget(
            plan,
            fabric,
            gateway.id,
            (jobs.len(), file.fabric().count_lane_networks(gateway.id)),
        )
    };
    let most = file.gateways().map(windows_and_lanes).max().unwrap_or_default().rounded();
    let short = |gateway: &GatewayConfig| {
        let wanted = least_memory_budget(gateway.memory, windows_and_lanes(gateway))?;
        let GatewayConfig { name, memory, .. } = gateway;
        Some(format!(
            "; WARNING: {name}: `memory` of {memory} is too small to bound its use: set at least {}",
            wanted.rounded()
        ))
    };
    let unsafe_folder = |gateway: &GatewayConfig| {
        // The gateway's host may have users that this one lacks.
        let trusted = TrustedSocketUsers::new(gateway.user_id().ok().flatten());
        let error = check_trusted_socket_folder(&gateway.socket, trusted).err()?;
        Some(format!("; WARNING: {}: {error}", gateway.name))
    };
    let above_limit = |gateway: &GatewayConfig| {
        let networks = file.fabric().count_lane_networks(gateway.id);
        let needs =
            process_memory_budget_needs(gateway.memory, file.arenas_memory(), fabric, networks);
        let GatewayConfig { name, memory, .. } = gateway;
        if let Some(short) = memory_limit_below_needs(&needs) {
            let remedy = short.remedy_for(*memory);
            return Some(format!(
                "; WARNING: {name}: `memory` of {memory} does not fit this host: {short}; {remedy}"
            ));
        }
        // Gateway and trainers share one host.
        let resident = needs.resident.saturating_add(file.arenas_memory().get());
        let short = memory_limit_below_needs(&MemoryLimitNeeds { resident, ..needs })?;
        let jobs = file.arenas_memory().rounded();
        Some(format!(
            "; WARNING: {name}: `memory` of all jobs, {jobs}, does not fit this host: {short}; lower \
             `memory` of jobs"
        ))
    };
    let short = file.gateways().filter_map(short);
    let above_limit = file.gateways().filter_map(above_limit);
    let warnings = short.chain(above_limit).chain(file.gateways().filter_map(unsafe_folder));
    let warnings: String = warnings.collect();
    format!(
        "{} of {}; jobs: {}; receive windows and lanes take up to {most} of each gateway's \
         `memory`, partial sums the rest and at least half{warnings}",
        gateways.join(", "),
        fabric.name(),
        jobs.join(", ")
    )
}
