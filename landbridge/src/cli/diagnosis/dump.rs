//! `landbridge dump`: the state of gateways in a file.

use crate::cli::output::command_error::CommandError;
use crate::cli::output::exit::Exit;
use crate::cli::output::print::print_verbatim;
use crate::explain::dump::Dump;
use clap::Args;
use gateway::config::RegionFile;
use gateway::observe::versioned::Versioned;
use std::path::PathBuf;

/// Write the state of all gateways of region files into a file, for `landbridge explain`.
///
/// The file holds what `landbridge status --json` prints, and the last collectives of each job: when each
/// rank posted, how they ended, and the bytes that are missing. It has no token and no tensor. Where several
/// operators run the regions, each dumps their own, and one of them explains all files together.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: landbridge dump --config configs/two-region/east.toml --out east.json"
)]
pub(in crate::cli) struct DumpCommand {
    /// A region file; may be repeated
    #[arg(long, value_name = "FILE", required = true)]
    config: Vec<PathBuf>,
    /// The file to write; without it stdout
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl DumpCommand {
    /// Runs `landbridge dump`: asks the gateways of all region files and writes their answers into
    /// one file, or to stdout. Refuses region files of different fabrics.
    pub(in crate::cli) fn run(self) -> Result<Exit, CommandError> {
        let files = self.config.iter().map(|path| RegionFile::load(path));
        let files: Vec<RegionFile> = files.collect::<Result<_, _>>()?;
        let mut dumps = files.iter().map(Dump::collect);
        let Some(mut dump) = dumps.next() else {
            return Err(CommandError::Usage("--config names no region file".to_owned()));
        };
        for other in dumps {
            if other.places != dump.places {
                return Err(CommandError::Usage(
                    "the region files belong to different fabrics: dump each by itself".to_owned(),
                ));
            }
            dump.gateways.extend(other.gateways);
        }
        let text = Versioned::new(&dump).to_json();
        match self.out {
            None => print_verbatim(&text)?,
            Some(path) => std::fs::write(&path, text + "\n")
                .map_err(|source| CommandError::Path { path, source })?,
        }
        Ok(Exit::Good)
    }
}
