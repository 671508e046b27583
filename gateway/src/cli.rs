//! The command line: one file per command, exit codes in one place.

mod bench;
mod certs;
mod check;
mod doctor;
mod exit;
mod log_line;
mod plan;
mod quickstart;
mod rate;
mod run;
mod status;
mod stop;
mod table;
pub(crate) mod token;
mod wan_sim;

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
    Quickstart(quickstart::Quickstart),
    Certs(certs::Certs),
    Check(check::Check),
    Plan(plan::PlanCommand),
    Run(run::Run),
    Status(status::Status),
    Rate(rate::Rate),
    Doctor(doctor::Doctor),
    Bench(bench::Bench),
    WanSim(wan_sim::WanSim),
    #[command(hide = true)]
    QuickstartRank(quickstart::QuickstartRank),
}

/// Runs the command that the process was started with; what went wrong goes to stderr.
pub fn main() -> Exit {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let told = ::wan_sim::cli::tell::<Cli>(&error);
            return if told == ::wan_sim::cli::EXIT_GOOD { Exit::Good } else { Exit::Usage };
        }
    };
    let outcome = match cli.command {
        Command::Quickstart(command) => command.run(),
        Command::QuickstartRank(command) => command.run(),
        Command::Run(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::WanSim(command) => command.run(),
        Command::Certs(command) => command.run(),
        Command::Check(command) => command.run(),
        Command::Plan(command) => command.run(),
        Command::Doctor(command) => command.run(),
        Command::Status(command) => command.run(),
        Command::Rate(command) => command.run(),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("{error}");
        error.exit()
    })
}

/// Ends this process when its parent ends, however that happens.
fn exit_with_parent() -> std::io::Result<()> {
    let parent = rustix::process::getppid();
    let signal = rustix::process::Signal::TERM;
    rustix::process::set_parent_process_death_signal(Some(signal))?;
    if rustix::process::getppid() == parent {
        Ok(())
    } else {
        Err(std::io::Error::other("the parent process is gone"))
    }
}

/// Logs to stderr what LANDBRIDGE_LOG asks for; by default what an operator wants to know.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("LANDBRIDGE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let stderr = || log_line::OneLine(std::io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).init();
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
