//! `landbridge plan batch`: a global batch split by the speeds of ranks.

use crate::cli::output::command_error::CommandError;
use crate::cli::output::exit::Exit;
use crate::cli::output::print::{print_json, print_text};
use crate::cli::output::table::render_table;
use clap::Args;
use gateway::config::FabricFile;
use hier_collectives::batch::batch_shares_within;
use serde::Serialize;
use std::path::PathBuf;
use units::rounded_decimal;

/// Split a global batch into whole samples, so that ranks of unequal speed finish together.
///
/// Average gradients with weights: the weight of a rank is its number of samples.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge plan batch \
    --fabric configs/three-regions/fabric.toml --global-batch 512")]
pub(super) struct BatchCommand {
    /// The fabric file, with the `speeds` of the ranks
    #[arg(long, value_name = "FILE")]
    fabric: PathBuf,
    /// Samples of one step, of all ranks together
    #[arg(long, value_name = "N")]
    global_batch: u64,
    /// Most samples that fit into a rank's memory: one number for all ranks, or one for each
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = parse_batch_samples_per_rank)]
    max_per_rank: Vec<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Parses one of the numbers of `--max-per-rank`, which are joined by commas.
fn parse_batch_samples_per_rank(text: &str) -> Result<u64, String> {
    let accepted = "accepted: whole numbers of samples, joined by commas, such as 64,64,32";
    text.parse().map_err(|_| format!("`{text}` is not a number of samples; {accepted}"))
}

#[derive(Debug, Serialize)]
struct BatchSplit {
    global_batch: u64,
    shares: Vec<BatchRankRow>,
    /// Time of the slowest rank, over that of a split into fractions of samples.
    makespan_over_ideal: f64,
    /// Time of the slowest rank, over that of an even split.
    makespan_over_even: f64,
}

#[derive(Debug, Serialize)]
struct BatchRankRow {
    rank: u32,
    region: String,
    speed: f64,
    samples: u64,
}

impl BatchCommand {
    /// Runs `landbridge plan batch`: splits the batch and prints the share of each rank.
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        let file = FabricFile::load(&self.fabric)?;
        let fabric = file.fabric().without_witness();
        let regions = fabric.regions();
        let speeds: Vec<f64> = regions.iter().flat_map(|region| region.speeds.clone()).collect();
        let limits = self.max_samples_per_rank(speeds.len())?;
        let shares = batch_shares_within(self.global_batch, &speeds, &limits)
            .map_err(|error| CommandError::Usage(error.to_string()))?;
        let makespan = |samples: &mut dyn Iterator<Item = f64>| {
            samples.zip(&speeds).map(|(samples, speed)| samples / speed).fold(0.0, f64::max)
        };
        let split = makespan(&mut shares.iter().map(|share| *share as f64));
        let ranks = speeds.len() as f64;
        let even = (self.global_batch as f64 / ranks).ceil();
        let even = makespan(&mut std::iter::repeat(even));
        let ideal = self.global_batch as f64 / speeds.iter().sum::<f64>();
        let over = |other: f64| if other > 0.0 { split / other } else { 1.0 };
        let share = |(rank, samples): (u32, &u64)| {
            let region = regions.iter().find(|region| region.ranks.contains(&rank));
            let region = region.map_or_else(String::new, |region| region.name.clone());
            BatchRankRow { rank, region, speed: speeds[rank as usize], samples: *samples }
        };
        let split = BatchSplit {
            global_batch: self.global_batch,
            makespan_over_ideal: over(ideal),
            makespan_over_even: over(even),
            shares: (0..).zip(&shares).map(share).collect(),
        };
        if self.json {
            print_json(&split)?;
        } else {
            print_text(&describe_batch_split(&split))?;
        }
        Ok(Exit::Good)
    }

    /// Returns the most samples that each of `ranks` ranks may get. Without `--max-per-rank` no
    /// rank has a limit, and one number holds for all ranks. Any other count of numbers than
    /// `ranks` is refused.
    fn max_samples_per_rank(&self, ranks: usize) -> Result<Vec<u64>, CommandError> {
        match self.max_per_rank[..] {
            [] => Ok(vec![u64::MAX; ranks]),
            [all] => Ok(vec![all; ranks]),
            ref each if each.len() == ranks => Ok(each.to_vec()),
            ref each => Err(CommandError::Usage(format!(
                "--max-per-rank has {} numbers for {ranks} ranks: give one number, or one for each \
                 rank",
                each.len()
            ))),
        }
    }
}

/// Returns the split of a batch as a table, with its time compared with other splits below.
fn describe_batch_split(split: &BatchSplit) -> String {
    let row = |share: &BatchRankRow| {
        let rank = share.rank.to_string();
        [rank, share.region.clone(), share.speed.to_string(), share.samples.to_string()]
    };
    let rows: Vec<[String; 4]> = split.shares.iter().map(row).collect();
    format!(
        "{}the slowest rank takes {} times as long as with divisible samples, {} times as long as \
         with an even split\n",
        render_table(["rank", "region", "speed", "samples"], &rows),
        rounded_decimal(split.makespan_over_ideal),
        rounded_decimal(split.makespan_over_even)
    )
}
