//! `landbridge trace`: shows what `landbridge run --trace` has written.

use crate::cli::output::command_error::CommandError;
use crate::cli::output::exit::Exit;
use crate::cli::output::print::{print_json, print_text};
use crate::cli::output::table::render_table;
use crate::trace::{LaneSummary, TraceSummary, draw_trace, read_trace};
use clap::Args;
use std::path::PathBuf;
use units::{BitRate, ByteCount, Span};

/// Show a trace that `landbridge run --trace FILE` has written: phases, rates, round-trip times and losses
/// of each lane.
///
/// A gateway may still write it. --svg draws all of it over time.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge trace east.jsonl --svg east.svg")]
pub(in crate::cli) struct TraceCommand {
    /// The trace
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Draw rates, bytes in flight and round-trip times as an SVG
    #[arg(long, value_name = "OUT")]
    svg: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl TraceCommand {
    /// Runs `landbridge trace`: reads the trace, draws it if asked to, and prints its summary.
    pub(in crate::cli) fn run(self) -> Result<Exit, CommandError> {
        let records = read_trace(&self.file)?;
        if let Some(svg) = &self.svg {
            draw_trace(svg, &records)?;
        }
        let summary = TraceSummary::of_records(&records);
        if self.json {
            print_json(&summary)?;
        } else {
            print_text(&describe_trace(&summary))?;
        }
        Ok(Exit::Good)
    }
}

/// Returns the tables of lanes and of changes of phases, and a line on lost records. For a trace
/// without rounds of lanes it returns a line that says so.
fn describe_trace(summary: &TraceSummary) -> String {
    if summary.lanes.is_empty() {
        return "no lane has sent anything in this trace".to_owned();
    }
    let rate = |bits| BitRate::from_bits_per_second(bits).rounded().to_string();
    let seconds = |seconds| Span::from_secs_f64(seconds).rounded().to_string();
    let row = |lane: &LaneSummary| {
        let phases = lane.phases.iter().map(|(phase, rounds)| format!("{phase} {rounds}"));
        [
            lane.peer.clone(),
            lane.lane.to_string(),
            phases.collect::<Vec<_>>().join(", "),
            rate(lane.last_bits_per_second),
            rate(lane.greatest_bits_per_second),
            seconds(lane.min_rtt_seconds),
            seconds(lane.median_rtt_seconds),
            ByteCount::new(lane.lost_bytes).rounded().to_string(),
        ]
    };
    let rows: Vec<_> = summary.lanes.iter().map(row).collect();
    let header = ["peer", "lane", "rounds", "rate", "best round", "min RTT", "RTT", "lost"];
    let mut text = render_table(header, &rows);
    let changes: Vec<_> = summary
        .transitions
        .iter()
        .map(|change| {
            let at = seconds(change.at_seconds);
            let (peer, lane) = (change.peer.clone(), change.lane.to_string());
            let phases = format!("{} to {}", change.from, change.to);
            [at, peer, lane, phases, change.reason.clone(), rate(change.rate_bits_per_second)]
        })
        .collect();
    if !changes.is_empty() {
        text += "\n";
        text += &render_table(["at", "peer", "lane", "phase", "because", "rate"], &changes);
    }
    if summary.lost_records > 0 {
        text += &format!("\n{} records are missing: the file was slow\n", summary.lost_records);
    }
    text
}
