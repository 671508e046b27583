//! The execution of lab commands.

use super::args::LabCommand;
use super::failure::LabFailure;
use super::home::Home;
use super::up;
use crate::cli::exit::EXIT_GOOD;
use crate::lab::{LabError, NO_IP, may_enter, namespace_name, remove_orphans};
use crate::topology::Topology;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Runs `command`. Returns the exit code.
pub(in crate::cli) fn run(command: &LabCommand) -> u8 {
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

fn exec(file: &Path, site: &str, command: &[OsString]) -> Result<u8, LabFailure> {
    let topology = Topology::load(file)?;
    if !topology.sites.iter().any(|known| known == site) {
        let known = topology.sites.join(", ");
        return Err(LabFailure::Site { site: site.to_owned(), known });
    }
    let home = Home::of(file)?;
    if !home.is_up() {
        return Err(LabFailure::Down);
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

fn status(file: &Path) -> Result<u8, LabFailure> {
    let home = Home::of(file)?;
    if !home.is_up() {
        return Err(LabFailure::Down);
    }
    print_line!("{}", home.status()?.trim_end());
    Ok(EXIT_GOOD)
}

fn down(file: &Path, json: bool) -> Result<u8, LabFailure> {
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
            print_line!("{}", said.trim_end());
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
            print_line!("removed {name}, which was left behind");
        }
    }
    home.remove();
    if was_up || !orphans.is_empty() || file.exists() {
        Ok(EXIT_GOOD)
    } else {
        Err(LabFailure::NoFile(file.to_owned()))
    }
}
