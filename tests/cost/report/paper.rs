//! Cores and lanes on paper: the cores and lanes that faster links would take, from the measured
//! cost.

use crate::measured::Measured;
use crate::row::{FULL, MTUS, Row, lanes_of};
use serde::Serialize;
use std::fmt::Write as _;
use units::BitRate;

/// 10, 100 and 400 Gbit/s: rates of ports beyond this machine.
const RATES_GBIT: [u64; 3] = [10, 100, 400];

/// 16 cores: a host that a gateway may have to itself.
const CORES: f64 = 16.0;

/// Names of the threads of lanes, without their numbers: the first lane runs on the engine's.
const LANE_THREADS: [&str; 2] = ["engine", "lane"];

/// A rate, and the cores and lanes that it takes on one gateway.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Needs {
    /// IP MTU in bytes.
    pub mtu: u16,
    /// Gbit/s of the buffer, each way.
    pub gbit: f64,
    /// Cores of one gateway.
    pub cores: f64,
    /// Lanes whose threads would be busy all the time; `None` where their cost is not known.
    pub busy_lanes: Option<u64>,
    /// The most lanes of a link of this rate by the plan; `None` for the measured rate.
    pub planned_lanes: Option<u16>,
    /// True if this machine has reached the rate.
    pub measured: bool,
}

/// The cost of a gateway at full speed, in one packet size.
#[derive(Debug, Clone, Copy, PartialEq)]
struct GatewayCost {
    /// IP MTU in bytes.
    mtu: u16,
    /// Gbit/s that were reached.
    gbit: f64,
    /// Processor seconds of one gateway for each GB of the buffer.
    cpu_per_gb: f64,
    /// Those of the threads of its lanes.
    lane_cpu_per_gb: Option<f64>,
}

impl GatewayCost {
    /// Returns the median cost of one of two gateways, where it was measured.
    fn of(measured: &Measured, mtu: u16) -> Option<Self> {
        let cell = measured.cell(&Row { mtu, ..Row::plain(FULL) })?;
        let lane = cell.figure(|sample| {
            let found = LANE_THREADS.iter().filter_map(|name| sample.thread_cpu_per_gb(name));
            found.reduce(|sum, seconds| sum + seconds)
        });
        Some(Self {
            mtu,
            gbit: cell.figure(|sample| Some(sample.gbit))?.median,
            cpu_per_gb: cell.cpu_per_gb()?.median / 2.0,
            lane_cpu_per_gb: lane.map(|figure| figure.median / 2.0),
        })
    }

    /// Returns the needs of a rate in Gbit/s.
    fn needs(&self, gbit: f64) -> Needs {
        let gigabytes_per_second = gbit / 8.0;
        let busy = self.lane_cpu_per_gb.map(|cpu| (cpu * gigabytes_per_second).ceil() as u64);
        Needs {
            mtu: self.mtu,
            gbit,
            cores: self.cpu_per_gb * gigabytes_per_second,
            busy_lanes: busy,
            planned_lanes: None,
            measured: false,
        }
    }

    /// Returns the rate in Gbit/s that [`CORES`] would reach.
    fn reach(&self) -> f64 {
        8.0 * CORES / self.cpu_per_gb
    }
}

/// Returns the needs of the measured rate and of faster ones, in each packet size.
pub fn needs(measured: &Measured) -> Vec<Needs> {
    let mut needs = Vec::new();
    for cost in MTUS.into_iter().filter_map(|mtu| GatewayCost::of(measured, mtu)) {
        needs.push(Needs { measured: true, ..cost.needs(cost.gbit) });
        needs.extend(RATES_GBIT.map(|gbit| {
            let rate = BitRate::from_bits_per_second(gbit * 1_000_000_000);
            Needs { planned_lanes: Some(lanes_of(rate, cost.mtu)), ..cost.needs(gbit as f64) }
        }));
    }
    needs
}

/// Returns the section of the page; empty where nothing was measured.
pub fn section(measured: &Measured) -> String {
    let needs = needs(measured);
    if needs.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "### Sixteen cores on paper\n\n\
         Cores and lanes of one gateway with one peer, at a rate of the buffer each way. Only the \
         first row of each MTU is measured. The others are extrapolated: the cost of a byte at \
         full speed times the rate. Caches, memory and the kernel's locks may make a byte dearer there; \
         nothing here has moved bytes that fast. A busy lane is one whose thread takes a core; \
         gateways begin with one, and add lanes while they pay, as many as the plan allows.\n\n\
         | MTU | Gbit/s | cores | busy lanes | lanes at most | how |\n|---|---|---|---|---|---|\n",
    );
    for Needs { mtu, gbit, cores, busy_lanes, planned_lanes, measured } in needs {
        let how = if measured { "measured" } else { "extrapolated" };
        let busy = busy_lanes.map_or("-".to_owned(), |lanes| lanes.to_string());
        let planned = planned_lanes.map_or("-".to_owned(), |lanes| lanes.to_string());
        writeln!(text, "| {mtu} | {gbit:.1} | {cores:.1} | {busy} | {planned} | {how} |")
            .expect("a string takes all");
    }
    text.push('\n');
    for cost in MTUS.into_iter().filter_map(|mtu| GatewayCost::of(measured, mtu)) {
        let (mtu, reach) = (cost.mtu, cost.reach());
        writeln!(text, "* {CORES:.0} cores, MTU {mtu}: {reach:.0} Gbit/s each way, extrapolated.")
            .expect("a string takes all");
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::{Cell, Sample};

    /// Two gateways that take 8 s for each GB, 4 s of it in lanes, at 2 Gbit/s.
    fn measured() -> Measured {
        let sample = Sample {
            gigabytes: 0.5,
            gbit: 2.0,
            cpu_seconds: 4.0,
            cpu_by_thread: LANE_THREADS.map(|name| (name.to_owned(), 1.0)).into(),
            ..Sample::default()
        };
        let cell = Cell { samples: vec![sample], ..Cell::new(Row::plain(FULL)) };
        Measured { cells: vec![cell], ..Measured::default() }
    }

    #[test]
    fn cores_and_lanes_grow_with_the_rate() {
        let needs = needs(&measured());
        assert_eq!(needs.len(), 1 + RATES_GBIT.len());
        assert!(needs[0].measured && (needs[0].cores - 1.0).abs() < 1e-9, "{:?}", needs[0]);
        let hundred = &needs[2];
        assert!(!hundred.measured && (hundred.cores - 50.0).abs() < 1e-9);
        assert_eq!(hundred.busy_lanes, Some(25));
    }

    #[test]
    fn the_page_tells_measured_from_extrapolated() {
        let text = section(&measured());
        assert_eq!(text.matches("| measured |").count(), 1);
        assert_eq!(text.matches("| extrapolated |").count(), RATES_GBIT.len());
        assert!(text.contains("16 cores, MTU 1500: 32 Gbit/s each way"), "{text}");
        assert_eq!(section(&Measured::default()), "");
    }
}
