//! `wan-sim lab up`.

use super::args::UpArgs;
use super::failure::LabFailure;
use super::home::Home;
use crate::cli::exit::{EXIT_FAILED, EXIT_GOOD, EXIT_INTERRUPTED};
use crate::cli::progress::{self, Progress, Seen};
use crate::cli::show::{counters_json, fidelity_json};
use crate::lab::{Lab, LinkStatus, remove_orphans};
use crate::recording::Recorder;
use crate::topology::Topology;
use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Starts this command again in the background, and waits until the lab is up.
pub(super) fn background(args: &UpArgs) -> Result<u8, LabFailure> {
    Topology::load(&args.file)?;
    let home = Home::of(&args.file)?;
    let lock = home.lock()?.ok_or(LabFailure::Up)?;
    let starting = home.starting()?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .arg("--foreground")
        .stdin(lock.share()?)
        .stdout(Stdio::piped())
        .stderr(starting.file.try_clone()?)
        .process_group(0)
        .spawn()?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    if line.starts_with("ready") {
        starting.succeeded()?;
        print_line!("{}", line.trim_end());
        return Ok(EXIT_GOOD);
    }
    let code = child.wait()?.code().and_then(|code| u8::try_from(code).ok());
    eprint!("{}", starting.failed());
    home.remove();
    Ok(code.unwrap_or(EXIT_FAILED))
}

/// Runs the lab until interrupted.
pub(super) fn foreground(args: &UpArgs) -> Result<u8, LabFailure> {
    let topology = Topology::load(&args.file)?;
    let home = Home::of(&args.file)?;
    let lock = home.lock()?.ok_or(LabFailure::Up)?;
    lock.become_stdin()?;
    // Before anything is made, so that an early signal removes it again.
    let (interrupted, signal) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGINT, signal.try_clone()?)?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGTERM, signal)?;
    let recorder = match &args.record {
        None => None,
        Some(path) => {
            let file = File::create(path)
                .map_err(|source| LabFailure::Record { path: path.clone(), source })?;
            Some(Recorder::new(Box::new(BufWriter::new(file))))
        }
    };
    for name in remove_orphans(home.prefix())? {
        eprintln!("wan-sim lab: removed {name}, which was left behind");
    }
    let lab = Lab::start(&topology, home.prefix(), recorder)?;
    let first = lab.status();
    home.write_status(&status(&lab, &first))?;
    let mut progress = Progress::wanted().then(|| Progress::from(seen(first)));
    let mut out = io::stdout().lock();
    writeln!(out, "ready: {}", topology.sites.join(", "))?;
    out.flush()?;
    let every = Timespec { tv_sec: progress::EVERY_S, tv_nsec: 0 };
    let code = loop {
        let mut fds = vec![PollFd::new(&interrupted, PollFlags::IN)];
        let ends: Vec<_> = lab.ends().collect();
        fds.extend(ends.iter().map(|end| PollFd::new(end, PollFlags::IN)));
        match rustix::event::poll(&mut fds, Some(&every)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            break EXIT_INTERRUPTED;
        }
        if ready[1..].contains(&true) {
            break EXIT_FAILED;
        }
        let now = lab.status();
        home.write_status(&status(&lab, &now))?;
        if let Some(progress) = &mut progress {
            progress.show(seen(now));
        }
    };
    if let Some(progress) = progress {
        progress.end();
    }
    let last = status(&lab, &lab.status());
    // Whoever waits for the report reads it from standard error.
    eprintln!("{}", lab.fidelity());
    if args.json {
        writeln!(out, "{}", last.trim_end())?;
    }
    if lock.inherited {
        home.write_status(&last)?;
    }
    lab.stop()?;
    if !lock.inherited {
        home.remove();
    }
    Ok(code)
}

fn status(lab: &Lab, links: &[LinkStatus]) -> String {
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
        "links": links, "unreachable": lab.unreachable(), "fidelity": fidelity,
    });
    format!("{status}\n")
}

fn seen(links: Vec<LinkStatus>) -> Vec<Seen> {
    let named = |LinkStatus { from, to, counters, queue, .. }| {
        let name = format!("{}>{}", from.unwrap_or_default(), to.unwrap_or_default());
        Seen { name, counters, queue }
    };
    links.into_iter().map(named).collect()
}
