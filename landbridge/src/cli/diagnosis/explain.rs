//! `landbridge explain`: the cause of a job's trouble, by the files of `landbridge dump`.

use crate::cli::output::command_error::CommandError;
use crate::cli::output::exit::Exit;
use crate::cli::output::print::{print_json, print_text};
use crate::explain::causes::{Cause, find_causes};
use crate::explain::client_dumps::ranks_without_dump;
use crate::explain::dump::Dump;
use crate::explain::dump_view::regions_without_dump;
use clap::Args;
use gateway::client::ClientDump;
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Name the party at fault, by dumps of one or more regions, and of ranks.
///
/// That is a rank for which others wait, a gateway that is gone, a path between two, a clock, a file, or
/// a script whose ranks contradict each other. Dumps of ranks say who posted when, and what a rank waits for.
/// docs/operations/explain.md lists all verdicts.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge explain east.json west.json

Exit codes: 0 nothing is wrong, 1 a party at fault is named, 64 usage")]
pub(in crate::cli) struct ExplainCommand {
    /// Files that `landbridge dump` wrote, or ranks
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
    /// Ranks of which no dump was given, where others gave theirs.
    ranks_without_dump: Vec<u32>,
}

/// A file with a dump.
enum DumpFile {
    /// Of gateways.
    Gateways(Dump),
    /// Of a rank.
    Client(ClientDump),
}

impl DumpFile {
    /// Reads a file with a dump of either kind.
    fn load(path: &Path) -> Result<Self, CommandError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| CommandError::Path { path: path.to_path_buf(), source })?;
        let read = serde_json::from_str::<Value>(&text).and_then(|value| {
            // Gateways have collectives below their jobs alone.
            if value.get("collectives").is_some() {
                serde_json::from_value(value).map(Self::Client)
            } else {
                serde_json::from_value(value).map(Self::Gateways)
            }
        });
        read.map_err(|error| {
            let path = path.display();
            CommandError::Usage(format!("{path}: no dump: {error}; see `landbridge dump`"))
        })
    }
}

impl ExplainCommand {
    /// Runs `landbridge explain`: reads dumps and prints their causes. Any cause ends it with
    /// [`Exit::CheckFailed`].
    pub(in crate::cli) fn run(self) -> Result<Exit, CommandError> {
        let (mut dumps, mut clients) = (Vec::new(), Vec::new());
        for path in &self.dumps {
            match DumpFile::load(path)? {
                DumpFile::Gateways(dump) => dumps.push(dump),
                DumpFile::Client(dump) => clients.push(dump),
            }
        }
        let causes = find_causes(&dumps, &clients);
        let explanation = Explanation {
            causes: &causes,
            regions_without_dump: regions_without_dump(&dumps),
            ranks_without_dump: ranks_without_dump(&clients).into_iter().collect(),
        };
        if self.json {
            print_json(&explanation)?;
        } else {
            print_text(&describe_explanation(&explanation))?;
        }
        Ok(if causes.is_empty() { Exit::Good } else { Exit::CheckFailed })
    }
}

/// Returns the causes as paragraphs, the first as the culprit. A last paragraph names the regions and the
/// ranks of which no dump was given.
fn describe_explanation(explanation: &Explanation<'_>) -> String {
    let Explanation { causes, regions_without_dump, ranks_without_dump } = explanation;
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
    let ranks = ranks_without_dump.iter().map(|rank| format!("rank {rank}"));
    let names: Vec<String> =
        regions_without_dump.iter().map(|name| (*name).to_owned()).chain(ranks).collect();
    if !names.is_empty() {
        paragraphs.push(format!("No dump was given of: {}. It may show more.", names.join(", ")));
    }
    paragraphs.join("\n\n")
}
