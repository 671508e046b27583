//! `wan-sim tc`.

use super::exit_codes::{EXIT_FAILED, EXIT_GOOD, EXIT_UNAVAILABLE, EXIT_USAGE};
use super::output::print_wan_sim_output;
use crate::tc::{
    GSO_SEGMENTS_DEFAULT, HostCommands, TcError, ToolOutput, VerifyError, render_shaping_commands,
    shaping_removal_commands, verified_driver_segments_max, verified_gso_segments,
    verify_queues_are_ours, verify_shaping,
};
use crate::topology::{FileError, Topology, topology_file_device};
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

/// Prints the `tc` commands of a file, or applies, checks or undoes them here. Returns the exit
/// code.
pub(super) fn run_tc(args: &TcArgs) -> u8 {
    match try_run_tc(args) {
        Ok(None) => EXIT_GOOD,
        Ok(Some(report)) => print_wan_sim_output(&report, EXIT_GOOD),
        Err(error) => {
            stdio::print_stderr_message(format_args!("wan-sim tc: {error}"));
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

/// Returns the `tc` commands of a file, or applies, checks or undoes them on this host. Returns the
/// report; `None` after an action that reports nothing.
fn try_run_tc(args: &TcArgs) -> Result<Option<String>, TcFailure> {
    if let (true, Some(site)) = (args.remove, &args.site) {
        return remove_tc(args, site).map(|()| None).map_err(tc_error_or_netem_unavailable);
    }
    let topology = Topology::load(&args.file)?;
    let mut hosts = render_shaping_commands(&topology, args.device.as_deref())?;
    if let Some(site) = &args.site {
        let known: Vec<_> = hosts.iter().map(|host| host.site.clone()).collect();
        hosts.retain(|host| host.site == *site);
        if hosts.is_empty() {
            return Err(TcFailure::Site { site: site.clone(), known: known.join(", ") });
        }
    }
    let mut report = None;
    for host in &hosts {
        if args.apply {
            probe_tc_netem()?;
            apply_tc(host)?;
        } else if args.verify {
            check_tc_here(host).map_err(tc_error_or_netem_unavailable)?;
            report = Some(format!("{}: {} shapes as the file says\n", host.site, host.device));
        } else {
            report.get_or_insert_default().push_str(&describe_tc_output(host));
        }
    }
    Ok(report)
}

/// Returns the commands of a host as text, and as comments the commands that undo them.
fn describe_tc_output(host: &HostCommands) -> String {
    let apply: String = host.apply.iter().map(|command| format!("{command}\n")).collect();
    let remove: String = host.remove.iter().map(|command| format!("#   {command}\n")).collect();
    format!("# On {}:\n{apply}# To undo it:\n{remove}", host.site)
}

/// Compares the shaping of this host with the commands of the file.
fn check_tc_here(host: &HostCommands) -> Result<(), TcFailure> {
    let device = &host.device;
    let shown = ToolOutput {
        qdiscs: &read_tc_qdiscs(device)?,
        classes: &run_tc_command(&format!("tc class show dev {device}"))?,
        filters: &run_tc_command(&format!("tc filter show dev {device}"))?,
        link: &read_tc_ip_link(device)?,
    };
    Ok(verify_shaping(host, &shown)?)
}

/// Runs all commands of a host, or none: a failure restores the device.
fn apply_tc(host: &HostCommands) -> Result<(), TcFailure> {
    let before = verified_gso_segments(&read_tc_ip_link(&host.device)?);
    for (done, command) in host.apply.iter().enumerate() {
        let Err(failed) = run_tc_command(command) else { continue };
        // The first makes the root that all others hang below.
        return Err(match if done == 0 { Ok(()) } else { undo_tc(&host.device, before) } {
            Ok(()) => failed,
            Err(undoing) => {
                TcFailure::Left { failed: Box::new(failed), undoing: Box::new(undoing) }
            }
        });
    }
    Ok(())
}

/// Removes the root queue of `device`, and lets TCP make buffers of `segments` segments, by default
/// [`GSO_SEGMENTS_DEFAULT`].
fn undo_tc(device: &str, segments: Option<u32>) -> Result<(), TcFailure> {
    let [root, whole] = shaping_removal_commands(device, segments.unwrap_or(GSO_SEGMENTS_DEFAULT));
    run_tc_command(&root).and(run_tc_command(&whole)).map(drop)
}

/// Returns what `ip` prints about `device`.
fn read_tc_ip_link(device: &str) -> Result<String, TcFailure> {
    run_tc_command(&format!("ip -d link show dev {device}"))
}

/// Returns what `tc` prints about the queues of `device`.
fn read_tc_qdiscs(device: &str) -> Result<String, TcFailure> {
    run_tc_command(&format!("tc qdisc show dev {device}"))
}

/// Removes the shaping that this command applied on the device of `site`; other shaping stays.
///
/// The links of the file may have changed since, or be invalid by now. Only the device counts: the
/// file's, or else `--device`.
fn remove_tc(args: &TcArgs, site: &str) -> Result<(), TcFailure> {
    let named = topology_file_device(&args.file, site);
    let mut devices: Vec<_> = named.into_iter().chain(args.device.clone()).collect();
    devices.dedup();
    let mut failed = TcFailure::NoDevice(site.to_owned());
    for device in devices {
        match read_tc_qdiscs(&device) {
            Ok(qdiscs) if verify_queues_are_ours(&qdiscs) => {
                return undo_tc(&device, verified_driver_segments_max(&read_tc_ip_link(&device)?));
            }
            Ok(_) => failed = TcFailure::NotApplied(device),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Replaces the error that nothing was applied by the reason why netem is unavailable, if it is.
fn tc_error_or_netem_unavailable(error: TcFailure) -> TcFailure {
    match error {
        TcFailure::NotApplied(_) | TcFailure::Verify(VerifyError::NotApplied { .. }) => {
            probe_tc_netem().err().unwrap_or(error)
        }
        error => error,
    }
}

/// Checks in a temporary namespace that netem is available, before anything is changed.
fn probe_tc_netem() -> Result<(), TcFailure> {
    let name = format!("wansim-probe-{}", std::process::id());
    let unavailable = |error: TcFailure| TcFailure::Unavailable(error.to_string());
    run_tc_command(&format!("ip netns add {name}")).map_err(unavailable)?;
    let netem = format!("ip netns exec {name} tc qdisc add dev lo root netem delay 1ms");
    let probed = run_tc_command(&netem).map_err(unavailable);
    let removed = run_tc_command(&format!("ip netns del {name}")).map_err(unavailable);
    probed.and(removed).map(drop)
}

/// Runs a command line, split at spaces; returns its standard output.
fn run_tc_command(command: &str) -> Result<String, TcFailure> {
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
