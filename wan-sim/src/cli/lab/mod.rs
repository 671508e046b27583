//! `wan-sim lab`.

mod home;
mod up;

use super::{EXIT_FAILED, EXIT_GOOD, EXIT_INTERRUPTED, EXIT_UNAVAILABLE, EXIT_USAGE};
use crate::lab::{LabError, NO_IP, may_enter, namespace_name, remove_orphans};
use crate::topology::{FileError, Topology};
use home::Home;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What can be done with a lab. A lab is known by its file.
#[derive(Debug, clap::Subcommand)]
pub enum LabCommand {
    /// Make the sites and start their links, in the background.
    Up(UpArgs),
    /// Run a program at a site: wan-sim lab exec FILE SITE -- ping -c 3 OTHER.
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
    Status {
        /// The lab or fabric file.
        file: PathBuf,
    },
    /// Remove the sites and what runs there, also of a lab that was killed, and print the
    /// fidelity report.
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

/// Why a command on a lab failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    File(#[from] FileError),
    #[error("{0}")]
    Lab(#[from] LabError),
    #[error("cannot record into {path}: {source}", path = .path.display())]
    Record { path: PathBuf, source: io::Error },
    #[error("there is no site `{site}`; there are {known}")]
    Site { site: String, known: String },
    #[error("it is up already; see wan-sim lab status, and wan-sim lab down")]
    Up,
    #[error("it is not up; see wan-sim lab up")]
    Down,
    #[error("there is no file {path}, nor a lab that came from it", path = .0.display())]
    NoFile(PathBuf),
    #[error("{0}; run as root")]
    Denied(io::Error),
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::Denied(error),
            _ => Self::Io(error),
        }
    }
}

impl Failure {
    fn code(&self) -> u8 {
        match self {
            Self::File(_) | Self::Record { .. } | Self::Site { .. } => EXIT_USAGE,
            Self::NoFile(_) => EXIT_USAGE,
            Self::Lab(LabError::TooManySites(_)) => EXIT_USAGE,
            Self::Lab(LabError::Unprivileged { .. } | LabError::Left(_)) => EXIT_UNAVAILABLE,
            Self::Denied(_) => EXIT_UNAVAILABLE,
            Self::Lab(LabError::System(_)) | Self::Up | Self::Down | Self::Io(_) => EXIT_FAILED,
        }
    }
}

/// Runs `command`. Returns the exit code.
pub(super) fn run(command: &LabCommand) -> u8 {
    let done = match command {
        LabCommand::Up(args) if args.foreground => up::foreground(args),
        LabCommand::Up(args) => up::background(args),
        LabCommand::Exec { file, site, command } => exec(file, site, command),
        LabCommand::Status { file } => status(file),
        LabCommand::Down { file, json } => down(file, *json),
    };
    done.unwrap_or_else(|error| {
        eprintln!("wan-sim lab: {error}");
        error.code()
    })
}

fn exec(file: &Path, site: &str, command: &[OsString]) -> Result<u8, Failure> {
    let topology = Topology::load(file)?;
    if !topology.sites.iter().any(|known| known == site) {
        let known = topology.sites.join(", ");
        return Err(Failure::Site { site: site.to_owned(), known });
    }
    let home = Home::of(file)?;
    if !home.is_up() {
        return Err(Failure::Down);
    }
    let namespace = namespace_name(home.prefix(), site);
    may_enter(&namespace)?;
    // Comes back only where it failed.
    let source = Command::new("ip").args(["netns", "exec", &namespace]).args(command).exec();
    match source.kind() {
        io::ErrorKind::NotFound => Err(LabError::Unprivileged { what: NO_IP, source }.into()),
        _ => Err(source.into()),
    }
}

fn status(file: &Path) -> Result<u8, Failure> {
    let home = Home::of(file)?;
    if !home.is_up() {
        return Err(Failure::Down);
    }
    say!("{}", home.status()?.trim_end());
    Ok(EXIT_GOOD)
}

fn down(file: &Path, json: bool) -> Result<u8, Failure> {
    let home = Home::of(file)?;
    let was_up = home.is_up();
    if was_up {
        home.end()?;
    }
    let report = home.report();
    // One that ended by itself leaves its report, too; one that was killed does not.
    if was_up || !report.is_empty() {
        // One in the foreground has printed its own, and has gone with all that was its.
        let said = if json { home.status_if_any()?.unwrap_or_default() } else { report };
        if !said.is_empty() {
            say!("{}", said.trim_end());
        }
    }
    // Whoever brings it up again meanwhile has it.
    let Some(_lock) = home.lock()? else { return Ok(EXIT_GOOD) };
    let orphans = remove_orphans(home.prefix())?;
    for name in &orphans {
        // Standard output holds nothing but JSON, then.
        if json {
            eprintln!("removed {name}, which was left behind");
        } else {
            say!("removed {name}, which was left behind");
        }
    }
    home.remove();
    if was_up || !orphans.is_empty() || file.exists() {
        Ok(EXIT_GOOD)
    } else {
        Err(Failure::NoFile(file.to_owned()))
    }
}
