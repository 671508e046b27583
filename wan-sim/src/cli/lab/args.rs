//! The subcommands of `wan-sim lab` and their flags.

use std::ffi::OsString;
use std::path::PathBuf;

/// Commands on a lab. A lab is identified by its file.
#[derive(Debug, clap::Subcommand)]
pub enum LabCommand {
    /// Make the sites and start their links, in the background.
    #[command(after_help = "Example: wan-sim lab up configs/labs/three-sites.toml")]
    Up(UpArgs),
    /// Run a program at a site.
    #[command(after_help = "Example: wan-sim lab exec configs/labs/three-sites.toml east -- \
        ping -c 3 west")]
    Exec {
        /// The lab or fabric file.
        file: PathBuf,
        /// The site.
        site: String,
        /// The program and its arguments.
        #[arg(required = true, last = true)]
        command: Vec<OsString>,
    },
    /// Print what the links have seen so far, as JSON.
    #[command(after_help = "Example: wan-sim lab status configs/labs/three-sites.toml")]
    Status {
        /// The lab or fabric file.
        file: PathBuf,
    },
    /// Remove the sites and what runs there, also of a lab that was killed, and print the
    /// fidelity report.
    #[command(after_help = "Example: wan-sim lab down configs/labs/three-sites.toml")]
    Down {
        /// The lab or fabric file; it may be gone by now.
        file: PathBuf,
        /// Print what the links have seen and the fidelity report as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Flags of `wan-sim lab up`.
#[derive(Debug, Clone, clap::Args)]
pub struct UpArgs {
    /// The lab or fabric file.
    pub file: PathBuf,
    /// Record what all links are offered and its fate, for `wan-sim replay`.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Stay in the foreground until interrupted, and show the links at work.
    #[arg(long)]
    pub foreground: bool,
    /// At the end print what the links have seen and the fidelity report as JSON; in the
    /// background `lab down --json` does.
    #[arg(long, requires = "foreground")]
    pub json: bool,
}
