//! `wan-sim lab up`.

use super::args::UpArgs;
use super::lab_failure::LabFailure;
use super::lab_home::LabHome;
use crate::cli::exit_codes::{EXIT_FAILED, EXIT_GOOD, EXIT_INTERRUPTED};
use crate::cli::interrupt::watch_interrupts;
use crate::cli::json::{JSON_VERSION, counters_json, fidelity_json};
use crate::cli::output::print_wan_sim_output;
use crate::cli::progress_line::{self, LinkProgress, ProgressLine};
use crate::lab::{LinkStatus, RunningLab, remove_orphan_namespaces};
use crate::recording::Recorder;
use crate::topology::Topology;
use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Starts `wan-sim lab up` again in the background, and waits until the lab is up. Returns the exit
/// code.
pub(super) fn bring_lab_up_in_background(args: &UpArgs) -> Result<u8, LabFailure> {
    Topology::load(&args.file)?;
    let home = LabHome::of_lab_file(&args.file)?;
    let lock = home.try_lock()?.ok_or(LabFailure::Up)?;
    let starting = home.create_startup_output()?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .arg("--foreground")
        .stdin(lock.duplicate()?)
        .stdout(Stdio::piped())
        .stderr(starting.file.try_clone()?)
        .process_group(0)
        .spawn()?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    if line.starts_with("ready") {
        starting.keep_as_report()?;
        return Ok(print_wan_sim_output(&line, EXIT_GOOD));
    }
    let code = child.wait()?.code().and_then(|code| u8::try_from(code).ok());
    stdio::print_stderr_message(starting.into_error_text());
    home.remove_folder();
    Ok(code.unwrap_or(EXIT_FAILED))
}

/// Runs a lab in the foreground until interrupted. Returns the exit code.
pub(super) fn bring_lab_up_in_foreground(args: &UpArgs) -> Result<u8, LabFailure> {
    let topology = Topology::load(&args.file)?;
    let home = LabHome::of_lab_file(&args.file)?;
    let lock = home.try_lock()?.ok_or(LabFailure::Up)?;
    lock.become_stdin()?;
    // Before anything is made, so that an early signal removes it again.
    let interrupted = watch_interrupts()?;
    let recorder = match &args.record {
        None => None,
        Some(path) => {
            let file = File::create(path)
                .map_err(|source| LabFailure::Record { path: path.clone(), source })?;
            Some(Recorder::new(Box::new(BufWriter::new(file))))
        }
    };
    for name in remove_orphan_namespaces(home.namespace_prefix())? {
        stdio::print_stderr_message(format_args!(
            "wan-sim lab: removed {name}, which was left behind"
        ));
    }
    let lab = RunningLab::start(&topology, home.namespace_prefix(), recorder)?;
    let first = lab.status();
    home.write_status(&lab_up_status_json(&lab, &first))?;
    stdio::write_stdout_report(&format!("ready: {}", topology.sites.join(", ")))
        .map_err(io::Error::from)?;
    let code = keep_lab_up(&lab, &home, &interrupted, first)?;
    let last = lab_up_status_json(&lab, &lab.status());
    // The process that started this lab reads the report from its standard error.
    stdio::print_stderr_message(lab.fidelity());
    stdio::flush_stderr();
    if lock.inherited {
        home.write_status(&last)?;
    }
    lab.stop()?;
    if !lock.inherited {
        home.remove_folder();
    }
    // The lab is gone by now, whether the report can be written or not.
    Ok(if args.json { print_wan_sim_output(&last, code) } else { code })
}

/// Writes the status file and shows progress, once a second, until the lab is interrupted or fails.
/// Returns the exit code.
fn keep_lab_up(
    lab: &RunningLab,
    home: &LabHome,
    interrupted: &UnixStream,
    first: Vec<LinkStatus>,
) -> io::Result<u8> {
    let mut progress =
        ProgressLine::is_wanted().then(|| ProgressLine::starting_at(lab_up_links_progress(first)));
    let mut is_status_written = true;
    let every = Timespec { tv_sec: progress_line::PROGRESS_INTERVAL_S, tv_nsec: 0 };
    let code = loop {
        let mut fds = vec![PollFd::new(interrupted, PollFlags::IN)];
        let ends: Vec<_> = lab.thread_ends().collect();
        fds.extend(ends.iter().map(|end| PollFd::new(end, PollFlags::IN)));
        match rustix::event::poll(&mut fds, Some(&every)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            break EXIT_INTERRUPTED;
        }
        if ready[1..].contains(&true) {
            break EXIT_FAILED;
        }
        let now = lab.status();
        // A full disk must not end the lab. The first of several failures in a row is told.
        let written = home.write_status(&lab_up_status_json(lab, &now));
        if let (Err(error), true) = (&written, is_status_written) {
            stdio::print_stderr_message(format_args!(
                "wan-sim lab: the status file cannot be written, so `lab status` shows an old \
                 state: {error}"
            ));
        }
        is_status_written = written.is_ok();
        if let Some(progress) = &mut progress {
            progress.update(lab_up_links_progress(now));
        }
    };
    if let Some(progress) = progress {
        progress.finish();
    }
    Ok(code)
}

/// Returns the status of the lab as one line of JSON: counters of `links`, and fidelity.
fn lab_up_status_json(lab: &RunningLab, links: &[LinkStatus]) -> String {
    let links: Vec<Value> = links
        .iter()
        .map(|link| {
            let mut value = counters_json(&link.counters);
            value["from"] = json!(link.from);
            value["to"] = json!(link.to);
            value["queue_bytes"] = json!(link.queue.get());
            value["queue_bytes_peak"] = json!(link.queue_peak.get());
            value
        })
        .collect();
    let fidelity = fidelity_json(&lab.fidelity());
    let status = json!({
        "version": JSON_VERSION, "pid": std::process::id(), "links": links,
        "unreachable": lab.unreachable_packets(), "fidelity": fidelity,
    });
    format!("{status}\n")
}

/// Returns the state of each link for the progress line, named `FROM>TO`.
fn lab_up_links_progress(links: Vec<LinkStatus>) -> Vec<LinkProgress> {
    let named = |LinkStatus { from, to, counters, queue, .. }| {
        let name = format!("{}>{}", from.unwrap_or_default(), to.unwrap_or_default());
        LinkProgress { name, counters, queue }
    };
    links.into_iter().map(named).collect()
}
