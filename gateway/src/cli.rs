//! The command line: one file per command, exit codes in one place.

mod certs;
mod check;
mod doctor;
mod exit;
mod status;
mod table;

pub use exit::{CommandError, Exit};

use clap::{Parser, Subcommand};
use std::io::Write;

/// Lets one training job span several data centres.
#[derive(Debug, Parser)]
#[command(name = "landbridge", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Certs(certs::Certs),
    Check(check::Check),
    Doctor(doctor::Doctor),
    Status(status::Status),
}

/// Runs the command that the process was started with; what went wrong goes to stderr.
pub fn main() -> Exit {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing is left to do when even this cannot be printed.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage } else { Exit::Good };
        }
    };
    let outcome = match cli.command {
        Command::Certs(command) => command.run(),
        Command::Check(command) => command.run(),
        Command::Doctor(command) => command.run(),
        Command::Status(command) => command.run(),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("{error}");
        error.exit()
    })
}

/// Prints to stdout. A reader that has gone away, such as `head`, is no fault of ours.
fn show(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{}", text.trim_end());
}

/// Prints one JSON object to stdout.
fn show_json(value: &impl serde::Serialize) {
    show(&serde_json::to_string(value).expect("keys are strings"));
}

const EXIT_CODES: &str = "Exit codes: 0 good, 1 a check failed, 64 usage or config, \
    69 nothing answers, 77 skipped, 130 interrupted";
