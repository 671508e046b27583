//! `landbridge quickstart`, and the hidden command that runs one of its ranks.

use super::output::exit::Exit;
use super::output::parent::exit_with_parent;
use super::output::print::{print_json, print_text};
use crate::cli::output::command_error::CommandError;
use crate::quickstart::{self, QuickstartError, QuickstartOptions, RankTask, report};
use clap::Args;
use gateway::host::current_thread_runtime;
use gateway::local::token_file;
use std::num::NonZeroU32;
use std::path::PathBuf;
use units::{BitRate, ByteCount, Fraction, Span};

/// Train a small network over two emulated regions on this machine, then measure all-reduces.
///
/// Starts two gateways, a relay that emulates the link between them, and one process for each rank,
/// all on loopback and without privileges. Removes everything at the end. The times are VOID when
/// the machine was too busy to emulate the link.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: landbridge quickstart --rtt 150ms --rate '200 Mbit/s' --ranks 2,2"
)]
pub(super) struct QuickstartCommand {
    /// Round-trip time between the regions
    #[arg(long, default_value = "80 ms")]
    rtt: Span,
    /// Rate of the link, each way, in IP bytes
    #[arg(long, default_value = "500 Mbit/s")]
    rate: BitRate,
    /// Random loss, each way
    #[arg(long, default_value = "0.1 %")]
    loss: Fraction,
    /// Ranks of the regions east and west, 1 to 8 each
    #[arg(long, default_value = "3,1", value_parser = parse_quickstart_rank_counts)]
    ranks: (u32, u32),
    /// Size of the buffer that is all-reduced after the training, 1 MiB to 4 GiB
    #[arg(long, default_value = "64 MiB", value_parser = parse_quickstart_buffer_size)]
    size: ByteCount,
    /// Number of training steps
    #[arg(long, value_name = "N", default_value_t = training::data_parallel::STEPS_DEFAULT)]
    steps: NonZeroU32,
    /// Number of all-reduces of that buffer
    #[arg(long, value_name = "N", default_value = "5")]
    iterations: NonZeroU32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Run one rank of a quickstart, which starts it.
#[derive(Debug, Args)]
pub(super) struct QuickstartRankCommand {
    #[arg(long)]
    socket: PathBuf,
    #[arg(long)]
    token: PathBuf,
    #[arg(long)]
    rank: u32,
    #[arg(long, value_delimiter = ',')]
    shares: Vec<u64>,
    #[arg(long)]
    steps: NonZeroU32,
    #[arg(long)]
    size: ByteCount,
    #[arg(long)]
    iterations: NonZeroU32,
    #[arg(long)]
    weights: PathBuf,
}

impl QuickstartCommand {
    /// Runs `landbridge quickstart`: trains, all-reduces, and prints the report with its checks.
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        let options = QuickstartOptions {
            rtt: self.rtt,
            rate: self.rate,
            loss: self.loss,
            ranks: self.ranks,
            size: self.size,
            steps: self.steps,
            iterations: self.iterations,
        };
        let runtime = current_thread_runtime()?;
        let report = runtime.block_on(quickstart::run_quickstart(&options));
        // The reference may still be computed after an error: do not wait for it.
        runtime.shutdown_background();
        let report = report?;
        let checks = report::report_checks::check_quickstart_report(&report);
        if self.json {
            print_json(&report)?;
        } else {
            print_text(&report::render_quickstart_report(
                &report,
                &checks,
                stdio::output_columns(),
            ))?;
        }
        if !report.fidelity.void.is_empty() {
            stdio::print_stderr_message(format_args!(
                "VOID: the times are not those of the link: {}; try again when the machine has no \
                 other work",
                report.fidelity.void.join("; ")
            ));
        }
        for failed in checks.iter().filter(|check| !check.passed) {
            let (claim, found) = (&failed.claim, &failed.found);
            stdio::print_stderr_message(format_args!("check failed: {claim}: {found}"));
        }
        let good = checks.iter().all(|check| check.passed);
        Ok(if good { Exit::Good } else { Exit::CheckFailed })
    }
}

impl QuickstartRankCommand {
    /// Runs one rank of a quickstart, in the process that the quickstart has started for it.
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        exit_with_parent()?;
        let task = RankTask {
            socket: self.socket,
            token: token_file::load_token_file(&self.token)?,
            rank: self.rank,
            shares: self.shares,
            steps: self.steps,
            size: self.size,
            iterations: self.iterations,
            weights: self.weights,
        };
        let runtime = current_thread_runtime()?;
        runtime.block_on(task.run()).map_err(QuickstartError::Rank)?;
        Ok(Exit::Good)
    }
}

/// Parses the numbers of ranks of east and west, such as `3,1`: 1 to 8 each.
fn parse_quickstart_rank_counts(text: &str) -> Result<(u32, u32), String> {
    let counts: Vec<Option<u32>> = text
        .split(',')
        .map(|count| count.trim().parse().ok().filter(|n| (1..=8).contains(n)))
        .collect();
    match counts[..] {
        [Some(east), Some(west)] => Ok((east, west)),
        _ => Err("two numbers from 1 to 8, such as 3,1".to_owned()),
    }
}

/// Parses the size of a buffer of f32: 1 MiB to 4 GiB, a multiple of 4 bytes.
fn parse_quickstart_buffer_size(text: &str) -> Result<ByteCount, String> {
    let size: ByteCount = text.parse().map_err(|error: units::QuantityError| error.to_string())?;
    if size.get() < 1 << 20 || size.get() > 4 << 30 || !size.get().is_multiple_of(4) {
        return Err("a size from 1 MiB to 4 GiB, of whole f32 elements".to_owned());
    }
    Ok(size)
}
