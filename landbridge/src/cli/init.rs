//! `landbridge init`: the files of a new deployment.

use super::output::exit::Exit;
use super::output::print::{print_json, print_text};
use super::output::table::render_table;
use crate::cli::output::command_error::CommandError;
use crate::init::init_options::{
    InitLinkOption, InitPerRegionOption, InitRegionOption, parse_init_name_option,
};
use crate::init::questions::{Answers, Questioner};
use crate::init::{
    AUTHORITY_FOLDER, DeploymentSpec, FABRIC_FILE, InitError, RegionFolder, SocketPlace,
    make_init_deployment,
};
use clap::Args;
use serde::Serialize;
use std::io::IsTerminal;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use units::{BitRate, ByteCount};

/// Make the files of a new deployment: a fabric, certificates, and a folder for each region.
///
/// Each region's folder has its config, its own keys, the rules of its firewalls and a page for its
/// operator. The CA's key stays in the folder CA. Without --region it asks for everything at the
/// terminal. It changes nothing that exists.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge init --out lab --region east=192.0.2.10 --region \
    west=198.51.100.7 --ranks 8 --port-rate 10Gbit/s --link east-west=80ms,10Gbit/s,0.1%")]
pub(super) struct InitCommand {
    /// The folder to make
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A region, and for each gateway the IP address or host name at which other regions reach it,
    /// with the UDP port of its lanes (default 7400); repeat it for each region
    #[arg(long = "region", value_name = "NAME=ADDRESS[,ADDRESS]")]
    regions: Vec<InitRegionOption>,
    /// Ranks that each gateway serves, such as the GPUs of its host; for every region, or for one:
    /// east=8
    #[arg(long, value_name = "N", requires = "regions")]
    ranks: Vec<InitPerRegionOption<NonZeroU32>>,
    /// Rate of each gateway's port to the WAN, for every region, or for one: east=10Gbit/s
    #[arg(long = "port-rate", value_name = "RATE", requires = "regions")]
    port_rates: Vec<InitPerRegionOption<BitRate>>,
    /// A link between two regions: its round-trip time, its rate if that is yours alone, and its
    /// random loss if any; repeat it for each link
    #[arg(long = "link", value_name = "A-B=RTT[,RATE[,LOSS]]", requires = "regions")]
    links: Vec<InitLinkOption>,
    /// Name of the fabric, which certificates contain
    #[arg(long, value_name = "NAME", default_value = "training", value_parser = parse_init_name_option)]
    name: String,
    /// A job; repeat it for several jobs
    #[arg(long = "job", value_name = "NAME", default_value = "train", value_parser = parse_init_name_option)]
    jobs: Vec<String>,
    /// Memory for the tensors of each job's ranks in each region
    #[arg(long, value_name = "SIZE", default_value = "4 GiB")]
    job_memory: ByteCount,
    /// Put sockets where the systemd unit of the Debian package has them
    #[arg(long)]
    systemd: bool,
    /// Days that the gateways' certificates are valid; the CA is valid for ten years
    #[arg(long, value_name = "N", default_value_t = 365,
          value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct InitReport<'a> {
    #[serde(serialize_with = "gateway::observe::versioned::serialize_versioned_path")]
    folder: &'a Path,
    regions: Vec<RegionFolder>,
}

impl InitCommand {
    /// Runs `landbridge init`: makes the folder, and lists the folders of regions in it.
    pub(super) fn run(mut self) -> Result<Exit, CommandError> {
        let given = Answers {
            regions: std::mem::take(&mut self.regions),
            ranks: std::mem::take(&mut self.ranks),
            port_rates: std::mem::take(&mut self.port_rates),
            links: std::mem::take(&mut self.links),
        };
        let answers =
            if given.regions.is_empty() { ask_init_questions_at_terminal()? } else { given };
        let spec = self.deployment_spec(answers)?;
        let regions = make_init_deployment(&spec, &self.out, self.days)?;
        let report = InitReport { folder: &self.out, regions };
        if self.json {
            print_json(&report)?;
        } else {
            print_text(&describe_init_report(&report))?;
        }
        Ok(Exit::Good)
    }

    /// Returns the deployment that options or answers describe.
    fn deployment_spec(&self, answers: Answers) -> Result<DeploymentSpec, InitError> {
        let Answers { regions, ranks, port_rates, links } = answers;
        let sockets = match self.systemd {
            true => SocketPlace::SystemService,
            false => SocketPlace::BesideRegionFile,
        };
        Ok(DeploymentSpec {
            fabric: self.name.clone(),
            regions: DeploymentSpec::regions_from_options(&regions, &ranks, &port_rates)?,
            links,
            jobs: self.jobs.clone(),
            job_memory: self.job_memory,
            sockets,
        })
    }
}

/// Asks for the deployment at the terminal.
fn ask_init_questions_at_terminal() -> Result<Answers, InitError> {
    if !std::io::stdin().is_terminal() {
        let why =
            "--region is missing, and stdin is no terminal to ask at; see landbridge init --help";
        return Err(InitError::Options(why.to_owned()));
    }
    Questioner::new(std::io::stdin().lock(), std::io::stderr()).ask_for_deployment()
}

/// Returns the table of folders, and what to do with them.
fn describe_init_report(report: &InitReport<'_>) -> String {
    let folder = report.folder.display();
    let row = |region: &RegionFolder| {
        let last = region.first_rank + region.ranks.saturating_sub(1);
        let ranks = format!("{} to {last}", region.first_rank);
        let gateways = region.gateways.join(", ");
        [region.region.clone(), gateways, ranks, format!("{folder}/{}", region.region)]
    };
    let rows: Vec<_> = report.regions.iter().map(row).collect();
    format!(
        "{}\nCopy each region's folder to the hosts of its gateways; its README.md has the next \
         commands.\nKeep {folder}/{AUTHORITY_FOLDER} offline: it has the CA's key. To renew \
         certificates: landbridge certs --fabric {folder}/{FABRIC_FILE} --out \
         {folder}/{AUTHORITY_FOLDER} --renew 30\n",
        render_table(["region", "gateways", "ranks", "folder"], &rows)
    )
}
