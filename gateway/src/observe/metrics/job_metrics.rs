//! The metrics of one job.

use super::bounded_label::{BoundedLabel, NAMES_OF_JOB_MAX};
use super::job_counters::JobCounters;
use super::labels::StragglerLabel;
use super::network::RealGauge;
use crate::failure_signal::FailureSignal;
use crate::lock::lock_ignoring_poison;
use crate::memory::arena::ArenaGauges;
use crate::observe::status::{JobReport, StragglerReport};
use hier_collectives::ids::RankId;
use hier_collectives::post::FailureCode;
use prometheus_client::metrics::gauge::Gauge;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use units::Span;

/// The metrics of one job. Clones share them.
#[derive(Debug, Clone)]
pub struct JobMetrics {
    /// The value of the `job` label: the job's name, or `other` beyond the limit.
    pub(super) label: String,
    /// Number of ranks and of stragglers that have a label of their own.
    pub(super) names_max: usize,
    /// The current epoch; 0 while there is none.
    pub epoch: Gauge,
    /// Scratch memory in use: partial sums, and segments that arrived before their memory was
    /// posted, in bytes.
    pub scratch_bytes: Gauge,
    /// The peak of the scratch memory in use, in bytes.
    pub scratch_bytes_max: Gauge,
    /// Scratch memory mapped: in use, kept for reuse, or still read by QUIC.
    pub mapped: ArenaGauges,
    /// Number of commits of local ranks without an answer.
    pub waiting_commits: Gauge,
    /// Age of the oldest commit without an answer, in seconds; 0 when there is none.
    pub commit_awaited_seconds: RealGauge,
    /// 1 while the gateway finishes posted collectives before it exits, else 0.
    pub draining: Gauge,
    /// Number of ranks of this gateway.
    pub(super) ranks: Gauge,
    /// Number of these ranks whose trainer is attached.
    pub(super) ranks_attached: Gauge,
    /// Age of the oldest collective under way, in seconds; 0 when there is none.
    pub(super) oldest_collective_seconds: RealGauge,
    /// For how many seconds the post of each rank has been awaited.
    pub(super) awaited: Arc<Mutex<BTreeMap<RankId, f64>>>,
    /// The straggler that is exported now.
    pub(super) straggler: Arc<Mutex<Option<StragglerReport>>>,
    /// The stragglers that have a label of their own.
    straggler_names: Arc<Mutex<BoundedLabel>>,
    counters: JobCounters,
    failures: FailureSignal,
}

impl JobMetrics {
    /// Makes the metrics of a job, at zero. `label` is its name, or `other`.
    pub(super) fn new(
        label: String,
        is_other: bool,
        counters: &JobCounters,
        failures: FailureSignal,
    ) -> Self {
        let names_max = if is_other { 0 } else { NAMES_OF_JOB_MAX };
        counters.begin_job(&label);
        Self {
            label,
            names_max,
            epoch: Gauge::default(),
            scratch_bytes: Gauge::default(),
            scratch_bytes_max: Gauge::default(),
            mapped: ArenaGauges::default(),
            waiting_commits: Gauge::default(),
            commit_awaited_seconds: RealGauge::default(),
            draining: Gauge::default(),
            ranks: Gauge::default(),
            ranks_attached: Gauge::default(),
            oldest_collective_seconds: RealGauge::default(),
            awaited: Arc::default(),
            straggler: Arc::default(),
            straggler_names: Arc::new(Mutex::new(BoundedLabel::new(names_max))),
            counters: counters.clone(),
            failures,
        }
    }

    /// Sets the scratch memory in use, in bytes, and raises its peak.
    pub fn set_scratch_bytes(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        if self.scratch_bytes.set(bytes) < bytes && self.scratch_bytes_max.get() < bytes {
            self.scratch_bytes_max.set(bytes);
        }
    }

    /// Counts a collective that completed: its operation, the bytes of its buffer, and the time
    /// from the last local post to the last local result. `efficiency` is the least time that it
    /// could take over that time; `None` where that is not known.
    pub fn count_completed(
        &self,
        op: &'static str,
        bytes: u64,
        took: Span,
        efficiency: Option<f64>,
    ) {
        self.counters.count_completed((&self.label, op), bytes, took, efficiency);
    }

    /// Counts a collective that failed, and raises the signal of failures; `op` is its operation, if some
    /// rank had posted it.
    pub fn count_failed(&self, op: Option<&'static str>, code: FailureCode) {
        self.failures.note_failure(code);
        self.counters.count_failed((&self.label, op.unwrap_or("unknown")), code);
    }

    /// Counts an epoch of the job that ended for a reason of this code.
    pub fn count_epoch_end(&self, code: FailureCode) {
        self.counters.count_epoch_end(&self.label, code);
    }

    /// Exports the delay by a straggler in place of the straggler before; `None` when there is
    /// none.
    pub fn set_straggler(&self, straggler: Option<&StragglerReport>) {
        *lock_ignoring_poison(&self.straggler) = straggler.cloned();
    }

    /// Adds the time that a straggler cost in one collective.
    pub fn add_straggler_loss(&self, straggler: &StragglerReport, lost: Span) {
        let label = StragglerLabel {
            job: self.label.clone(),
            kind: straggler.kind.clone(),
            name: self.straggler_label(&straggler.name),
        };
        self.counters.add_straggler_loss(&label, lost);
    }

    /// Sets for how many seconds the post of a rank has been awaited; `None` removes the gauge.
    pub fn set_awaited_seconds(&self, rank: RankId, seconds: Option<f64>) {
        let mut awaited = lock_ignoring_poison(&self.awaited);
        match seconds {
            Some(seconds) => awaited.insert(rank, seconds),
            None => awaited.remove(&rank),
        };
    }

    /// Sets the gauges of ranks and collectives by the job's part of the status.
    pub(super) fn follow_report(&self, report: &JobReport) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.ranks.set(count(report.ranks.len()));
        self.ranks_attached.set(count(report.ranks.iter().filter(|rank| rank.attached).count()));
        let ages = report.collectives.iter().map(|collective| collective.seconds);
        self.oldest_collective_seconds.set(ages.fold(0.0, f64::max));
    }

    /// Returns the value of the `name` label for a straggler: its name, or `other` beyond the
    /// limit.
    pub(super) fn straggler_label(&self, name: &str) -> String {
        lock_ignoring_poison(&self.straggler_names).label(name)
    }
}
