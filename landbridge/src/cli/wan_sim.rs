//! `landbridge wan-sim`: the emulator's commands, so that one binary is enough.

use super::output::exit::Exit;
use super::output::parent::exit_with_parent;
use crate::cli::output::command_error::CommandError;
use clap::Args;

/// Emulate long-haul links on this machine.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge wan-sim lab up configs/labs/three-sites.toml")]
pub(super) struct WanSimCommand {
    #[command(subcommand)]
    command: wan_sim::cli::Command,
    /// End when the parent process ends
    #[arg(long, hide = true)]
    exit_with_parent: bool,
}

impl WanSimCommand {
    /// Runs a command of the emulator and translates its exit code.
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        if self.exit_with_parent {
            exit_with_parent()?;
        }
        Ok(Exit::from_wan_sim(wan_sim::cli::run_wan_sim_command(&self.command)))
    }
}
