//! The run of a relay: from its start to an interrupt, a command's end, or a failure.

use super::relay_args::{RelayArgs, RelaySideArgs};
use super::relay_control::RelayControl;
use super::relay_report::{print_relay_report, report_relay_listening};
use super::relay_settings::{RelaySettings, relay_settings_conditions};
use crate::cli::exit_codes::{EXIT_FAILED, EXIT_GOOD, EXIT_INTERRUPTED, EXIT_USAGE};
use crate::cli::interrupt::watch_interrupts;
use crate::cli::progress_line::{self, LinkProgress, ProgressLine};
use crate::recording::Recorder;
use crate::relay::{RelayCounters, RelayError, RelaySpec, RunningRelay};
use crate::{CapacitySourceError, ConditionsError, SpecError};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io::{self, BufWriter};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Relays packets until a signal or the end of standard input. Returns the exit code.
pub(in crate::cli) fn run_relay(args: &RelayArgs) -> u8 {
    match try_run_relay(args) {
        Ok(code) => code,
        Err(error) => {
            stdio::print_stderr_message(format_args!(
                "wan-sim relay: {error}{}",
                error.limit_text()
            ));
            match error {
                // With a higher limit the same command line works.
                error if !error.limit_text().is_empty() => EXIT_FAILED,
                // A full disk may have room again.
                RelayRunFailure::Record { source, .. }
                    if source.kind() == io::ErrorKind::StorageFull =>
                {
                    EXIT_FAILED
                }
                // Another program has the address, and may free it.
                RelayRunFailure::Relay(RelayError::Listen { source, .. })
                    if source.kind() == io::ErrorKind::AddrInUse =>
                {
                    EXIT_FAILED
                }
                RelayRunFailure::Spec(_)
                | RelayRunFailure::Capacity(_)
                | RelayRunFailure::Conditions(_)
                | RelayRunFailure::Seeds
                | RelayRunFailure::Record { .. }
                | RelayRunFailure::Relay(
                    RelayError::Listen { .. }
                    | RelayError::ListenTwice(_)
                    | RelayError::Target { .. }
                    | RelayError::Loop(_),
                ) => EXIT_USAGE,
                RelayRunFailure::Relay(RelayError::Unreachable { .. }) => EXIT_FAILED,
                RelayRunFailure::Relay(RelayError::System(_)) | RelayRunFailure::Io(_) => {
                    EXIT_FAILED
                }
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum RelayRunFailure {
    #[error("{0}")]
    Spec(#[from] SpecError),
    #[error("{0}")]
    Capacity(#[from] CapacitySourceError),
    #[error("{0}")]
    Conditions(#[from] ConditionsError),
    #[error("give one seed: by --seed, or in --netem")]
    Seeds,
    #[error("{0}")]
    Relay(#[from] RelayError),
    #[error("cannot record into {path}: {source}", path = .path.display())]
    Record { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl RelayRunFailure {
    /// Returns the limit on descriptors, with its value, where the failure is that it is met; else
    /// an empty text.
    fn limit_text(&self) -> String {
        let source = match self {
            Self::Io(source) | Self::Record { source, .. } => source,
            Self::Relay(
                RelayError::System(source)
                | RelayError::Listen { source, .. }
                | RelayError::Target { source, .. }
                | RelayError::Unreachable { source, .. },
            ) => source,
            _ => return String::new(),
        };
        let met = source.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error());
        match getrlimit(Resource::Nofile).current.filter(|_| met) {
            Some(limit) => format!(": the limit is {limit} descriptors (ulimit -n); raise it"),
            None => String::new(),
        }
    }
}

/// Relays packets until a signal or the end of standard input. Returns the exit code of a relay
/// that started.
fn try_run_relay(args: &RelayArgs) -> Result<u8, RelayRunFailure> {
    // Each flow has a socket. As many as may be; the relay counts what it then cannot serve.
    let files = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
    let seed = relay_run_seed(args)?;
    let conditions = relay_settings_conditions(args, seed)?;
    let settings = RelaySettings::new(args, &conditions);
    let (forward, backward) = settings.link_specs()?;
    if args.queue.is_some() && !forward.has_room_for_a_packet() {
        let queue = forward.queue();
        stdio::print_stderr_message(format_args!(
            "wan-sim relay: a queue of {queue} holds no full packet: packets that meet another one \
             are dropped"
        ));
    }
    conditions.check(&forward)?;
    conditions.check(&backward)?;
    // Before the relay runs, so that an early signal ends it cleanly.
    let interrupted = watch_interrupts()?;
    let spec = RelaySpec { forwards: args.forwards.clone(), forward, backward, conditions, seed };
    let relay = match &args.record {
        None => RunningRelay::start(&spec)?,
        Some(path) => {
            let file = File::create(path)
                .map_err(|source| RelayRunFailure::Record { path: path.clone(), source })?;
            RunningRelay::start_recording(&spec, Recorder::new(Box::new(BufWriter::new(file))))?
        }
    };
    report_relay_listening(args, &relay)?;
    let code = run_relay_until_end(args, &relay, settings, &interrupted)?;
    let fidelity = relay.fidelity();
    let counters = relay.stop().map_err(|source| match &args.record {
        Some(path) => RelayRunFailure::Record { path: path.clone(), source },
        None => RelayRunFailure::Io(source),
    })?;
    if !args.control {
        print_relay_report(args, &counters, &fidelity)?;
    }
    Ok(code)
}

/// Returns the one seed of the flags: of `--seed` or of the netem words; 1 where none is given.
/// More than one, or a seed in a parallel path's words, is an error.
fn relay_run_seed(args: &RelayArgs) -> Result<u64, RelayRunFailure> {
    let there = args.netem.and_then(|words| words.seed);
    let back = args.netem_back.and_then(|words| words.seed);
    if args.parallel.iter().any(|words| words.seed.is_some()) {
        return Err(RelayRunFailure::Seeds);
    }
    match (args.seed, there, back) {
        (None, None, None) => Ok(SEED_DEFAULT),
        (Some(seed), None, None) | (None, Some(seed), None) => Ok(seed),
        _ => Err(RelayRunFailure::Seeds),
    }
}

/// Answers commands and shows progress until the relay ends. Returns the exit code.
fn run_relay_until_end(
    args: &RelayArgs,
    relay: &RunningRelay,
    settings: RelaySettings,
    interrupted: &UnixStream,
) -> io::Result<u8> {
    let mut control = RelayControl::new(settings);
    let mut progress = ProgressLine::is_wanted()
        .then(|| ProgressLine::starting_at(relay_run_progress(args, relay)));
    let every = Timespec { tv_sec: progress_line::PROGRESS_INTERVAL_S, tv_nsec: 0 };
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
            [_, _, true] if !control.read_commands(stdin, args, relay)? => Some(EXIT_GOOD),
            _ => None,
        };
        if let Some(progress) = &mut progress {
            progress.update(relay_run_progress(args, relay));
            code.inspect(|_| progress.finish());
        }
        if let Some(code) = code {
            return Ok(code);
        }
    }
}

/// Returns the state of both directions for the progress line.
fn relay_run_progress(args: &RelayArgs, relay: &RunningRelay) -> Vec<LinkProgress> {
    let RelaySideArgs { client, target } = &args.names;
    let RelayCounters { forward, backward, .. } = relay.counters();
    let [there, back] = relay.queue_bytes();
    vec![
        LinkProgress { name: format!("{client}>{target}"), counters: forward, queue: there },
        LinkProgress { name: format!("{target}>{client}"), counters: backward, queue: back },
    ]
}

/// 1: the seed of the relay's random draws where neither `--seed` nor netem's words give one. Every
/// run then draws the same.
const SEED_DEFAULT: u64 = 1;
