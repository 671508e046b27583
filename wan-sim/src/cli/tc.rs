//! `wan-sim tc`.

use super::{EXIT_FAILED, EXIT_GOOD, EXIT_UNAVAILABLE, EXIT_USAGE};
use crate::tc::{
    HostCommands, SEGMENTS_MOST, TcError, VerifyError, applied, most_segments, render, segments,
    set_segments, verify,
};
use crate::topology::{FileError, Topology};
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
enum Failure {
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
    #[error("this kernel or user cannot: {0}")]
    Unavailable(String),
    #[error("`{command}` failed: {said}")]
    Command { command: String, said: String },
    #[error("{failed}; then undoing what was done: {undoing}")]
    Left { failed: Box<Failure>, undoing: Box<Failure> },
}

/// Prints or runs the commands. Returns the exit code.
pub(super) fn run(args: &TcArgs) -> u8 {
    match try_run(args) {
        Ok(()) => EXIT_GOOD,
        Err(error) => {
            eprintln!("wan-sim tc: {error}");
            match error {
                Failure::File(_) | Failure::Tc(_) | Failure::Site { .. } => EXIT_USAGE,
                Failure::Unavailable(_) => EXIT_UNAVAILABLE,
                Failure::Verify(_)
                | Failure::NotApplied(_)
                | Failure::Command { .. }
                | Failure::Left { .. } => EXIT_FAILED,
            }
        }
    }
}

fn try_run(args: &TcArgs) -> Result<(), Failure> {
    let topology = Topology::load(&args.file)?;
    let mut hosts = render(&topology, args.device.as_deref())?;
    if let Some(site) = &args.site {
        let known: Vec<_> = hosts.iter().map(|host| host.site.clone()).collect();
        hosts.retain(|host| host.site == *site);
        if hosts.is_empty() {
            return Err(Failure::Site { site: site.clone(), known: known.join(", ") });
        }
    }
    for host in &hosts {
        if args.apply {
            probe()?;
            apply(host)?;
        } else if args.remove {
            remove(host).map_err(or_unavailable)?;
        } else if args.verify {
            let verified = verify(host, &shown(host)?, &link(host)?);
            verified.map_err(|error| or_unavailable(error.into()))?;
            say!("{}: {} shapes as the file says", host.site, host.device);
        } else {
            print(host);
        }
    }
    Ok(())
}

fn print(host: &HostCommands) {
    say!("# On {}:", host.site);
    host.apply.iter().for_each(|command| say!("{command}"));
    say!("# To undo it:");
    host.remove.iter().for_each(|command| say!("#   {command}"));
}

/// All of the commands or none: where one fails, the device is as it was.
fn apply(host: &HostCommands) -> Result<(), Failure> {
    let before = segments(&link(host)?);
    for (done, command) in host.apply.iter().enumerate() {
        let Err(failed) = execute(command) else { continue };
        // The first makes the root that all others hang below.
        return Err(match if done == 0 { Ok(()) } else { undo(host, before) } {
            Ok(()) => failed,
            Err(undoing) => Failure::Left { failed: Box::new(failed), undoing: Box::new(undoing) },
        });
    }
    Ok(())
}

/// Takes the root away with all that hangs below it, and lets TCP make buffers of so many
/// segments.
fn undo(host: &HostCommands, segments: Option<u32>) -> Result<(), Failure> {
    let whole = set_segments(&host.device, segments.unwrap_or(SEGMENTS_MOST));
    execute(&host.remove[0]).and(execute(&whole)).map(drop)
}

fn link(host: &HostCommands) -> Result<String, Failure> {
    execute(&format!("ip -d link show dev {}", host.device))
}

fn shown(host: &HostCommands) -> Result<String, Failure> {
    execute(&format!("tc qdisc show dev {}", host.device))
}

/// Only what was applied: whatever else shapes the device stays.
fn remove(host: &HostCommands) -> Result<(), Failure> {
    if !applied(&shown(host)?) {
        return Err(Failure::NotApplied(host.device.clone()));
    }
    undo(host, most_segments(&link(host)?))
}

/// Why the kernel has nothing of ours: it may be that it cannot.
fn or_unavailable(error: Failure) -> Failure {
    match error {
        Failure::NotApplied(_) | Failure::Verify(VerifyError::Missing { .. }) => {
            probe().err().unwrap_or(error)
        }
        error => error,
    }
}

/// Tries netem in a namespace that nobody uses, before anything is changed.
fn probe() -> Result<(), Failure> {
    let name = format!("wansim-probe-{}", std::process::id());
    let unavailable = |error: Failure| Failure::Unavailable(error.to_string());
    execute(&format!("ip netns add {name}")).map_err(unavailable)?;
    let netem = format!("ip netns exec {name} tc qdisc add dev lo root netem delay 1ms");
    let probed = execute(&netem).map_err(unavailable);
    let removed = execute(&format!("ip netns del {name}")).map_err(unavailable);
    probed.and(removed).map(drop)
}

/// Runs a command line of words without quotes; returns what it printed.
fn execute(command: &str) -> Result<String, Failure> {
    let failed = |said: String| Failure::Command { command: command.to_owned(), said };
    let mut words = command.split(' ');
    let program = words.next().unwrap_or_default();
    let output: io::Result<Output> = Command::new(program).args(words).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        return Err(failed(said));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
