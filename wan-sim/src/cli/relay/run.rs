//! The run of a relay: from its start to an interrupt, a command's end, or a failure.

use super::args::{Names, RelayArgs};
use super::control::Control;
use super::report::{announce, report};
use super::settings::Settings;
use crate::SpecError;
use crate::cli::exit::{EXIT_FAILED, EXIT_GOOD, EXIT_INTERRUPTED, EXIT_USAGE};
use crate::cli::progress::{self, Progress, Seen};
use crate::recording::Recorder;
use crate::relay::{Relay, RelayCounters, RelayError, RelaySpec};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io::{self, BufWriter};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Relays until interrupted or told to end. Returns the exit code.
pub(in crate::cli) fn run(args: &RelayArgs) -> u8 {
    match try_run(args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("wan-sim relay: {error}");
            match error {
                RelayFailure::Spec(_)
                | RelayFailure::Seeds
                | RelayFailure::Record { .. }
                | RelayFailure::Relay(RelayError::Listen { .. }) => EXIT_USAGE,
                RelayFailure::Relay(RelayError::System(_)) | RelayFailure::Io(_) => EXIT_FAILED,
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum RelayFailure {
    #[error("{0}")]
    Spec(#[from] SpecError),
    #[error("give one seed: by --seed, or in --netem")]
    Seeds,
    #[error("{0}")]
    Relay(#[from] RelayError),
    #[error("cannot record into {path}: {source}", path = .path.display())]
    Record { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Io(#[from] io::Error),
}

fn try_run(args: &RelayArgs) -> Result<u8, RelayFailure> {
    // Each flow has a socket. As many as may be; the relay counts what it then cannot serve.
    let files = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
    let settings = Settings::new(args);
    let (forward, backward) = settings.links()?;
    let seed = seed(args)?;
    // Before the relay runs, so that an early signal ends it cleanly.
    let (interrupted, signal) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGINT, signal.try_clone()?)?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGTERM, signal)?;
    let spec = RelaySpec { forwards: args.forwards.clone(), forward, backward, seed };
    let relay = match &args.record {
        None => Relay::start(&spec)?,
        Some(path) => {
            let file = File::create(path)
                .map_err(|source| RelayFailure::Record { path: path.clone(), source })?;
            Relay::start_recording(&spec, Recorder::new(Box::new(BufWriter::new(file))))?
        }
    };
    announce(args, &relay)?;
    let code = serve(args, &relay, settings, &interrupted)?;
    let fidelity = relay.fidelity();
    let counters = relay.stop()?;
    if !args.control {
        report(args, &counters, &fidelity)?;
    }
    Ok(code)
}

/// The one seed, wherever it stands.
fn seed(args: &RelayArgs) -> Result<u64, RelayFailure> {
    let there = args.netem.and_then(|words| words.seed);
    let back = args.netem_back.and_then(|words| words.seed);
    match (args.seed, there, back) {
        (None, None, None) => Ok(SEED_DEFAULT),
        (Some(seed), None, None) | (None, Some(seed), None) => Ok(seed),
        _ => Err(RelayFailure::Seeds),
    }
}

/// Waits for the end, answering commands meanwhile.
fn serve(
    args: &RelayArgs,
    relay: &Relay,
    settings: Settings,
    interrupted: &UnixStream,
) -> io::Result<u8> {
    let mut control = Control::new(settings);
    let mut progress = Progress::wanted().then(|| Progress::from(seen(args, relay)));
    let every = Timespec { tv_sec: progress::EVERY_S, tv_nsec: 0 };
    let wait = progress.as_ref().map(|_| &every);
    let stdin = rustix::stdio::stdin();
    loop {
        let mut fds =
            vec![PollFd::new(interrupted, PollFlags::IN), PollFd::new(relay, PollFlags::IN)];
        if args.control {
            fds.push(PollFd::new(&stdin, PollFlags::IN));
        }
        match rustix::event::poll(&mut fds, wait) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let code = match ready[..] {
            [true, ..] => Some(EXIT_INTERRUPTED),
            [_, true, ..] => Some(EXIT_FAILED),
            [_, _, true] if !control.read(stdin, args, relay)? => Some(EXIT_GOOD),
            _ => None,
        };
        if let Some(progress) = &mut progress {
            progress.show(seen(args, relay));
            code.inspect(|_| progress.end());
        }
        if let Some(code) = code {
            return Ok(code);
        }
    }
}

/// Both directions, as they are now.
fn seen(args: &RelayArgs, relay: &Relay) -> Vec<Seen> {
    let Names { client, target } = &args.names;
    let RelayCounters { forward, backward, .. } = relay.counters();
    let [there, back] = relay.queues();
    vec![
        Seen { name: format!("{client}>{target}"), counters: forward, queue: there },
        Seen { name: format!("{target}>{client}"), counters: backward, queue: back },
    ]
}

/// The seed where none is given.
const SEED_DEFAULT: u64 = 1;
