//! `wan-sim tc`.

use super::exit::{EXIT_FAILED, EXIT_GOOD, EXIT_UNAVAILABLE, EXIT_USAGE};
use crate::tc::{
    HostCommands, SEGMENTS_MOST, Shown, TcError, VerifyError, applied, most_segments, removal,
    render, segments, verify,
};
use crate::topology::{FileError, Topology, device_of};
use std::io;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Flags of `wan-sim tc`.
#[derive(Debug, Clone, clap::Args)]
pub struct TcArgs {
    /// The lab or fabric file.
    pub file: PathBuf,
    /// Only the commands for this site's host.
    #[arg(long)]
    pub site: Option<String>,
    /// The network device, where the file names none.
    #[arg(long)]
    pub device: Option<String>,
    /// Run the commands on this host, which is the site's.
    #[arg(long, requires = "site", group = "act")]
    pub apply: bool,
    /// Check that this host shapes as the file says.
    #[arg(long, requires = "site", group = "act")]
    pub verify: bool,
    /// Undo what was applied on this host.
    #[arg(long, requires = "site", group = "act")]
    pub remove: bool,
}

#[derive(Debug, thiserror::Error)]
enum TcFailure {
    #[error("{0}")]
    File(#[from] FileError),
    #[error("{0}")]
    Tc(#[from] TcError),
    #[error("there is no site `{site}` with a link; there are {known}")]
    Site { site: String, known: String },
    #[error("{0}")]
    Verify(#[from] VerifyError),
    #[error("nothing on {0} was applied from here: what else shapes it is left alone")]
    NotApplied(String),
    #[error("the file names no device of site `{0}`: give --device")]
    NoDevice(String),
    #[error("this kernel or user cannot: {0}")]
    Unavailable(String),
    #[error("`{command}` failed: {said}")]
    Command { command: String, said: String },
    #[error("{failed}; then undoing what was done: {undoing}")]
    Left { failed: Box<TcFailure>, undoing: Box<TcFailure> },
}

/// Prints or runs the commands. Returns the exit code.
pub(super) fn run(args: &TcArgs) -> u8 {
    match try_run(args) {
        Ok(()) => EXIT_GOOD,
        Err(error) => {
            eprintln!("wan-sim tc: {error}");
            match error {
                TcFailure::File(_)
                | TcFailure::Tc(_)
                | TcFailure::Site { .. }
                | TcFailure::NoDevice(_) => EXIT_USAGE,
                TcFailure::Unavailable(_) => EXIT_UNAVAILABLE,
                TcFailure::Verify(_)
                | TcFailure::NotApplied(_)
                | TcFailure::Command { .. }
                | TcFailure::Left { .. } => EXIT_FAILED,
            }
        }
    }
}

fn try_run(args: &TcArgs) -> Result<(), TcFailure> {
    if let (true, Some(site)) = (args.remove, &args.site) {
        return remove(args, site).map_err(or_unavailable);
    }
    let topology = Topology::load(&args.file)?;
    let mut hosts = render(&topology, args.device.as_deref())?;
    if let Some(site) = &args.site {
        let known: Vec<_> = hosts.iter().map(|host| host.site.clone()).collect();
        hosts.retain(|host| host.site == *site);
        if hosts.is_empty() {
            return Err(TcFailure::Site { site: site.clone(), known: known.join(", ") });
        }
    }
    for host in &hosts {
        if args.apply {
            probe()?;
            apply(host)?;
        } else if args.verify {
            check(host).map_err(or_unavailable)?;
            print_line!("{}: {} shapes as the file says", host.site, host.device);
        } else {
            print(host);
        }
    }
    Ok(())
}

fn print(host: &HostCommands) {
    print_line!("# On {}:", host.site);
    host.apply.iter().for_each(|command| print_line!("{command}"));
    print_line!("# To undo it:");
    host.remove.iter().for_each(|command| print_line!("#   {command}"));
}

fn check(host: &HostCommands) -> Result<(), TcFailure> {
    let device = &host.device;
    let shown = Shown {
        qdiscs: &qdiscs(device)?,
        classes: &execute(&format!("tc class show dev {device}"))?,
        filters: &execute(&format!("tc filter show dev {device}"))?,
        link: &link(device)?,
    };
    Ok(verify(host, &shown)?)
}

/// Applies all of the commands, or none: a failure restores the device.
fn apply(host: &HostCommands) -> Result<(), TcFailure> {
    let before = segments(&link(&host.device)?);
    for (done, command) in host.apply.iter().enumerate() {
        let Err(failed) = execute(command) else { continue };
        // The first makes the root that all others hang below.
        return Err(match if done == 0 { Ok(()) } else { undo(&host.device, before) } {
            Ok(()) => failed,
            Err(undoing) => {
                TcFailure::Left { failed: Box::new(failed), undoing: Box::new(undoing) }
            }
        });
    }
    Ok(())
}

/// Removes the root queue, and lets TCP make buffers of `segments` segments.
fn undo(device: &str, segments: Option<u32>) -> Result<(), TcFailure> {
    let [root, whole] = removal(device, segments.unwrap_or(SEGMENTS_MOST));
    execute(&root).and(execute(&whole)).map(drop)
}

fn link(device: &str) -> Result<String, TcFailure> {
    execute(&format!("ip -d link show dev {device}"))
}

fn qdiscs(device: &str) -> Result<String, TcFailure> {
    execute(&format!("tc qdisc show dev {device}"))
}

/// Only what was applied: whatever else shapes the device stays. The links may have changed since
/// then, or be wrong by now: only the device counts, the file's or else `--device`.
fn remove(args: &TcArgs, site: &str) -> Result<(), TcFailure> {
    let named = device_of(&args.file, site);
    let mut devices: Vec<_> = named.into_iter().chain(args.device.clone()).collect();
    devices.dedup();
    let mut failed = TcFailure::NoDevice(site.to_owned());
    for device in devices {
        match qdiscs(&device) {
            Ok(qdiscs) if applied(&qdiscs) => return undo(&device, most_segments(&link(&device)?)),
            Ok(_) => failed = TcFailure::NotApplied(device),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Replaces a missing-commands error by the reason why netem is unavailable, if it is.
fn or_unavailable(error: TcFailure) -> TcFailure {
    match error {
        TcFailure::NotApplied(_) | TcFailure::Verify(VerifyError::NotApplied { .. }) => {
            probe().err().unwrap_or(error)
        }
        error => error,
    }
}

/// Tries netem in a temporary namespace, before anything is changed.
fn probe() -> Result<(), TcFailure> {
    let name = format!("wansim-probe-{}", std::process::id());
    let unavailable = |error: TcFailure| TcFailure::Unavailable(error.to_string());
    execute(&format!("ip netns add {name}")).map_err(unavailable)?;
    let netem = format!("ip netns exec {name} tc qdisc add dev lo root netem delay 1ms");
    let probed = execute(&netem).map_err(unavailable);
    let removed = execute(&format!("ip netns del {name}")).map_err(unavailable);
    probed.and(removed).map(drop)
}

/// Runs a command line of words without quotes; returns what it printed.
fn execute(command: &str) -> Result<String, TcFailure> {
    let failed = |said: String| TcFailure::Command { command: command.to_owned(), said };
    let mut words = command.split(' ');
    let program = words.next().unwrap_or_default();
    let output: io::Result<Output> = Command::new(program).args(words).output();
    let output = output.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => TcFailure::Unavailable(format!(
            "there is no `{program}` of iproute2 to run `{command}`"
        )),
        _ => failed(error.to_string()),
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        return Err(failed(said));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
