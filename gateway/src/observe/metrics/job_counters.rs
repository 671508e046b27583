//! The counters and histograms of all jobs. Jobs beyond the limit count together.

use super::exposition::MetricsExposition;
use super::labels::{
    CollectiveLabel, FailureLabel, OpLabel, StragglerLabel, failed_outcome_label, failure_label,
};
use super::metric_description::MetricDescription;
use super::network::RealCounter;
use hier_collectives::post::FailureCode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets, linear_buckets};
use units::Span;

/// The counters and histograms of all jobs. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct JobCounters {
    collectives: Family<CollectiveLabel, Counter>,
    bytes: Family<OpLabel, Counter>,
    seconds: Family<OpLabel, Histogram>,
    efficiency: Family<OpLabel, Histogram>,
    failures: Family<FailureLabel, Counter>,
    epoch_ends: Family<FailureLabel, Counter>,
    straggler_lost: Family<StragglerLabel, RealCounter>,
}

/// The label of a job, and an operation.
type JobAndOp<'a> = (&'a str, &'static str);

impl JobCounters {
    /// Makes the counters that all jobs share, without any job yet.
    pub fn new() -> Self {
        Self {
            collectives: Family::default(),
            bytes: Family::default(),
            seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.001, 2.0, COLLECTIVE_SECONDS_BUCKETS))
            }),
            efficiency: Family::new_with_constructor(|| {
                Histogram::new(linear_buckets(0.1, 0.1, EFFICIENCY_BUCKETS))
            }),
            failures: Family::default(),
            epoch_ends: Family::default(),
            straggler_lost: Family::default(),
        }
    }

    /// Makes the counters of failures of a job, at zero. Otherwise the first failure would be no
    /// increase to Prometheus.
    pub fn begin_job(&self, job: &str) {
        for code in FailureCode::ALL {
            let label = FailureLabel { job: job.to_owned(), code: failure_label(code) };
            self.failures.get_or_create_owned(&label);
            self.epoch_ends.get_or_create_owned(&label);
        }
    }

    /// Counts a collective that completed, its bytes, its time and its efficiency.
    pub fn count_completed(
        &self,
        (job, op): JobAndOp<'_>,
        bytes: u64,
        took: Span,
        efficiency: Option<f64>,
    ) {
        let label = OpLabel { job: job.to_owned(), op };
        self.bytes.get_or_create_owned(&label).inc_by(bytes);
        self.seconds.get_or_create_owned(&label).observe(took.as_secs_f64());
        if let Some(efficiency) = efficiency {
            self.efficiency.get_or_create_owned(&label).observe(efficiency);
        }
        self.count_outcome((job, op), "completed");
    }

    /// Counts a collective that failed, by job, operation and the failure's code.
    pub fn count_failed(&self, (job, op): JobAndOp<'_>, code: FailureCode) {
        let label = FailureLabel { job: job.to_owned(), code: failure_label(code) };
        self.failures.get_or_create_owned(&label).inc();
        self.count_outcome((job, op), failed_outcome_label(code));
    }

    /// Counts an epoch of a job that ended, by the failure's code.
    pub fn count_epoch_end(&self, job: &str, code: FailureCode) {
        let label = FailureLabel { job: job.to_owned(), code: failure_label(code) };
        self.epoch_ends.get_or_create_owned(&label).inc();
    }

    /// Adds the time that a straggler cost in one collective to the counter of its labels.
    pub fn add_straggler_loss(&self, label: &StragglerLabel, lost: Span) {
        self.straggler_lost.get_or_create_owned(label).inc_by(lost.as_secs_f64());
    }

    /// Counts the end of a collective by job, operation and `outcome`, such as `completed`.
    fn count_outcome(&self, (job, op): JobAndOp<'_>, outcome: &'static str) {
        let label = CollectiveLabel { job: job.to_owned(), op, outcome };
        self.collectives.get_or_create_owned(&label).inc();
    }

    /// Adds the counters and histograms to the exposition.
    pub fn register(&self, exposition: &mut MetricsExposition) {
        let collectives = MetricDescription {
            name: "landbridge_collectives",
            unit: "",
            labels: &["job", "op", "outcome"],
            meaning: "Collectives that ended, by operation and outcome: `completed`, `disagreed` \
                      or `failed`",
            advice: "If its rate falls to zero, see `landbridge_awaited_seconds`",
        };
        exposition.add(collectives, self.collectives.clone());
        let bytes = MetricDescription {
            name: "landbridge_collective_bytes",
            unit: "bytes",
            labels: &["job", "op"],
            meaning: "Bytes of the buffers of collectives that completed",
            advice: "Its rate is the throughput of the job",
        };
        exposition.add(bytes, self.bytes.clone());
        let seconds = MetricDescription {
            name: "landbridge_collective_seconds",
            unit: "seconds",
            labels: &["job", "op"],
            meaning: "Time from the last local post to the last local result",
            advice: "If it rises, see `landbridge_collective_efficiency_ratio` and \
                     `landbridge_straggler_behind_seconds`",
        };
        exposition.add(seconds, self.seconds.clone());
        let efficiency = MetricDescription {
            name: "landbridge_collective_efficiency_ratio",
            unit: "ratio",
            labels: &["job", "op"],
            meaning: "Least time that any algorithm needs for the all-reduce by the rates of the \
                      fabric file, over the time that it took; of all-reduces of 1 MiB and more",
            advice: "Low: look for a straggler, a limited link, loss, or a busy processor. Waiting \
                     for ranks of other regions counts too",
        };
        exposition.add(efficiency, self.efficiency.clone());
        let failures = MetricDescription {
            name: "landbridge_collective_failures",
            unit: "",
            labels: &["job", "code"],
            meaning: "Collectives that failed, by the code of the failure",
            advice: "See the table of codes in docs/failures.md, and the log for the text",
        };
        exposition.add(failures, self.failures.clone());
        let epoch_ends = MetricDescription {
            name: "landbridge_epoch_ends",
            unit: "",
            labels: &["job", "code"],
            meaning: "Epochs that ended, by the code of the failure that ended them",
            advice: "Several an hour: a gateway or a link fails again and again",
        };
        exposition.add(epoch_ends, self.epoch_ends.clone());
        let straggler_lost = MetricDescription {
            name: "landbridge_straggler_lost_seconds",
            unit: "seconds",
            labels: &["job", "kind", "name"],
            meaning: "Time that a straggler cost the others, over all collectives",
            advice: "Look at the load of its host, give it a smaller share of the batch, or \
                     correct the link's `rate`",
        };
        exposition.add(straggler_lost, self.straggler_lost.clone());
    }
}

/// 18 buckets of the histogram of seconds that collectives take. The upper bounds double from 1 ms
/// to 131 s, above any sound collective.
const COLLECTIVE_SECONDS_BUCKETS: u16 = 18;

/// 10 buckets of the histogram of efficiencies. The upper bounds are 0.1, 0.2 and so on to 1.0,
/// where a collective takes no longer than the lower bound.
const EFFICIENCY_BUCKETS: u16 = 10;
