//! The command line: one file for each command, exit codes in `output/exit.rs`.
//!
//! `main` calls [`main`], which parses the command line and runs one command. A command calls the
//! library `gateway` or a module of this crate, and prints through [`output`].

mod bench;
mod buffer_size;
mod certs;
mod completions;
mod config;
mod diagnosis;
mod fabric;
mod init;
mod manual;
mod membership;
mod output;
mod plan;
mod ports;
mod quickstart;
mod rate;
mod run;
mod status;
mod wan_sim;

pub(crate) use output::exit::Exit;

use output::fatal_signals::{handle_fatal_abort_signal, ignore_fatal_file_size_signal};

use clap::{CommandFactory, Parser, Subcommand};
use gateway::limits::process_limits::raise_process_stack_limit;
use stdio::ExitOnTerminalSignal;

/// Lets one training job span several data centres.
#[derive(Debug, Parser)]
#[command(name = "landbridge", version, after_help = EXIT_CODES_HELP)]
struct LandbridgeArguments {
    #[command(subcommand)]
    command: LandbridgeCommand,
}

#[derive(Debug, Subcommand)]
enum LandbridgeCommand {
    Quickstart(quickstart::QuickstartCommand),
    Init(init::InitCommand),
    Certs(certs::CertsCommand),
    Check(config::ConfigCheckCommand),
    Config(config::ConfigCommand),
    Plan(plan::PlanCommand),
    Run(run::RunCommand),
    Status(status::StatusCommand),
    Rate(rate::RateCommand),
    Leave(membership::LeaveCommand),
    Join(membership::JoinCommand),
    Fabric(fabric::FabricCommand),
    Trace(diagnosis::TraceCommand),
    Doctor(diagnosis::DoctorCommand),
    Dump(diagnosis::DumpCommand),
    Explain(diagnosis::ExplainCommand),
    Ports(ports::PortsCommand),
    Bench(bench::BenchCommand),
    WanSim(wan_sim::WanSimCommand),
    Completions(completions::CompletionsCommand),
    Man(manual::ManCommand),
    #[command(hide = true)]
    QuickstartRank(quickstart::QuickstartRankCommand),
}

impl LandbridgeCommand {
    /// Returns whether the command handles an interrupt (Ctrl-C) itself from its start on, since it
    /// has something to stop or to remove. An interrupt ends the process of any other command with
    /// exit code 130.
    fn handles_interrupts(&self) -> bool {
        match self {
            // The emulator's commands do as they need.
            Self::Quickstart(_) | Self::QuickstartRank(_) | Self::WanSim(_) => true,
            // A gateway has handlers of its own once its files are read.
            Self::Run(_)
            | Self::Status(_)
            | Self::Init(_)
            | Self::Certs(_)
            | Self::Check(_)
            | Self::Config(_)
            | Self::Plan(_)
            | Self::Rate(_)
            | Self::Leave(_)
            | Self::Join(_)
            | Self::Fabric(_)
            | Self::Trace(_)
            | Self::Doctor(_)
            | Self::Dump(_)
            | Self::Explain(_)
            | Self::Ports(_)
            | Self::Bench(_)
            | Self::Completions(_)
            | Self::Man(_) => false,
        }
    }
}

/// Runs the command that the process was started with. Errors go to stderr, which gets a moment to
/// take what waits for it.
pub(crate) fn main() -> Exit {
    // Without it a launcher that has blocked a signal for itself blocks it here, too.
    let _ = stdio::unblock_terminal_signals();
    // Without it a terminal may stop a command that runs in its background, as users can ask for.
    let _ = stdio::allow_terminal_background_writes();
    let exit = match raise_process_stack_limit() {
        Ok(()) => run_landbridge_command(),
        Err(error) => {
            stdio::print_stderr_message(error);
            Exit::Skipped
        }
    };
    stdio::flush_stderr();
    exit
}

/// Parses the command line and runs its command. Not a part of its caller: its stack is too large to
/// be used before the limit on the stack is checked.
#[inline(never)]
fn run_landbridge_command() -> Exit {
    // Without it a file that grows above a limit ends the process, which is no reason not to run.
    let _ = ignore_fatal_file_size_signal();
    let line = match ::wan_sim::cli::parse_arguments_or_usage::<LandbridgeArguments>() {
        Ok(line) => line,
        Err(error) => {
            return Exit::from_wan_sim(::wan_sim::cli::explain_usage_error::<LandbridgeArguments>(
                &error,
            ));
        }
    };
    // Without it an abort ends the process by its signal, which is no reason not to run.
    let _ = handle_fatal_abort_signal();
    // Without it an interrupt ends the process by its signal, which is no reason not to run.
    let interrupts = match line.command.handles_interrupts() {
        true => ExitOnTerminalSignal::default(),
        false => ExitOnTerminalSignal::begin(Exit::Interrupted as u8).unwrap_or_default(),
    };
    let outcome = match line.command {
        LandbridgeCommand::Quickstart(command) => command.run(),
        LandbridgeCommand::QuickstartRank(command) => command.run(),
        LandbridgeCommand::Run(command) => command.run(interrupts),
        LandbridgeCommand::Bench(command) => command.run(),
        LandbridgeCommand::WanSim(command) => command.run(),
        LandbridgeCommand::Completions(command) => command.run(LandbridgeArguments::command()),
        LandbridgeCommand::Man(command) => command.run(LandbridgeArguments::command()),
        LandbridgeCommand::Init(command) => command.run(),
        LandbridgeCommand::Certs(command) => command.run(),
        LandbridgeCommand::Check(command) => command.run(),
        LandbridgeCommand::Config(command) => command.run(),
        LandbridgeCommand::Plan(command) => command.run(),
        LandbridgeCommand::Doctor(command) => command.run(),
        LandbridgeCommand::Dump(command) => command.run(),
        LandbridgeCommand::Explain(command) => command.run(),
        LandbridgeCommand::Ports(command) => command.run(),
        LandbridgeCommand::Status(command) => command.run(),
        LandbridgeCommand::Rate(command) => command.run(),
        LandbridgeCommand::Leave(command) => command.run(),
        LandbridgeCommand::Join(command) => command.run(),
        LandbridgeCommand::Fabric(command) => command.run(),
        LandbridgeCommand::Trace(command) => command.run(),
    };
    outcome.unwrap_or_else(|error| {
        if !error.is_silent() {
            stdio::print_stderr_message(&error);
        }
        error.exit_code()
    })
}

/// Text on exit codes, shown at the end of `landbridge --help`.
const EXIT_CODES_HELP: &str = "Example: landbridge quickstart\n\nExit codes: 0 success, 1 a check \
    failed or the report was not written, 64 wrong command line or config, 69 no gateway answers, \
    77 not possible on this machine, 130 interrupted";
