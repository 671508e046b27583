//! The command line: `wan-sim`, and the same below `landbridge wan-sim`.

/// Prints a line. Whoever closed standard output wants no more of it.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($words)*);
    }};
}

mod lab;
mod progress;
mod relay;
mod show;
mod tc;

pub use lab::LabCommand;
pub use relay::RelayArgs;
pub use tc::TcArgs;

use clap::CommandFactory;
use clap::error::ErrorKind;
use std::path::PathBuf;

/// What `wan-sim` can do.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Relay UDP over a link, without privileges.
    Relay(Box<RelayArgs>),
    /// Network namespaces with links between them, for any program.
    #[command(subcommand)]
    Lab(LabCommand),
    /// Print, run, check or undo the `tc` commands that make the links on real hosts.
    Tc(TcArgs),
    /// Offer a recording's packets to the model again, and compare every fate.
    Replay {
        /// What `wan-sim relay --record` or `wan-sim lab up --record` wrote.
        file: PathBuf,
    },
    /// Print the links of a lab or fabric file in netem's words.
    Show {
        /// The lab or fabric file.
        file: PathBuf,
    },
    /// Print the links that files can name.
    Presets,
}

/// Runs `command` until it ends or is interrupted. Returns the exit code.
pub fn run(command: &Command) -> u8 {
    match command {
        Command::Relay(args) => relay::run(args),
        Command::Lab(command) => lab::run(command),
        Command::Tc(args) => tc::run(args),
        Command::Replay { file } => show::replayed(file),
        Command::Show { file } => show::topology(file),
        Command::Presets => show::presets(),
    }
}

/// Says what is wrong with a command line of `C`, or what was asked of it. Returns the exit code.
pub fn tell<C: CommandFactory>(error: &clap::Error) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // Nobody is left to tell when even this cannot be printed.
            let _ = error.print();
            return if error.use_stderr() { EXIT_USAGE } else { EXIT_GOOD };
        }
        _ => {}
    }
    // One line, which names the word and what would be accepted. The word may be anything.
    let text = error.to_string();
    let text = text.split("\n\nFor more").next().unwrap_or_default();
    let (what, usage) = text.split_once("\n\nUsage: ").unwrap_or((text, ""));
    let mut line = match error.kind() {
        ErrorKind::ValueValidation => what.trim().to_owned(),
        _ => what.trim().replace("\n\n", "; ").replace(":\n", ":").replace('\n', ", "),
    };
    if let Some(accepted) = accepted(error.kind(), C::command(), usage) {
        line += &format!("; accepted: {accepted}");
    } else if !usage.is_empty() {
        line += &format!("; usage: {usage}");
    }
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    let escaped = line.chars().map(escaped).collect::<String>();
    eprintln!("{}", escaped.split_whitespace().collect::<Vec<_>>().join(" "));
    EXIT_USAGE
}

/// What could stand in the place of a word that nobody knows.
fn accepted(kind: ErrorKind, mut command: clap::Command, usage: &str) -> Option<String> {
    for word in usage.split_whitespace() {
        if let Some(inner) = command.find_subcommand(word) {
            command = inner.clone();
        }
    }
    let names: Vec<_> = match kind {
        ErrorKind::UnknownArgument => {
            let flags = command.get_arguments().filter(|flag| !flag.is_hide_set());
            flags.filter_map(|flag| Some(format!("--{}", flag.get_long()?))).collect()
        }
        ErrorKind::InvalidSubcommand => {
            let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set());
            inner.map(|inner| inner.get_name().to_owned()).collect()
        }
        _ => return None,
    };
    (!names.is_empty()).then(|| names.join(", "))
}

/// All is well.
pub const EXIT_GOOD: u8 = 0;
/// Something failed that the caller could not know.
pub const EXIT_FAILED: u8 = 1;
/// The command line or a file is wrong.
pub const EXIT_USAGE: u8 = 64;
/// This machine or user cannot do it; nothing is wrong with what was asked.
pub const EXIT_UNAVAILABLE: u8 = 77;
/// Interrupted by SIGINT or SIGTERM.
pub const EXIT_INTERRUPTED: u8 = 130;
