//! The flags of `wan-sim relay`.

use crate::netem::Netem;
use crate::relay::Forward;
use crate::{CapacitySource, CrossTraffic, QueueSize};
use std::path::PathBuf;
use std::str::FromStr;
use units::{BitRate, Fraction, Span};

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
    #[arg(
        long,
        allow_hyphen_values = true,
        required_unless_present_any = ["netem", "capacity"],
        conflicts_with = "capacity"
    )]
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
    /// A recorded capacity instead of the rate, each way: a file in mahimahi's format, or one of
    /// cellular, satellite, cloud, which are generated.
    #[arg(long, value_name = "FILE")]
    pub capacity: Option<CapacitySource>,
    /// A parallel path beside the link, in netem's words; flows are spread over the paths by their
    /// addresses and ports. May be given more than once.
    #[arg(long, value_name = "WORDS")]
    pub parallel: Vec<Netem>,
    /// A flow that shares the queue, each way: cubic, newreno, bbr, or
    /// 'onoff rate 20mbit on 500ms off 2s'. May be given more than once.
    #[arg(long, value_name = "WORDS")]
    pub cross: Vec<CrossTraffic>,
    /// Decides every random draw; default 1, or what the netem words say.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Record what both links are offered and its fate, for `wan-sim replay`.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Names of the clients' side and the targets' side.
    #[arg(long, default_value = "client,target")]
    pub names: RelaySideArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Take commands from standard input, one a line: `counters`, `fidelity`, `set loss 1%` (or
    /// rate, rtt, jitter, queue), `cut`, `join`. Each is answered with one line of JSON. Ends
    /// with the input.
    #[arg(long)]
    pub control: bool,
}

/// Names of the two sides, spelled `east,west`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelaySideArgs {
    pub(super) client: String,
    pub(super) target: String,
}

impl FromStr for RelaySideArgs {
    type Err = &'static str;
    /// Parses two different names with a comma between them, such as `east,west`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split(',').map(str::trim).collect::<Vec<_>>()[..] {
            [client, target] if client != target && !client.is_empty() && !target.is_empty() => {
                Ok(Self { client: client.to_owned(), target: target.to_owned() })
            }
            _ => Err("two different names, such as east,west"),
        }
    }
}
