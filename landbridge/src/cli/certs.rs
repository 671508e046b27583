//! `landbridge certs`: a certificate authority, certificates and job tokens for a fabric.

use super::output::exit::Exit;
use super::output::print::{print_json, print_verbatim};
use crate::cli::output::command_error::CommandError;
use clap::Args;
use gateway::certs::{
    CertificateOptions, CertificateValidity, FileOutcome, make_certificate_files,
};
use gateway::config::FabricFile;
use gateway::observe::versioned::serialize_versioned_paths;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Make a CA, a certificate for each gateway and a token for each job.
///
/// Existing files are kept: run it again after adding a gateway to the fabric, or each week with
/// --renew 30. Copy to each host
/// ca.pem, its own NAME.pem and NAME.key, and the tokens of its jobs. Keep ca.key off these hosts.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge certs --fabric configs/two-region/fabric.toml \
    --out configs/two-region/keys")]
pub(super) struct CertsCommand {
    /// The fabric whose gateways get certificates
    #[arg(long, value_name = "FILE")]
    fabric: PathBuf,
    /// The directory for the files; created if it does not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Days that the gateways' certificates are valid; the CA is valid for ten years
    #[arg(long, value_name = "N", default_value_t = 365,
          value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
    /// A job that gets a token; repeat it for several jobs
    #[arg(long = "job", value_name = "NAME", default_value = "train")]
    jobs: Vec<String>,
    /// Replace all files, the CA included: every gateway then needs the new ones
    #[arg(long)]
    force: bool,
    /// Replace certificates of gateways that expire within N days, with their keys
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    renew: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct CertsReport<'a> {
    #[serde(serialize_with = "serialize_versioned_paths")]
    made: Vec<&'a Path>,
    #[serde(serialize_with = "serialize_versioned_paths")]
    kept: Vec<&'a Path>,
}

impl CertsCommand {
    /// Runs `landbridge certs`: makes the missing files and lists them with those that were kept.
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        let fabric = FabricFile::load(&self.fabric)?;
        let validity = CertificateValidity::days(self.days);
        let order = CertificateOptions {
            validity,
            jobs: &self.jobs,
            force: self.force,
            renew_days: self.renew,
        };
        let outcomes = make_certificate_files(fabric.fabric(), &self.out, &order)?;
        let mut report = CertsReport { made: vec![], kept: vec![] };
        for outcome in &outcomes {
            match outcome {
                FileOutcome::Made(file) => report.made.push(file),
                FileOutcome::Kept(file) => report.kept.push(file),
            }
        }
        if self.json {
            print_json(&report)?;
            return Ok(Exit::Good);
        }
        let line = |word: &str, file: &&Path| format!("{word}  {}\n", file.display());
        let made = report.made.iter().map(|file| line("made", file));
        let kept = report.kept.iter().map(|file| line("kept", file));
        print_verbatim(&made.chain(kept).collect::<String>())?;
        Ok(Exit::Good)
    }
}
