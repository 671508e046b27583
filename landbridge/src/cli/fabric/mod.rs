//! `landbridge fabric`: signs a changed fabric file, and puts it in force while gateways run.

mod apply;
mod fabric_files;
mod sign;

use super::output::command_error::CommandError;
use super::output::exit::Exit;
use clap::{Args, Subcommand};

/// Sign a changed fabric file, and put it in force at all gateways while they run.
#[derive(Debug, Args)]
pub(super) struct FabricCommand {
    #[command(subcommand)]
    subcommand: FabricSubcommand,
}

#[derive(Debug, Subcommand)]
enum FabricSubcommand {
    Sign(sign::SignCommand),
    Apply(apply::ApplyCommand),
}

impl FabricCommand {
    /// Runs `landbridge fabric sign` or `landbridge fabric apply`.
    pub(super) fn run(self) -> Result<Exit, CommandError> {
        match self.subcommand {
            FabricSubcommand::Sign(command) => command.run(),
            FabricSubcommand::Apply(command) => command.run(),
        }
    }
}
