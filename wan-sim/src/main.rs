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
    let code = match Arguments::try_parse() {
        Ok(arguments) => cli::run_command(&arguments.command),
        Err(error) => cli::explain_usage_error::<Arguments>(&error),
    };
    stdio::flush_stderr();
    ExitCode::from(code)
}
