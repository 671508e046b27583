//! The `wan-sim` command.

// They panic or wait where a stream is closed, full or not read: use `stdio`.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

use clap::Parser;
use std::process::ExitCode;
use wan_sim::cli::{self, Command};

/// Emulate long-haul links on this machine.
#[derive(Debug, Parser)]
#[command(version, after_help = "Example: wan-sim lab up configs/labs/three-sites.toml")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// Runs the program `wan-sim` with the arguments of this process. Returns its exit code.
fn main() -> ExitCode {
    // Without it a launcher that has blocked a signal for itself blocks it here, too.
    let _ = stdio::unblock_terminal_signals();
    // Without it a terminal may stop a command that runs in its background, as users can ask for.
    let _ = stdio::allow_terminal_background_writes();
    let code = match cli::parse_arguments_or_usage::<Arguments>() {
        Ok(arguments) => cli::run_wan_sim_command(&arguments.command),
        Err(error) => cli::explain_usage_error::<Arguments>(&error),
    };
    stdio::flush_stderr();
    ExitCode::from(code)
}
