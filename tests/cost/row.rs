//! The rows of the bench: who moves the bytes, how fast, in which packets, and beside what.

use hier_collectives::plan;
use hier_collectives::topology::{
    Fabric, FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, WanPort,
};
use units::{BitRate, Fraction, Span};

/// A program whose cost is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    /// The gateways under test.
    Landbridge,
    /// The gateways of an older binary, measured in the same run.
    Before,
    /// One connection of quinn as shipped, which also adds.
    Quinn,
    /// One flow of `iperf3` each way.
    Tcp,
    /// One connection of `openssl s_client` each way.
    Tls,
    /// PyTorch's Gloo.
    Gloo,
}

impl Contender {
    /// The controls, all at full speed between two sites.
    pub const CONTROLS: [Self; 4] = [Self::Quinn, Self::Tcp, Self::Tls, Self::Gloo];

    /// Returns whether a watcher can be attached to its processes before they move bytes.
    pub const fn waits_for_watchers(self) -> bool {
        !matches!(self, Self::Quinn | Self::Gloo)
    }

    /// Returns the name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Landbridge => "landbridge",
            Self::Before => "before",
            Self::Quinn => "bare quinn",
            Self::Tcp => "TCP (iperf3)",
            Self::Tls => "TLS 1.3 (openssl)",
            Self::Gloo => "Gloo",
        }
    }
}

/// A row of the bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The program that moves the bytes.
    pub who: Contender,
    /// Rate of the links in Mbit/s; `None` for full speed.
    pub mbit: Option<u64>,
    /// IP MTU in bytes.
    pub mtu: u16,
    /// Number of peer regions of each gateway.
    pub peers: usize,
    /// True with two busy processes beside it.
    pub busy: bool,
    /// Number of runs, of which the median counts.
    pub runs: usize,
}

/// 0.1, 0.5, 1 and 2.5 Gbit/s: the rates that the pacer holds, then full speed.
pub const RATES: [Option<u64>; 5] = [Some(100), Some(500), GIGABIT, Some(2500), FULL];

/// 1 Gbit/s, in Mbit/s: the rate that is held to bounds.
pub const GIGABIT: Option<u64> = Some(1000);

/// Full speed: the links are faster than the machine.
pub const FULL: Option<u64> = None;

/// 10,000 Mbit/s: the links' rate at full speed, more than two cores move.
const FULL_MBIT: u64 = 10_000;

/// 1,500 and 9,000 bytes: the MTU of Ethernet, and of links of one's own.
pub const MTUS: [u16; 2] = [ETHERNET_MTU, JUMBO_MTU];

/// 1,500 bytes: the MTU of Ethernet.
pub const ETHERNET_MTU: u16 = 1_500;

/// 9,000 bytes: the MTU of jumbo frames.
pub const JUMBO_MTU: u16 = 9_000;

/// 1 and 4 peer regions.
const PEERS: [usize; 2] = [1, MANY_PEERS];

/// 4 peer regions: also those of an idle gateway.
pub const MANY_PEERS: usize = 4;

/// 5 runs of rows that a bound is about; an odd number has a median of its own.
const HELD_RUNS: usize = 5;

/// 3 runs of other rows.
const RUNS: usize = 3;

/// 2 runs of rows with many gateways or beside busy processes, which take longest.
const FEW_RUNS: usize = 2;

/// 3 runs of the rows of `--quick` that a bound is about.
const QUICK_HELD_RUNS: usize = 3;

/// 64 MiB: the buffer of every all-reduce.
pub const BUFFER_BYTES: u64 = 64 << 20;

/// 3 s: about how long a run takes at the link's rate.
const RUN_SECONDS: f64 = 3.0;

/// 12 all-reduces: a run has at most so many, at full speed with one peer.
pub const ITERATIONS_MAX: u32 = 12;

/// 1 ms: the links' round-trip time as the fabric says it. Loopback's is shorter.
const RTT: Span = Span::from_ms(1);

impl Row {
    /// Returns a row of Landbridge at 1,500 bytes and one peer, with nothing beside it.
    pub const fn plain(mbit: Option<u64>) -> Self {
        let (who, mtu, peers) = (Contender::Landbridge, ETHERNET_MTU, 1);
        Self { who, mbit, mtu, peers, busy: false, runs: RUNS }
    }

    /// Returns the rows of the whole bench; those that a bound is about come first.
    pub fn matrix(before: bool) -> Vec<Self> {
        let mut rows = Self::held(before, &MTUS, HELD_RUNS);
        for mtu in MTUS {
            for busy in [false, true] {
                for peers in PEERS {
                    let runs = if busy || peers > 1 { FEW_RUNS } else { RUNS };
                    let of = |mbit| Self { mtu, busy, peers, runs, ..Self::plain(mbit) };
                    rows.extend(RATES.map(of));
                }
                let runs = if busy { FEW_RUNS } else { RUNS };
                let of = |who| Self { who, mtu, busy, runs, ..Self::plain(FULL) };
                rows.extend(Contender::CONTROLS.map(of));
            }
        }
        without_repetitions(rows)
    }

    /// Returns the rows of `--quick`; those that a bound is about come first.
    pub fn quick_matrix(before: bool) -> Vec<Self> {
        let mut rows = Self::held(before, &[ETHERNET_MTU], QUICK_HELD_RUNS);
        let full = Self { runs: 1, ..Self::plain(FULL) };
        rows.extend(Contender::CONTROLS.map(|who| Self { who, ..full }));
        rows.extend([
            Self { mtu: JUMBO_MTU, ..full },
            Self { peers: MANY_PEERS, ..full },
            Self { busy: true, ..full },
        ]);
        without_repetitions(rows)
    }

    /// Returns the rows that a bound is about.
    fn held(before: bool, mtus: &[u16], runs: usize) -> Vec<Self> {
        let at = |mbit, mtu| Self { mtu, runs, ..Self::plain(mbit) };
        let mut rows: Vec<Self> =
            mtus.iter().flat_map(|mtu| [at(GIGABIT, *mtu), at(FULL, *mtu)]).collect();
        rows.push(Self { who: Contender::Quinn, ..at(FULL, ETHERNET_MTU) });
        if before {
            rows.push(Self { who: Contender::Before, ..at(GIGABIT, ETHERNET_MTU) });
        }
        rows
    }

    /// Returns whether both are the same row, with any number of runs.
    pub fn is_same(&self, other: &Self) -> bool {
        Self { runs: other.runs, ..*self } == *other
    }

    /// Returns the rate of each link as the fabric says it.
    pub fn link_rate(&self) -> BitRate {
        BitRate::from_bits_per_second(self.mbit.unwrap_or(FULL_MBIT) * 1_000_000)
    }

    /// Returns the round-trip time of each link as the fabric says it.
    pub fn rtt(&self) -> Span {
        RTT
    }

    /// Returns the number of all-reduces of a run, fewer where more gateways move each of them.
    pub fn iterations(&self) -> u32 {
        let bytes = self.link_rate().bytes_per_second() * RUN_SECONDS;
        let most = ITERATIONS_MAX / self.peers as u32;
        ((bytes / BUFFER_BYTES as f64).round() as u32).clamp(1, most)
    }

    /// Returns the gigabytes that all gateways together send, for each gigabyte of the buffer: each
    /// sends its part of all others, and the result of its own.
    pub fn sent_per_gigabyte(&self) -> f64 {
        2.0 * self.peers as f64
    }

    /// Returns the name of the rate in tables.
    pub fn rate_name(&self) -> String {
        self.mbit.map_or("full speed".to_owned(), |_| self.link_rate().to_string())
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { who, mtu, peers, busy, .. } = self;
        let (plural, busy) =
            (if *peers == 1 { "" } else { "s" }, if *busy { ", busy" } else { "" });
        let (who, rate) = (who.name(), self.rate_name());
        write!(f, "{who}, {rate}, MTU {mtu}, {peers} peer{plural}{busy}")
    }
}

/// Returns the most lanes of a link of this rate between two regions.
pub fn lanes_of(rate: BitRate, mtu: u16) -> u16 {
    let region = |name: &str| FabricRegionSpec {
        name: name.to_owned(),
        speeds: vec![1.0],
        gateways: vec![FabricGatewaySpec::new(
            format!("{name}-0"),
            1,
            Some(WanPort { egress: rate, ingress: rate }),
        )],
    };
    let between = ("east".to_owned(), "west".to_owned());
    let link = FabricLinkSpec { between, rate, rtt: RTT, loss: Fraction::default() };
    let fabric = Fabric::new("cost", mtu, vec![region("east"), region("west")], vec![link]);
    plan::plan_lanes_limit(&fabric.expect("two regions and a link are a fabric"))
}

/// Returns the rows without those that equal an earlier one but for the number of runs.
fn without_repetitions(rows: Vec<Row>) -> Vec<Row> {
    let mut kept: Vec<Row> = Vec::new();
    for row in rows {
        if !kept.iter().any(|earlier| earlier.is_same(&row)) {
            kept.push(row);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_has_every_combination_once() {
        let rows = Row::matrix(false);
        let ours = rows.iter().filter(|row| row.who == Contender::Landbridge);
        assert_eq!(ours.count(), RATES.len() * MTUS.len() * PEERS.len() * 2);
        let controls = rows.iter().filter(|row| row.who != Contender::Landbridge);
        assert_eq!(controls.count(), Contender::CONTROLS.len() * MTUS.len() * 2);
        assert_eq!(rows[0].runs, HELD_RUNS);
        assert!(Row::matrix(true).iter().any(|row| row.who == Contender::Before));
        assert!(Row::quick_matrix(false).len() < 12);
    }

    #[test]
    fn a_run_moves_about_three_seconds_of_bytes() {
        assert_eq!(Row::plain(Some(100)).iterations(), 1);
        assert_eq!(Row::plain(Some(500)).iterations(), 3);
        assert_eq!(Row::plain(GIGABIT).iterations(), 6);
        assert_eq!(Row::plain(FULL).iterations(), ITERATIONS_MAX);
        let many = Row { peers: MANY_PEERS, ..Row::plain(FULL) };
        assert_eq!(many.iterations(), 3);
    }

    #[test]
    fn lanes_are_those_of_the_plan() {
        let rate = |gbit: u64| BitRate::from_bits_per_second(gbit * 1_000_000_000);
        assert!(lanes_of(rate(100), ETHERNET_MTU) >= lanes_of(rate(100), JUMBO_MTU));
        assert!(lanes_of(rate(1), ETHERNET_MTU) >= 1);
    }
}
