//! `landbridge certs`.

use super::{CommandError, Exit, show, show_json};
use crate::certs::{Order, Outcome, Validity, make};
use crate::config::FabricFile;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Make a CA, a certificate for each gateway and a token for each job.
///
/// What is there already is kept: run it again after adding a gateway to the fabric. Give each
/// host ca.pem, its own NAME.pem and NAME.key, and the tokens of its jobs; keep ca.key away from
/// them.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge certs --fabric configs/two-region/fabric.toml \
    --out configs/two-region/keys")]
pub(super) struct Certs {
    /// The fabric whose gateways get certificates
    #[arg(long, value_name = "FILE")]
    fabric: PathBuf,
    /// The directory for the files; made if need be
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Days that the gateways' certificates are believed; the CA: ten years
    #[arg(long, value_name = "N", default_value_t = 365,
          value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
    /// A job that gets a token; may be given several times
    #[arg(long = "job", value_name = "NAME", default_value = "train")]
    jobs: Vec<String>,
    /// Make all anew, also the CA: every gateway then needs the new files
    #[arg(long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    made: Vec<&'a Path>,
    kept: Vec<&'a Path>,
}

impl Certs {
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        let fabric = FabricFile::load(&self.fabric)?;
        let validity = Validity::days(self.days);
        let order = Order { validity, jobs: &self.jobs, force: self.force };
        let outcomes = make(fabric.fabric(), &self.out, &order)?;
        let mut report = Report { made: vec![], kept: vec![] };
        for outcome in &outcomes {
            match outcome {
                Outcome::Made(file) => report.made.push(file),
                Outcome::Kept(file) => report.kept.push(file),
            }
        }
        if self.json {
            show_json(&report);
            return Ok(Exit::Good);
        }
        let line = |word: &str, file: &&Path| format!("{word}  {}\n", file.display());
        let made = report.made.iter().map(|file| line("made", file));
        let kept = report.kept.iter().map(|file| line("kept", file));
        show(&made.chain(kept).collect::<String>());
        Ok(Exit::Good)
    }
}
