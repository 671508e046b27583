//! `landbridge explain`: the cause of a job's trouble, by the files of `landbridge dump`.

use crate::cli::output::command_error::CommandError;
use crate::cli::output::exit::Exit;
use crate::cli::output::print::{print_json, print_text};
use crate::explain::causes::{Cause, find_causes};
use crate::explain::dump::Dump;
use crate::explain::dump_view::regions_without_dump;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Name the party at fault, by dumps of one or more regions.
///
/// That is a rank for which others wait, a gateway that is gone, a path between two, a clock, a file, or
/// a script whose ranks contradict each other. docs/operations/explain.md lists all verdicts.
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

impl ExplainCommand {
    /// Runs `landbridge explain`: reads dumps and prints their causes. Any cause ends it with
    /// [`Exit::CheckFailed`].
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

/// Returns the causes as paragraphs, the first as the culprit. A last paragraph names the regions
/// of which no dump was given.
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
