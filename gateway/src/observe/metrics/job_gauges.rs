//! The gauges of all jobs, which are read at each scrape.
//!
//! Jobs beyond the limit share the label `other`. Their gauges are folded into one: a sum, or the
//! value that an alert looks for.

use super::bounded_label::BoundedLabel;
use super::exposition::{DescribedSample, encode_exposition_samples};
use super::job_metrics::JobMetrics;
use super::metric_description::{DescribedMetric, MetricDescription};
use crate::lock::lock_ignoring_poison;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

/// The metrics of all jobs, by name, and the labels that they have.
#[derive(Debug)]
pub(super) struct JobTable {
    pub labels: BoundedLabel,
    pub jobs: BTreeMap<String, JobMetrics>,
}

/// Writes the gauges of all jobs at each scrape.
#[derive(Debug, Clone)]
pub(super) struct JobGaugeCollector(pub Arc<Mutex<JobTable>>);

impl JobGaugeCollector {
    /// Iterates over the metrics that the collector writes.
    pub fn described() -> impl Iterator<Item = DescribedMetric> {
        JOB_GAUGES.iter().map(|gauge| gauge.metric())
    }
}

impl Collector for JobGaugeCollector {
    /// Writes all gauges, those of jobs with one label as one.
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let table = lock_ignoring_poison(&self.0);
        JOB_GAUGES.iter().try_for_each(|gauge| {
            let samples = gauge.samples(table.jobs.values());
            encode_exposition_samples(&mut encoder, &gauge.metric(), &samples)
        })
    }
}

/// Values of one job, each with the values of its labels besides `job`.
type LabelledValues = Vec<(Vec<String>, f64)>;

/// A gauge of each job.
struct JobGauge {
    description: MetricDescription,
    /// Folds the values of jobs with one label.
    fold: fn(f64, f64) -> f64,
    /// Returns the values of one job, each with the labels besides `job`.
    read: fn(&JobMetrics) -> LabelledValues,
}

impl JobGauge {
    /// Returns the description of the gauge in the form of the exposition.
    fn metric(&self) -> DescribedMetric {
        DescribedMetric { description: self.description, kind: MetricType::Gauge }
    }

    /// Returns one sample for each set of labels. Values of several jobs with the same labels are
    /// combined by the gauge's own rule.
    fn samples<'a>(&self, jobs: impl Iterator<Item = &'a JobMetrics>) -> Vec<DescribedSample> {
        let mut folded: BTreeMap<Vec<String>, f64> = BTreeMap::new();
        for job in jobs {
            for (labels, value) in (self.read)(job) {
                let labels = [vec![job.label.clone()], labels].concat();
                let kept = folded.entry(labels);
                kept.and_modify(|kept| *kept = (self.fold)(*kept, value)).or_insert(value);
            }
        }
        let names = self.description.labels;
        let sample = |(values, value): (Vec<String>, f64)| -> DescribedSample {
            (names.iter().copied().zip(values).collect(), value)
        };
        folded.into_iter().map(sample).collect()
    }
}

/// Describes a gauge of a job that has no label but `job`.
const fn job_gauge(
    [name, unit]: [&'static str; 2],
    [meaning, advice]: [&'static str; 2],
) -> MetricDescription {
    MetricDescription { name, unit, labels: &["job"], meaning, advice }
}

/// Returns the one value of a gauge of a job that has no label but `job`.
fn lone_job_gauge_value(value: f64) -> LabelledValues {
    vec![(Vec::new(), value)]
}

/// Adds two values, for gauges of which jobs with one label show the sum.
fn sum_job_gauge_values(one: f64, other: f64) -> f64 {
    one + other
}

/// Returns the seconds for which each rank has been awaited. Ranks beyond the limit are one: the
/// rank that has been awaited longest.
fn read_awaited_job_gauge(job: &JobMetrics) -> LabelledValues {
    let mut ranks = BoundedLabel::new(job.names_max);
    let mut read: BTreeMap<String, f64> = BTreeMap::new();
    for (rank, seconds) in lock_ignoring_poison(&job.awaited).iter() {
        let longest = read.entry(ranks.label(&rank.0.to_string())).or_insert(*seconds);
        *longest = longest.max(*seconds);
    }
    read.into_iter().map(|(rank, seconds)| (vec![rank], seconds)).collect()
}

/// Returns the delay by the straggler, if there is one.
fn read_straggler_job_gauge(job: &JobMetrics) -> LabelledValues {
    let straggler = lock_ignoring_poison(&job.straggler).clone();
    let read = straggler.map(|straggler| {
        let name = job.straggler_label(&straggler.name);
        (vec![straggler.kind, name], straggler.behind_seconds)
    });
    read.into_iter().collect()
}

/// The 15 gauges that each job has. Each states its description, how it is read from a job's
/// metrics, and how the values of jobs with one label are combined.
static JOB_GAUGES: [JobGauge; 15] = [
    JobGauge {
        description: job_gauge(
            ["landbridge_epoch", ""],
            [
                "Current epoch; 0 while there is none",
                "0 for more than a minute: `landbridge status` names the gateways that the job \
                 waits for",
            ],
        ),
        // A job without an epoch is not hidden by others that have one.
        fold: f64::min,
        read: |job| lone_job_gauge_value(job.epoch.get() as f64),
    },
    JobGauge {
        description: job_gauge(
            ["landbridge_ranks", ""],
            [
                "Ranks that this gateway serves",
                "None: `landbridge_ranks_attached` compares with it",
            ],
        ),
        fold: sum_job_gauge_values,
        read: |job| lone_job_gauge_value(job.ranks.get() as f64),
    },
    JobGauge {
        description: job_gauge(
            ["landbridge_ranks_attached", ""],
            [
                "Ranks whose trainer is attached",
                "Fewer than `landbridge_ranks` while the job should train: start the trainers",
            ],
        ),
        fold: sum_job_gauge_values,
        read: |job| lone_job_gauge_value(job.ranks_attached.get() as f64),
    },
    JobGauge {
        description: job_gauge(
            ["landbridge_oldest_collective_seconds", "seconds"],
            [
                "Age of the oldest collective under way; 0 when there is none",
                "Far above `landbridge_collective_seconds`: see whom it awaits by \
                 `landbridge_awaited_seconds`, else look at the links",
            ],
        ),
        fold: f64::max,
        read: |job| lone_job_gauge_value(job.oldest_collective_seconds.get()),
    },
    JobGauge {
        description: MetricDescription {
            name: "landbridge_awaited_seconds",
            unit: "seconds",
            labels: &["job", "rank"],
            meaning: "Time since the other ranks began to wait for the post of a rank",
            advice: "Look at the trainer of that rank: it is slow, stopped or gone",
        },
        fold: f64::max,
        read: read_awaited_job_gauge,
    },
    JobGauge {
        description: MetricDescription {
            name: "landbridge_straggler_behind_seconds",
            unit: "seconds",
            labels: &["job", "kind", "name"],
            meaning: "Delay that the straggler caused in the last collective",
            advice: "See `landbridge_straggler_lost_seconds_total` for what it costs",
        },
        fold: f64::max,
        read: read_straggler_job_gauge,
    },
    JobGauge {
        description: job_gauge(
            ["landbridge_waiting_commits", ""],
            [
                "Commits of local ranks that wait for a region",
                "`landbridge status` names the regions that have not confirmed",
            ],
        ),
        fold: sum_job_gauge_values,
        read: |job| lone_job_gauge_value(job.waiting_commits.get() as f64),
    },
    JobGauge {
        description: job_gauge(
            ["landbridge_commit_awaited_seconds", "seconds"],
            [
                "Age of the oldest commit that waits; 0 when there is none",
                "Minutes: a region is cut off, or its trainers are gone",
            ],
        ),
        fold: f64::max,
        read: |job| lone_job_gauge_value(job.commit_awaited_seconds.get()),
    },
    JobGauge {
        description: job_gauge(
            ["landbridge_draining", ""],
            [
                "1 while the gateway finishes posted collectives before it exits, else 0",
                "After 30 s of draining, see the log",
            ],
        ),
        fold: f64::max,
        read: |job| lone_job_gauge_value(job.draining.get() as f64),
    },
    JobGauge {
        description: job_gauge(
            ["landbridge_scratch_bytes", "bytes"],
            [
                "Scratch memory of the gateway in use for a job: partial sums and early segments",
                "Near the `memory` of the gateway, collectives wait for each other: raise it",
            ],
        ),
        fold: sum_job_gauge_values,
        read: |job| lone_job_gauge_value(job.scratch_bytes.get() as f64),
    },
    JobGauge {
        description: job_gauge(
            ["landbridge_scratch_peak_bytes", "bytes"],
            ["Peak of the scratch memory in use for a job", MEMORY_PEAK_ADVICE],
        ),
        fold: f64::max,
        read: |job| lone_job_gauge_value(job.scratch_bytes_max.get() as f64),
    },
    JobGauge {
        description: job_gauge(
            ["landbridge_scratch_max_bytes", "bytes"],
            [
                "Peak of the scratch memory in use for a job",
                "Deprecated, since `max` names a limit elsewhere: use \
                 `landbridge_scratch_peak_bytes`",
            ],
        ),
        fold: f64::max,
        read: |job| lone_job_gauge_value(job.scratch_bytes_max.get() as f64),
    },
    JobGauge {
        description: job_gauge(
            ["landbridge_mapped_bytes", "bytes"],
            [
                "Scratch memory mapped for a job: in use, kept for reuse, or still read by QUIC",
                "See `landbridge_scratch_bytes`",
            ],
        ),
        fold: sum_job_gauge_values,
        read: |job| lone_job_gauge_value(job.mapped.bytes.get() as f64),
    },
    JobGauge {
        description: job_gauge(
            ["landbridge_mapped_peak_bytes", "bytes"],
            ["Peak of the scratch memory mapped for a job", MEMORY_PEAK_ADVICE],
        ),
        fold: f64::max,
        read: |job| lone_job_gauge_value(job.mapped.most.get() as f64),
    },
    JobGauge {
        description: job_gauge(
            ["landbridge_mapped_max_bytes", "bytes"],
            [
                "Peak of the scratch memory mapped for a job",
                "Deprecated, since `max` names a limit elsewhere: use \
                 `landbridge_mapped_peak_bytes`",
            ],
        ),
        fold: f64::max,
        read: |job| lone_job_gauge_value(job.mapped.most.get() as f64),
    },
];

/// The use of a peak of scratch memory, as the column "what to do" of the metrics page says it.
const MEMORY_PEAK_ADVICE: &str = "Size the `memory` of the gateway by it: scrapes miss short peaks";
