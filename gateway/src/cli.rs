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
use tracing_subscriber::EnvFilter;

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
fn log_to_stderr() -> Result<(), CommandError> {
    let wanted = std::env::var_os(LOG).unwrap_or_default();
    let filter = log_filter(&wanted.to_string_lossy()).ok_or_else(|| {
        CommandError::Usage(format!(
            "{LOG}={wanted:?}: not a level; accepted: error, warn, info, debug, trace or off, and \
             TARGET=LEVEL, with commas between several"
        ))
    })?;
    let stderr = || log_line::OneLine(std::io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).init();
    Ok(())
}

/// What may be logged. A word by itself must be a level: to the filter any other word is a target,
/// so that a slip in a level would be silence.
fn log_filter(wanted: &str) -> Option<EnvFilter> {
    let is_level = |word: &str| {
        let levels = ["error", "warn", "info", "debug", "trace", "off"];
        levels.iter().any(|level| word.eq_ignore_ascii_case(level))
    };
    if wanted.is_empty() {
        return Some(EnvFilter::new("info"));
    }
    let mut words = wanted.split(',');
    let known = words.all(|word| match word.rsplit_once('=') {
        Some((target, level)) => !target.is_empty() && is_level(level),
        None => is_level(word),
    });
    EnvFilter::try_new(wanted).ok().filter(|_| known)
}

/// Names what is logged.
const LOG: &str = "LANDBRIDGE_LOG";

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

#[cfg(test)]
mod tests {
    use super::log_filter;

    #[test]
    fn a_slip_in_a_level_is_no_filter() {
        for good in ["", "info", "DEBUG", "off", "warn,gateway::wan=trace", "quinn=off"] {
            assert!(log_filter(good).is_some(), "{good}");
        }
        for bad in ["debgu", "info,", "gateway", "gateway=loud", "=info", "info;debug", " "] {
            assert!(log_filter(bad).is_none(), "{bad}");
        }
    }
}
