//! Throughput, efficiency and health of the last hour, sampled from the status.
//!
//! The status server samples the status each [`SAMPLE_INTERVAL`] and serves the [`History`]. The
//! history has no clock: a report says when it was made.

use super::status::GatewayReport;
use serde::Serialize;
use std::collections::VecDeque;
use std::time::Duration;

/// 10 s: the time between two samples of the status for the history. The picture of an hour on the
/// status page has no room for more.
pub const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);

/// 360 samples of the status: the most that the history keeps, one hour of them. The next sample
/// replaces the oldest.
/// Tested by `the_oldest_sample_makes_room`.
const SAMPLES_MAX: usize = 360;

/// The samples of the last hour, in order, and the sums that the next one is compared with.
#[derive(Debug, Default)]
pub struct History {
    samples: VecDeque<HistorySample>,
    last: Option<HistorySums>,
}

/// The samples of a gateway's last hour. The field names are keys of the JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HistoryReport {
    /// Seconds between two samples, unless the engine did not answer in time.
    interval_seconds: f64,
    /// The samples, oldest first.
    samples: Vec<HistorySample>,
}

/// The work of a gateway between two reports, and its health at the later one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HistorySample {
    /// The gateway's uptime at the end of the sample, in seconds.
    pub at_seconds: f64,
    /// Length of the sample in seconds.
    pub seconds: f64,
    /// Payload sent to all peers, in bytes.
    pub sent_bytes: u64,
    /// Payload received from all peers, in bytes.
    pub received_bytes: u64,
    /// Packets to all peers that were declared lost.
    pub lost_packets: u64,
    /// Number of collectives of all jobs that completed.
    pub completed: u64,
    /// Number of collectives of all jobs that failed.
    pub failed: u64,
    /// Bytes of the buffers of completed collectives.
    pub collective_bytes: u64,
    /// Seconds that completed all-reduces of 1 MiB and more took, one after the other.
    pub collective_seconds: f64,
    /// Lower bounds of the times of these all-reduces, in seconds.
    pub bound_seconds: f64,
    /// Number of problems.
    pub problems: u64,
    /// Whether no problem kept the gateway from being ready.
    pub ready: bool,
}

/// The work of a gateway since its start, over all peers and jobs.
#[derive(Debug, Clone, Copy, Default)]
struct HistorySums {
    uptime_seconds: f64,
    sent_bytes: u64,
    received_bytes: u64,
    lost_packets: u64,
    completed: u64,
    failed: u64,
    collective_bytes: u64,
    collective_seconds: f64,
    bound_seconds: f64,
}

impl History {
    /// Adds a sample: the difference between this report and the one before. The first report adds
    /// none, nor does one whose uptime has not grown.
    pub fn add_report(&mut self, report: &GatewayReport) {
        let sums = HistorySums::of_report(report);
        let Some(before) = self.last.replace(sums) else { return };
        if sums.uptime_seconds <= before.uptime_seconds {
            return;
        }
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(HistorySample {
            at_seconds: sums.uptime_seconds,
            seconds: sums.uptime_seconds - before.uptime_seconds,
            sent_bytes: sums.sent_bytes.saturating_sub(before.sent_bytes),
            received_bytes: sums.received_bytes.saturating_sub(before.received_bytes),
            lost_packets: sums.lost_packets.saturating_sub(before.lost_packets),
            completed: sums.completed.saturating_sub(before.completed),
            failed: sums.failed.saturating_sub(before.failed),
            collective_bytes: sums.collective_bytes.saturating_sub(before.collective_bytes),
            collective_seconds: (sums.collective_seconds - before.collective_seconds).max(0.0),
            bound_seconds: (sums.bound_seconds - before.bound_seconds).max(0.0),
            problems: report.problems.len() as u64,
            ready: report.problems.iter().all(|problem| !problem.blocks),
        });
    }

    /// Returns the samples for the status page.
    pub fn report(&self) -> HistoryReport {
        let samples = self.samples.iter().copied().collect();
        HistoryReport { interval_seconds: SAMPLE_INTERVAL.as_secs_f64(), samples }
    }
}

impl HistorySums {
    /// Adds up the counters of one status over all peers and jobs.
    fn of_report(report: &GatewayReport) -> Self {
        let mut sums = Self { uptime_seconds: report.uptime_seconds, ..Self::default() };
        for peer in &report.peers {
            sums.sent_bytes = sums.sent_bytes.saturating_add(peer.sent_bytes);
            sums.received_bytes = sums.received_bytes.saturating_add(peer.received_bytes);
            sums.lost_packets = sums.lost_packets.saturating_add(peer.lost_packets);
        }
        for totals in report.jobs.iter().map(|job| job.totals) {
            sums.completed = sums.completed.saturating_add(totals.completed);
            sums.failed = sums.failed.saturating_add(totals.failed);
            sums.collective_bytes = sums.collective_bytes.saturating_add(totals.bytes);
            sums.collective_seconds += totals.seconds;
            sums.bound_seconds += totals.bound_seconds;
        }
        sums
    }
}
