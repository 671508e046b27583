//! `wan-sim relay`.

mod control;

use super::progress::{self, Progress, Seen};
use super::show::{counters_json, fidelity_json};
use super::{EXIT_FAILED, EXIT_GOOD, EXIT_INTERRUPTED, EXIT_USAGE};
use crate::netem::Netem;
use crate::recording::Recorder;
use crate::relay::{Forward, Relay, RelayCounters, RelayError, RelaySpec};
use crate::{FidelityReport, Jitter, LinkSpec, QueueSize, SpecError};
use control::Control;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use units::{BitRate, ByteCount, Fraction, Span};

/// Flags of `wan-sim relay`.
#[derive(Debug, Clone, clap::Args)]
pub struct RelayArgs {
    /// Listen on one address and pass on to another: 127.0.0.1:7001=127.0.0.1:7002.
    /// May be given more than once; all share the link.
    #[arg(long = "forward", value_name = "LISTEN=TARGET", required = true)]
    pub forwards: Vec<Forward>,
    /// Round-trip time without queueing, half of it each way.
    #[arg(long, allow_hyphen_values = true, required_unless_present = "netem")]
    pub rtt: Option<Span>,
    /// Rate in IP bytes, each way.
    #[arg(long, allow_hyphen_values = true, required_unless_present = "netem")]
    pub rate: Option<BitRate>,
    /// Probability of losing a packet, each way.
    #[arg(long, default_value = "0 %", allow_hyphen_values = true)]
    pub loss: Fraction,
    /// Spread of the one-way delay, either side; packets keep their order.
    #[arg(long, default_value = "0 ms", allow_hyphen_values = true)]
    pub jitter: Span,
    /// Room for packets that wait for the rate, such as 5 MB, 20 ms or 1 BDP; default: 1 BDP,
    /// which is rate times round-trip time and must hold a packet.
    #[arg(long, allow_hyphen_values = true)]
    pub queue: Option<QueueSize>,
    /// The link in netem's words instead, from the clients to the targets, such as
    /// 'delay 40ms 2ms loss 1% rate 1gbit queue 1bdp'.
    #[arg(long, value_name = "WORDS", conflicts_with_all = ["rtt", "rate", "loss", "jitter", "queue"])]
    pub netem: Option<Netem>,
    /// The way back in netem's words; default: as the way there.
    #[arg(long, value_name = "WORDS", requires = "netem")]
    pub netem_back: Option<Netem>,
    /// Decides every random draw; default 1, or what the netem words say.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Record what both links are offered and its fate, for `wan-sim replay`.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Names of the clients' side and the targets' side.
    #[arg(long, default_value = "client,target")]
    pub names: Names,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Take commands from standard input, one a line: `counters`, `set loss 1%` (or rate,
    /// rtt, jitter, queue), `cut`, `join`. Each is answered with one line of JSON. Ends with
    /// the input.
    #[arg(long)]
    pub control: bool,
}

/// Names of the two sides, spelled `east,west`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    client: String,
    target: String,
}

impl FromStr for Names {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split(',').map(str::trim).collect::<Vec<_>>()[..] {
            [client, target] if client != target && !client.is_empty() && !target.is_empty() => {
                Ok(Self { client: client.to_owned(), target: target.to_owned() })
            }
            _ => Err("two different names, such as east,west"),
        }
    }
}

/// Relays until interrupted or told to end. Returns the exit code.
pub(super) fn run(args: &RelayArgs) -> u8 {
    match try_run(args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("wan-sim relay: {error}");
            match error {
                Failure::Spec(_)
                | Failure::Seeds
                | Failure::Record { .. }
                | Failure::Relay(RelayError::Listen { .. }) => EXIT_USAGE,
                Failure::Relay(RelayError::System(_)) | Failure::Io(_) => EXIT_FAILED,
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Failure {
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

fn try_run(args: &RelayArgs) -> Result<u8, Failure> {
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
                .map_err(|source| Failure::Record { path: path.clone(), source })?;
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
fn seed(args: &RelayArgs) -> Result<u64, Failure> {
    let there = args.netem.and_then(|words| words.seed);
    let back = args.netem_back.and_then(|words| words.seed);
    match (args.seed, there, back) {
        (None, None, None) => Ok(SEED_DEFAULT),
        (Some(seed), None, None) | (None, Some(seed), None) => Ok(seed),
        _ => Err(Failure::Seeds),
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

/// The links as they are now.
#[derive(Debug, Clone, Copy)]
enum Settings {
    /// By flags, both ways alike.
    Flags { rtt: Span, rate: BitRate, loss: Fraction, jitter: Span, queue: Option<QueueSize> },
    /// In netem's words: there and back.
    Netem(LinkSpec, LinkSpec),
}

impl Settings {
    fn new(args: &RelayArgs) -> Self {
        if let Some(there) = args.netem {
            return Self::Netem(there.link, args.netem_back.unwrap_or(there).link);
        }
        let RelayArgs { rtt, rate, loss, jitter, queue, .. } = *args;
        // Clap requires both where there are no words.
        let (rtt, rate) = (rtt.unwrap_or_default(), rate.unwrap_or(NO_RATE));
        Self::Flags { rtt, rate, loss, jitter, queue }
    }

    fn links(&self) -> Result<(LinkSpec, LinkSpec), SpecError> {
        match *self {
            Self::Netem(there, back) => Ok((there, back)),
            Self::Flags { rtt, rate, loss, jitter, queue } => {
                let spec = LinkSpec::new(rate, Span::from_ns(rtt.ns() / 2))?
                    .with_loss(loss)
                    .with_jitter(Jitter { spread: jitter, ..Jitter::NONE })?;
                let spec = queue.map_or(spec, |queue| spec.with_queue(queue));
                spec.check_queue(queue)?;
                Ok((spec, spec))
            }
        }
    }
}

/// Says that the sockets are bound, and where.
fn announce(args: &RelayArgs, relay: &Relay) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let listening = relay.listening();
    if args.json || args.control {
        let addresses: Vec<_> = listening.iter().map(|l| l.address.to_string()).collect();
        let buffer = listening.iter().map(|l| l.receive_buffer_bytes).min();
        let ready = json!({ "ready": true, "listen": addresses, "receive_buffer_bytes": buffer });
        writeln!(out, "{ready}")?;
    } else {
        for (listening, forward) in listening.iter().zip(&args.forwards) {
            writeln!(out, "ready: {} to {}", listening.address, forward.target)?;
        }
    }
    for listening in listening.iter().filter(|l| l.receive_buffer_bytes < BUFFER_BYTES_GOOD) {
        eprintln!(
            "wan-sim relay: the kernel gave {} a receive buffer of only {}: bursts may be lost \
             before the link; raise net.core.rmem_max to {BUFFER_BYTES_GOOD}",
            listening.address,
            ByteCount::new(listening.receive_buffer_bytes as u64),
        );
    }
    out.flush()
}

/// Prints what happened, once, at the end.
fn report(args: &RelayArgs, counters: &RelayCounters, fidelity: &FidelityReport) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let own = counters.own;
    if args.json {
        let mut value = directions_json(args, counters);
        value["own_drops"] = json!({
            "no_flow": own.no_flow, "send_errors": own.send_errors, "foreign": own.foreign,
            "overflowed": own.overflowed,
        });
        value["fidelity"] = fidelity_json(fidelity);
        return writeln!(out, "{value}");
    }
    let Names { client, target } = &args.names;
    for (from, to, seen) in
        [(client, target, counters.forward), (target, client, counters.backward)]
    {
        writeln!(
            out,
            "{from} to {to}: {} packets, {}; dropped: {} by loss, {} by the queue, {} by the \
             limit, {} by a cut; {} marked for loss, {} for the queue; {} copied, {} corrupted",
            seen.packets,
            ByteCount::new(seen.ip_bytes),
            seen.drops_loss,
            seen.drops_queue,
            seen.drops_limit,
            seen.drops_blackhole,
            seen.marked_loss,
            seen.marked_queue,
            seen.duplicated,
            seen.corrupted,
        )?;
    }
    writeln!(
        out,
        "not the link's doing: {} lost before they were read, {} without a flow, {} not taken by \
         the kernel, {} from strangers",
        own.overflowed, own.no_flow, own.send_errors, own.foreign
    )?;
    writeln!(out, "{fidelity}")
}

fn directions_json(args: &RelayArgs, counters: &RelayCounters) -> Value {
    let Names { client, target } = &args.names;
    json!({
        (format!("{client}_{target}")): counters_json(&counters.forward),
        (format!("{target}_{client}")): counters_json(&counters.backward),
    })
}

/// Below this, a burst at some Gbit/s can overflow the socket before the link sees it.
const BUFFER_BYTES_GOOD: usize = 4 << 20;

/// Refused like any rate of zero.
const NO_RATE: BitRate = BitRate::from_bits_per_second(0);

const SEED_DEFAULT: u64 = 1;
