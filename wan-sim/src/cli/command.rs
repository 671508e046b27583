//! The commands, each in a module of its own.

use super::exit_codes::EXIT_INTERRUPTED;
use super::lab::{self, LabCommand};
use super::relay::{self, RelayArgs};
use super::show;
use super::tc::{self, TcArgs};
use crate::CapacitySource;
use std::path::PathBuf;

/// The commands of `wan-sim`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Relay UDP over a link, without privileges.
    #[command(after_help = "Example: wan-sim relay --forward 127.0.0.1:7001=127.0.0.1:7002 \
        --rtt 80ms --rate 500Mbit/s --loss 0.1%")]
    Relay(Box<RelayArgs>),
    /// Network namespaces with links between them, for any program.
    #[command(subcommand, after_help = "Example: wan-sim lab up configs/labs/three-sites.toml")]
    Lab(LabCommand),
    /// Print, run, check or undo the `tc` commands that make the links on real hosts.
    #[command(after_help = "Example: wan-sim tc configs/labs/three-sites.toml --site east")]
    Tc(TcArgs),
    /// Offer a recording's packets to the model again, and compare every fate.
    #[command(after_help = "Example: wan-sim replay run.recording")]
    Replay {
        /// The recording, made by `wan-sim relay --record` or `wan-sim lab up --record`.
        file: PathBuf,
    },
    /// Print the links of a lab or fabric file in netem's words.
    #[command(after_help = "Example: wan-sim show configs/labs/three-sites.toml")]
    Show {
        /// The lab or fabric file.
        file: PathBuf,
    },
    /// Print the links that files can name.
    #[command(after_help = "Example: wan-sim presets")]
    Presets,
    /// Print a recorded capacity, one delivery a line in ms, as `relay --capacity` takes it.
    #[command(after_help = "Example: wan-sim capacity satellite --seed 2")]
    Capacity {
        /// One of cellular, satellite, cloud, which are generated; or a file, which is checked.
        source: CapacitySource,
        /// Decides the generated rates.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
}

impl Command {
    /// Returns whether the command ends by itself on an interrupt, since it has links to stop.
    fn handles_interrupts(&self) -> bool {
        match self {
            Self::Relay(_) => true,
            Self::Lab(LabCommand::Up(args)) => args.foreground,
            _ => false,
        }
    }
}

/// Runs a command of `wan-sim` until it ends or is interrupted. Returns the exit code.
pub fn run_wan_sim_command(command: &Command) -> u8 {
    if !command.handles_interrupts() {
        // Without it an interrupt ends the process by its signal, which is no reason not to run.
        let _ = stdio::ExitOnTerminalSignal::begin(EXIT_INTERRUPTED);
    }
    match command {
        Command::Relay(args) => relay::run_relay(args),
        Command::Lab(command) => lab::run_lab_command(command),
        Command::Tc(args) => tc::run_tc(args),
        Command::Replay { file } => show::show_replay(file),
        Command::Show { file } => show::show_topology(file),
        Command::Presets => show::show_presets(),
        Command::Capacity { source, seed } => show::show_capacity(source, *seed),
    }
}
