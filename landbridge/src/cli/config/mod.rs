//! Commands that read config files: `landbridge check`, and `landbridge config`, which trainers ask.
//!
//! The Python client has no reader of its own. It runs `landbridge config --json`, so that both
//! languages take the same files with the same meaning, or refuse them in the same words.

mod config_check;
mod config_fix;
mod fabric_deadlines;
mod host_names;
mod region_argument;
mod trainer_config;

pub(super) use config_check::ConfigCheckCommand;
pub(super) use region_argument::{RegionArgument, RegionGatewayArguments};

use super::output::exit::Exit;
use super::output::print::{print_json, print_text};
use crate::cli::output::command_error::CommandError;
use clap::Args;
use trainer_config::{describe_trainer_config, trainer_config};

/// Print what a trainer needs of a region file: sockets, tokens' files, and the ranks.
///
/// The Python client asks it instead of reading the files itself. It prints no secret.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge config --config configs/two-region/east.toml")]
pub(super) struct ConfigCommand {
    #[command(flatten)]
    region: RegionArgument,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl ConfigCommand {
    /// Runs `landbridge config`: prints what a trainer needs of a region file.
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        let region = self.region.load_region()?;
        let found = trainer_config(&region)?;
        if self.json {
            print_json(&found)?;
        } else {
            print_text(&describe_trainer_config(&found))?;
        }
        Ok(Exit::Good)
    }
}
