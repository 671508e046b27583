//! `landbridge dump` and `landbridge explain`: the state of gateways in a file, and the cause of a
//! job's trouble by such files.

use crate::cli::output::command_error::CommandError;
use crate::cli::output::exit::Exit;
use crate::cli::output::print::{print_json, print_text, print_verbatim};
use crate::explain::causes::{Cause, find_causes, regions_without_dump};
use crate::explain::dump::Dump;
use clap::Args;
use gateway::config::RegionFile;
use gateway::observe::versioned::Versioned;
use serde::Serialize;
use std::path::PathBuf;

/// Write the state of all gateways of region files into a file, for `landbridge explain`.
///
/// The file holds what `landbridge status --json` prints, and no token and no tensor. Where several
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

/// Name the party at fault, by dumps of one or more regions.
///
/// That is a rank for which others wait, a gateway that is gone, a path between two, a file, or a
/// script whose ranks contradict each other.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge explain east.json west.json

Exit codes: 0 nothing is wrong, 1 a party at fault is named, 64 usage")]
pub(in crate::cli) struct ExplainCommand {
    /// Files that `landbridge dump` wrote
    #[arg(value_name = "DUMP", required = true)]
    dumps: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The verdict on dumps. The field names are keys of the JSON.
#[derive(Serialize)]
struct Explanation<'a> {
    /// All causes; the first explains the others.
    causes: &'a [Cause],
    /// Regions of which no dump was given.
    regions_without_dump: Vec<&'a str>,
}

impl DumpCommand {
    /// Runs `landbridge dump`: asks the gateways and writes their answers.
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

impl ExplainCommand {
    /// Runs `landbridge explain`: reads dumps and prints their causes.
    pub(in crate::cli) fn run(self) -> Result<Exit, CommandError> {
        let mut dumps = Vec::new();
        for path in self.dumps {
            let text = match std::fs::read_to_string(&path) {
                Ok(text) => text,
                Err(source) => return Err(CommandError::Path { path, source }),
            };
            let dump: Dump = serde_json::from_str(&text).map_err(|error| {
                let path = path.display();
                CommandError::Usage(format!("{path}: no dump: {error}; see `landbridge dump`"))
            })?;
            dumps.push(dump);
        }
        let causes = find_causes(&dumps);
        let regions_without_dump = regions_without_dump(&dumps);
        if self.json {
            print_json(&Explanation { causes: &causes, regions_without_dump })?;
        } else {
            print_text(&describe_explanation(&causes, &regions_without_dump))?;
        }
        Ok(if causes.is_empty() { Exit::Good } else { Exit::CheckFailed })
    }
}

/// Returns the causes as paragraphs, the first as the culprit.
fn describe_explanation(causes: &[Cause], regions_without_dump: &[&str]) -> String {
    let mut paragraphs = Vec::new();
    for (number, cause) in causes.iter().enumerate() {
        let title = if number == 0 { "Culprit" } else { "Also" };
        let remedy =
            cause.remedy.as_ref().map_or_else(String::new, |text| format!(" To do: {text}."));
        paragraphs.push(format!("{title}: {}: {}.{remedy}", cause.culprit, cause.found));
    }
    if causes.is_empty() {
        paragraphs.push("Nothing is wrong with the gateways and jobs of these dumps.".to_owned());
    }
    if !regions_without_dump.is_empty() {
        let names = regions_without_dump.join(", ");
        paragraphs.push(format!("No dump was given of: {names}. It may show more."));
    }
    paragraphs.join("\n\n")
}
