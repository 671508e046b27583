//! Controls that all-reduce and tell their own cost: quinn alone, and Gloo.

use super::running::{CUT_AFTER, Running, too_long};
use crate::figure::Figure;
use crate::ground::LoopbackSites;
use crate::measured::Sample;
use crate::row::{BUFFER_BYTES, ETHERNET_MTU, ITERATIONS_MAX, Row};
use scenarios::testbed::collective_runs::CollectiveRuns;
use scenarios::testbed::controls::bare_quinn::{Setting, start_exchanges};
use scenarios::testbed::controls::gloo::start_gloo;
use scenarios::testbed::error::LabError;
use scenarios::testbed::processes::{Begins, Processes};
use std::path::Path;

/// Exchanges that are under way; they run once.
pub struct Exchanges {
    /// Both processes; `None` after the run.
    processes: Option<Processes>,
    /// Folder of configs and outputs, which goes away last.
    _sites: LoopbackSites,
    /// Name in errors.
    who: &'static str,
}

/// 8,900 bytes: the UDP payload of quinn's packets where jumbo frames are, which quinn as shipped
/// would not find.
const JUMBO_PAYLOAD: u16 = 8_900;

impl Exchanges {
    /// Starts exchanges over one connection of quinn as shipped, which looks for the packet size
    /// itself, except for jumbo packets.
    ///
    /// # Errors
    /// A program does not start.
    pub fn start_quinn(program: &Path, sites: LoopbackSites, row: &Row) -> Result<Self, LabError> {
        let mtu = (row.mtu > ETHERNET_MTU).then_some(JUMBO_PAYLOAD);
        let (bytes, iterations) = (BUFFER_BYTES, ITERATIONS_MAX);
        let set = Setting { bytes, iterations, lanes: 1, mtu, window: None };
        let processes = Some(start_exchanges(&sites, program, &set)?);
        Ok(Self { processes, _sites: sites, who: "quinn" })
    }

    /// Starts all-reduces of Gloo with a Python that has torch.
    ///
    /// # Errors
    /// A program does not start.
    pub fn start_gloo(python: &Path, sites: LoopbackSites) -> Result<Self, LabError> {
        let runs = CollectiveRuns::all_reduces(BUFFER_BYTES, ITERATIONS_MAX);
        let processes = Some(start_gloo(&sites, python, "lo", &runs)?);
        Ok(Self { processes, _sites: sites, who: "Gloo" })
    }
}

impl Running for Exchanges {
    fn ids(&self) -> Vec<u32> {
        self.processes.iter().flat_map(|processes| processes.ids()).collect()
    }

    fn sample(&mut self) -> Result<Sample, LabError> {
        let who = self.who;
        let ended = || LabError::Failed(format!("{who} has run already"));
        let processes = self.processes.take().ok_or_else(ended)?;
        let times = processes.run_times(Begins::WithALine, CUT_AFTER)?;
        let cpu_seconds = times.cpu_seconds.ok_or_else(|| too_long(who))?;
        let gigabytes = times.gigabytes(BUFFER_BYTES);
        let seconds = Figure::of(times.seconds).ok_or_else(|| too_long(who))?.median;
        Ok(Sample {
            gigabytes,
            gbit: BUFFER_BYTES as f64 * 8e-9 / seconds,
            cpu_seconds,
            wakeups: times.wakeups,
            ..Sample::default()
        })
    }
}
