//! The execution of lab commands.

use super::args::LabCommand;
use super::lab_failure::LabFailure;
use super::lab_home::LabHome;
use super::up;
use crate::cli::exit_codes::EXIT_GOOD;
use crate::cli::output::print_wan_sim_output;
use crate::lab::{
    IP_COMMAND_MISSING, LabError, check_namespace_entry, namespace_name, remove_orphan_namespaces,
};
use crate::topology::Topology;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Runs a command of `wan-sim lab`. Returns the exit code.
pub(in crate::cli) fn run_lab_command(command: &LabCommand) -> u8 {
    let done = match command {
        LabCommand::Up(args) if args.foreground => up::bring_lab_up_in_foreground(args),
        LabCommand::Up(args) => up::bring_lab_up_in_background(args),
        LabCommand::Exec { file, site, command } => run_lab_exec_command(file, site, command),
        LabCommand::Status { file } => run_lab_status_command(file),
        LabCommand::Down { file, json } => run_lab_down_command(file, *json),
    };
    done.unwrap_or_else(|error| {
        stdio::print_stderr_message(format_args!("wan-sim lab: {error}"));
        error.exit_code()
    })
}

/// Replaces this process by a program at a site of the lab; returns only when that fails.
fn run_lab_exec_command(file: &Path, site: &str, command: &[OsString]) -> Result<u8, LabFailure> {
    let topology = Topology::load(file)?;
    if !topology.sites.iter().any(|known| known == site) {
        let known = topology.sites.join(", ");
        return Err(LabFailure::Site { site: site.to_owned(), known });
    }
    let home = LabHome::of_lab_file(file)?;
    if !home.is_up() {
        return Err(LabFailure::Down);
    }
    let namespace = namespace_name(home.namespace_prefix(), site);
    check_namespace_entry(&namespace)?;
    stdio::forbid_terminal_background_writes()?;
    // Returns only where it failed.
    let source = Command::new("ip").args(["netns", "exec", &namespace]).args(command).exec();
    match source.kind() {
        io::ErrorKind::NotFound => {
            Err(LabError::Unprivileged { what: IP_COMMAND_MISSING, source }.into())
        }
        _ => Err(source.into()),
    }
}

/// Prints the status of a lab that is up, as JSON.
fn run_lab_status_command(file: &Path) -> Result<u8, LabFailure> {
    let home = LabHome::of_lab_file(file)?;
    if !home.is_up() {
        return Err(LabFailure::Down);
    }
    Ok(print_wan_sim_output(&home.read_status()?, EXIT_GOOD))
}

/// Ends a lab, prints its last report or with `json` its last status, and removes what is left.
/// Fails where there is neither a lab nor its file.
fn run_lab_down_command(file: &Path, json: bool) -> Result<u8, LabFailure> {
    let home = LabHome::of_lab_file(file)?;
    let was_up = home.is_up();
    if was_up {
        home.end_lab()?;
    }
    let last = home.read_report();
    // A lab that ended by itself leaves its report, too; a lab that was killed does not.
    let mut code = EXIT_GOOD;
    if was_up || !last.is_empty() {
        // A lab in the foreground has printed its report itself, and has removed its folder.
        let said = if json { home.read_status_if_any()?.unwrap_or_default() } else { last };
        code = print_wan_sim_output(&said, code);
    }
    // Where another process brings the lab up again meanwhile, the lab belongs to that process.
    let Some(_lock) = home.try_lock()? else { return Ok(code) };
    let orphans = remove_orphan_namespaces(home.namespace_prefix())?;
    for name in &orphans {
        // With --json, standard output holds nothing but JSON.
        if json {
            stdio::print_stderr_message(format_args!("removed {name}, which was left behind"));
        } else {
            code = print_wan_sim_output(&format!("removed {name}, which was left behind"), code);
        }
    }
    home.remove_folder();
    if was_up || !orphans.is_empty() || file.exists() {
        Ok(code)
    } else {
        Err(LabFailure::NoFile(file.to_owned()))
    }
}
