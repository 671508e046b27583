//! `landbridge fabric sign`: the signature of a fabric file by the CA of the deployment.

use super::fabric_files::{read_text, require_version, signature_path};
use crate::cli::output::command_error::CommandError;
use crate::cli::output::exit::Exit;
use crate::cli::output::print::{print_json, print_verbatim};
use clap::Args;
use gateway::certs::CertificateAuthority;
use gateway::config::FabricFile;
use gateway::observe::versioned::serialize_versioned_path;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Sign a fabric file with the CA of the deployment, into FILE.sig beside it.
///
/// Gateways put only a signed fabric in force while they run. Sign it where ca.key is, and carry both
/// files to the host of one gateway. A change of the file, be it one blank, needs another signature.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge fabric sign configs/three-regions/fabric.toml --ca \
    configs/three-regions/keys")]
pub(super) struct SignCommand {
    /// The fabric file, which has a `version`
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The directory with ca.pem and ca.key, as `landbridge certs` makes it
    #[arg(long, value_name = "DIR")]
    ca: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The file that was made.
#[derive(Serialize)]
struct SignReport<'a> {
    #[serde(serialize_with = "serialize_versioned_path")]
    signature: &'a Path,
    fabric_version: u64,
}

impl SignCommand {
    /// Runs `landbridge fabric sign`: writes the signature, and prints where it is.
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        let text = read_text(&self.file)?;
        let fabric_version = require_version(&FabricFile::parse(&self.file, &text)?)?;
        let authority =
            CertificateAuthority::load(&self.ca.join("ca.pem"), &self.ca.join("ca.key"))?;
        let signature = authority.sign_fabric(&text)?;
        let path = signature_path(&self.file);
        let at_fault = |source| CommandError::Path { path: path.clone(), source };
        std::fs::write(&path, signature.to_string()).map_err(at_fault)?;
        if self.json {
            print_json(&SignReport { signature: &path, fabric_version })?;
        } else {
            print_verbatim(&format!("made  {}\n", path.display()))?;
        }
        Ok(Exit::Good)
    }
}
