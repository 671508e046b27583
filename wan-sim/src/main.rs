//! The `wan-sim` command.

use clap::Parser;
use clap::error::ErrorKind;
use std::process::ExitCode;
use wan_sim::cli::{self, Command};

/// What a long-haul link does to packets, on this machine.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    match Arguments::try_parse() {
        Ok(arguments) => ExitCode::from(cli::run(&arguments.command)),
        // A wrong value: one line, which names it and what would be accepted.
        Err(error) if error.kind() == ErrorKind::ValueValidation => {
            eprintln!("{}", error.to_string().lines().next().unwrap_or_default());
            ExitCode::from(cli::EXIT_USAGE)
        }
        Err(error) => {
            // Nobody is left to tell when even this cannot be printed.
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { cli::EXIT_USAGE } else { cli::EXIT_GOOD })
        }
    }
}
