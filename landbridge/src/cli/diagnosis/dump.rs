//! `landbridge dump`: the state of gateways in a file.

use crate::cli::output::command_error::CommandError;
use crate::cli::output::exit::Exit;
use crate::cli::output::print::{print_text, print_verbatim};
use crate::explain::dump::Dump;
use crate::explain::torch_trace::{JobTraces, torch_traces};
use clap::Args;
use gateway::config::RegionFile;
use gateway::observe::versioned::Versioned;
use std::io;
use std::path::{Path, PathBuf};

/// Write the state of all gateways of region files into a file, for `landbridge explain`.
///
/// The file holds what `landbridge status --json` prints, and the last collectives of each job: when each
/// rank posted and what, how they ended, and the bytes that are missing. It has no token and no tensor. Where
/// several operators run the regions, each dumps their own, and one of them explains all files together.
///
/// With --torch it also writes a file of PyTorch's flight recorder for each rank, FOLDER/JOB/rank_NUMBER.
/// PyTorch's `torchfrtrace --prefix rank_ FOLDER/JOB` compares them.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: landbridge dump --config configs/two-region/east.toml --out east.json"
)]
pub(in crate::cli) struct DumpCommand {
    /// A region file; may be repeated
    #[arg(long, value_name = "FILE", required = true)]
    config: Vec<PathBuf>,
    /// The file to write; without it stdout, and with --torch none
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The folder for files of PyTorch's flight recorder
    #[arg(long, value_name = "FOLDER")]
    torch: Option<PathBuf>,
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
            None if self.torch.is_some() => {}
            None => print_verbatim(&text)?,
            Some(path) => std::fs::write(&path, text + "\n")
                .map_err(|source| CommandError::Path { path, source })?,
        }
        if let Some(folder) = &self.torch {
            let lines: Vec<String> = torch_traces(&dump)
                .iter()
                .map(|traces| write_job_traces(folder, traces))
                .collect::<Result<_, _>>()?;
            if lines.is_empty() {
                print_text("no file is written: no gateway has answered, or none has a job")?;
            } else {
                // Not wrapped, so that the command can be copied.
                print_verbatim(&lines.join("\n"))?;
            }
        }
        Ok(Exit::Good)
    }
}

/// Writes the traces of a job into a folder of its name; returns a line that tells so.
fn write_job_traces(folder: &Path, traces: &JobTraces) -> Result<String, CommandError> {
    let folder = folder.join(&traces.job);
    let at = |path: &Path| {
        let path = path.to_path_buf();
        move |source: io::Error| CommandError::Path { path, source }
    };
    std::fs::create_dir_all(&folder).map_err(at(&folder))?;
    for (rank, file) in &traces.files {
        let path = folder.join(format!("rank_{rank}"));
        std::fs::write(&path, file).map_err(at(&path))?;
    }
    let shown = folder.display();
    let compare = format!("torchfrtrace --prefix rank_ {shown}");
    let written = format!("{} ranks of job {} in {shown}", traces.files.len(), traces.job);
    if traces.ranks_without_file.is_empty() {
        return Ok(format!("{written}: `{compare}` compares them"));
    }
    let missing: Vec<String> = traces.ranks_without_file.iter().map(u32::to_string).collect();
    let missing = missing.join(", ");
    Ok(format!(
        "{written}: `{compare} --allow-incomplete-ranks` compares them; the gateways of ranks {missing} gave \
         no answer, or were not asked"
    ))
}
