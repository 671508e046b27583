//! The metrics of one job.

use super::labels::{CollectiveLabel, CollectiveOutcome, OpLabel, RankLabel, StragglerLabel};
use super::peer::{RealCounter, RealGauge};
use crate::memory::arena::MappedGauges;
use crate::observe::status::StragglerReport;
use crate::sync::lock;
use hier_collectives::ids::RankId;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use std::sync::{Arc, Mutex};
use units::Span;

/// The metrics of one job. Clones share them.
#[derive(Debug, Clone)]
pub struct JobMetrics {
    pub(super) job: String,
    /// The current epoch; 0 while there is none.
    pub epoch: Gauge,
    /// Scratch memory in use: partial sums, and segments that arrived before their memory was
    /// posted, in bytes.
    pub scratch_bytes: Gauge,
    /// The peak of the scratch memory in use, in bytes.
    pub scratch_bytes_max: Gauge,
    /// Scratch memory mapped: in use, kept for reuse, or still read by QUIC.
    pub mapped: MappedGauges,
    pub(super) awaited_seconds: Family<RankLabel, RealGauge>,
    pub(super) straggler_seconds: Family<StragglerLabel, RealGauge>,
    pub(super) straggler_lost: Family<StragglerLabel, RealCounter>,
    /// Number of commits of local ranks without an answer.
    pub waiting_commits: Gauge,
    /// Age of the oldest commit without an answer, in seconds; 0 when there is none.
    pub commit_awaited_seconds: RealGauge,
    /// 1 while the gateway finishes posted collectives before it exits, else 0.
    pub draining: Gauge,
    /// Labels of the straggler that is exported now.
    pub(super) straggler: Arc<Mutex<Option<StragglerLabel>>>,
    pub(super) collectives: Family<CollectiveLabel, Counter>,
    pub(super) seconds: Family<OpLabel, Histogram>,
}

impl JobMetrics {
    /// Sets the scratch memory in use, in bytes, and raises its peak.
    pub fn set_scratch_bytes(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        if self.scratch_bytes.set(bytes) < bytes && self.scratch_bytes_max.get() < bytes {
            self.scratch_bytes_max.set(bytes);
        }
    }

    /// Returns the counter of collectives of an operation with an outcome.
    pub fn collective_counter(&self, op: &'static str, outcome: CollectiveOutcome) -> Counter {
        let label = CollectiveLabel { job: self.job.clone(), op, outcome: outcome.label() };
        self.collectives.get_or_create_owned(&label)
    }

    /// Returns the histogram of seconds from the last local post to the last local result of an
    /// operation.
    pub fn seconds_histogram(&self, op: &'static str) -> Histogram {
        self.seconds.get_or_create_owned(&OpLabel { job: self.job.clone(), op })
    }

    /// Exports the delay by a straggler in place of the straggler before; `None` when there is
    /// none.
    pub fn set_straggler(&self, straggler: Option<&StragglerReport>) {
        let of = |straggler: &StragglerReport| StragglerLabel {
            job: self.job.clone(),
            kind: straggler.kind.clone(),
            name: straggler.name.clone(),
        };
        let mut shown = lock(&self.straggler);
        let now = straggler.map(of);
        if let Some(before) = shown.take().filter(|before| now.as_ref() != Some(before)) {
            self.straggler_seconds.remove(&before);
        }
        if let (Some(label), Some(straggler)) = (&now, straggler) {
            self.straggler_seconds.get_or_create_owned(label).set(straggler.behind_seconds);
        }
        *shown = now;
    }

    /// Adds the time that a straggler cost in one collective.
    pub fn add_straggler_loss(&self, straggler: &StragglerReport, lost: Span) {
        let label = StragglerLabel {
            job: self.job.clone(),
            kind: straggler.kind.clone(),
            name: straggler.name.clone(),
        };
        self.straggler_lost.get_or_create_owned(&label).inc_by(lost.as_secs_f64());
    }

    /// Sets for how many seconds the post of a rank has been awaited; `None` removes the gauge.
    pub fn set_awaited_seconds(&self, rank: RankId, seconds: Option<f64>) {
        let label = RankLabel { job: self.job.clone(), rank: rank.0 };
        match seconds {
            Some(seconds) => {
                self.awaited_seconds.get_or_create_owned(&label).set(seconds);
            }
            None => {
                self.awaited_seconds.remove(&label);
            }
        }
    }
}
