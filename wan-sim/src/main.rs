//! The `wan-sim` command.

use clap::Parser;
use std::process::ExitCode;
use wan_sim::cli::{self, Command};

/// Emulate long-haul links on this machine.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    match Arguments::try_parse() {
        Ok(arguments) => ExitCode::from(cli::run_command(&arguments.command)),
        Err(error) => ExitCode::from(cli::explain_usage_error::<Arguments>(&error)),
    }
}
