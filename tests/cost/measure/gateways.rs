//! Gateways on one loopback device, with a rank of `landbridge bench` at each of them.

use super::running::{CUT_AFTER, Running, too_long};
use crate::figure::Figure;
use crate::ground::LoopbackSites;
use crate::measured::{Idle, Sample};
use crate::row::{BUFFER_BYTES, GIGABIT, MANY_PEERS, Row};
use scenarios::testbed::collective_runs::CollectiveRuns;
use scenarios::testbed::counters::{Counters, Spent};
use scenarios::testbed::error::LabError;
use scenarios::testbed::gateways::{run_collectives, start_gateways};
use scenarios::testbed::interrupt;
use scenarios::testbed::metrics::{counter_sum, fetch_metrics};
use scenarios::testbed::processes::Processes;
use scenarios::testbed::site::{Testbed, status_address};
use std::path::Path;
use std::time::{Duration, Instant};

/// Name of the counter of send calls.
const SEND_CALLS: &str = "landbridge_udp_send_calls_total";

/// Name of the counter of sent packets.
const SENT_PACKETS: &str = "landbridge_udp_sent_packets_total";

/// 5 s: after so long without ranks, gateways have nothing left to do.
const SETTLING: Duration = Duration::from_secs(5);

/// 30 s for which idle gateways are measured: the kernel counts in hundredths of a second.
const IDLE: Duration = Duration::from_secs(30);

/// Gateways that are up.
pub struct Gateways {
    /// A gateway at each site.
    processes: Processes,
    /// The sites, with their folder, which goes away after the gateways.
    sites: LoopbackSites,
    /// All-reduces of one run.
    iterations: u32,
}

/// Send calls and packets of all gateways so far.
#[derive(Debug, Clone, Copy)]
struct Sent {
    /// Number of send calls.
    calls: f64,
    /// Number of packets.
    packets: f64,
}

/// Some all-reduces, and their cost.
struct Cost {
    /// Seconds of each.
    seconds: Vec<f64>,
    /// Counters of all gateways.
    spent: Spent,
}

impl Gateways {
    /// Starts the gateways of a row and waits until they have met.
    ///
    /// # Errors
    /// A gateway does not start.
    pub fn start(sites: LoopbackSites, row: &Row) -> Result<Self, LabError> {
        let processes = start_gateways(&sites, &[], CUT_AFTER)?;
        Ok(Self { processes, sites, iterations: row.iterations() })
    }

    /// Runs all-reduces, and reads the counters before and after them.
    fn run(&self, iterations: u32) -> Result<Cost, LabError> {
        let before = self.processes.counters()?;
        let runs = CollectiveRuns::all_reduces(BUFFER_BYTES, iterations);
        let seconds = run_collectives(&self.sites, &runs, CUT_AFTER)?.seconds;
        if seconds.len() < iterations as usize {
            return Err(too_long("gateways"));
        }
        let spent = spent_by_all(&before, &self.processes.counters()?);
        Ok(Cost { seconds, spent })
    }

    /// Returns send calls and packets of all gateways so far; `None` if they do not count them.
    fn sent(&self) -> Option<Sent> {
        let mut sent = Sent { calls: 0.0, packets: 0.0 };
        for index in 0..self.sites.sites().len() {
            let text = fetch_metrics(&status_address(index)).ok()?;
            sent.calls += counter_sum(&text, SEND_CALLS)?;
            sent.packets += counter_sum(&text, SENT_PACKETS)?;
        }
        Some(sent)
    }
}

impl Running for Gateways {
    fn ids(&self) -> Vec<u32> {
        self.processes.ids().collect()
    }

    /// Subtracts the cost of one all-reduce, which is also that of a rank that attaches: its memory
    /// is mapped then.
    fn sample(&mut self) -> Result<Sample, LabError> {
        // Memory of the gateways' own is there from here on.
        self.run(1)?;
        let before = self.sent();
        let first = self.run(1)?;
        let all = self.run(1 + self.iterations)?;
        let sent = before.zip(self.sent());
        let spent = all.spent - first.spent;
        let seconds = Figure::of(all.seconds).map_or(f64::NAN, |figure| figure.median);
        Ok(Sample {
            gigabytes: gigabytes(self.iterations),
            gbit: BUFFER_BYTES as f64 * 8e-9 / seconds,
            cpu_seconds: spent.cpu_seconds,
            wakeups: Some(spent.wakeups),
            packets_per_call: sent.and_then(|(before, after)| packets_per_call(before, after)),
            cpu_by_thread: spent.cpu_by_thread,
        })
    }

    fn carry(&mut self) -> Result<f64, LabError> {
        self.run(self.iterations)?;
        Ok(gigabytes(self.iterations))
    }
}

/// Returns the gigabytes of the buffers of all-reduces.
fn gigabytes(iterations: u32) -> f64 {
    BUFFER_BYTES as f64 * f64::from(iterations) / 1e9
}

/// Returns the packets of each send call between two times; `None` without any call.
fn packets_per_call(before: Sent, after: Sent) -> Option<f64> {
    let calls = after.calls - before.calls;
    (calls > 0.0).then(|| (after.packets - before.packets) / calls)
}

/// Returns the sum over processes of what each spent between two times.
pub fn spent_by_all(before: &[Counters], after: &[Counters]) -> Spent {
    let pairs = after.iter().zip(before);
    pairs
        .map(|(after, before)| after.since(before))
        .fold(Spent::default(), |sum, spent| sum + spent)
}

/// Measures gateways with [`MANY_PEERS`] peers that have done nothing for [`SETTLING`], for a
/// while.
///
/// # Errors
/// A gateway does not start.
pub fn measure_idle(landbridge: &Path) -> Result<Idle, LabError> {
    let row = Row { peers: MANY_PEERS, ..Row::plain(GIGABIT) };
    let gateways = Gateways::start(LoopbackSites::new(landbridge, &row)?, &row)?;
    wait(SETTLING)?;
    let (before, begun) = (gateways.processes.counters()?, Instant::now());
    wait(IDLE)?;
    let after = gateways.processes.counters()?;
    let seconds = begun.elapsed().as_secs_f64();
    let mut idle = Idle::default();
    for (after, before) in after.iter().zip(&before) {
        let spent = after.since(before);
        idle.core_percent.push(100.0 * spent.cpu_seconds / seconds);
        idle.wakeups_per_second.push(spent.wakeups / seconds);
    }
    Ok(idle)
}

/// Waits, unless a signal comes.
fn wait(span: Duration) -> Result<(), LabError> {
    let end = Instant::now() + span;
    while Instant::now() < end {
        if interrupt::has_come() {
            return Err(LabError::Interrupted);
        }
        // Two wake-ups in a second are no load beside what is measured.
        let left = end.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(Duration::from_millis(500)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_per_call_are_of_the_calls_between() {
        let sent = |calls, packets| Sent { calls, packets };
        assert_eq!(packets_per_call(sent(10.0, 50.0), sent(20.0, 150.0)), Some(10.0));
        assert_eq!(packets_per_call(sent(10.0, 50.0), sent(10.0, 50.0)), None);
    }
}
