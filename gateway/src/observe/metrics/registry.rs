//! All metrics of a gateway.

use super::bounded_label::{BoundedLabel, JOB_LABELS_MAX};
use super::exposition::MetricsExposition;
use super::job_counters::JobCounters;
use super::job_gauges::{JobGaugeCollector, JobTable};
use super::job_metrics::JobMetrics;
use super::labels::{BuildLabel, CauseLabel, CertificateLabel, DropLabel, discard_label};
use super::metric_description::{DescribedMetric, MetricDescription};
use super::network::{
    LaneMetricFamilies, LaneMetrics, LinkMetricFamilies, PeerMetricFamilies, PeerMetrics,
    PeerPlace, RealGauge,
};
use super::process_metrics::ProcessCollector;
use crate::failure_signal::FailureSignal;
use crate::lock::lock_ignoring_poison;
use crate::observe::problem_cause::ProblemCause;
use crate::observe::readiness::is_ready;
use crate::observe::status::GatewayReport;
use crate::wan::connect::tls::CertificateExpiry;
use crate::warnings::Warnings;
use hier_collectives::session::Discard;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// All metrics of one gateway.
#[derive(Debug)]
pub struct MetricsRegistry {
    exposition: MetricsExposition,
    /// Segments that arrived and were used.
    pub segments: Counter,
    /// Log lines that could not be written, or that nobody read.
    pub lost_log_lines: Counter,
    /// Spans that a collector has taken.
    pub exported_spans: Counter,
    /// Spans that no collector has taken.
    pub dropped_spans: Counter,
    /// Decides which log lines are warnings, and counts them.
    pub warnings: Warnings,
    /// Tells whoever writes dumps that a collective has failed.
    pub failures: FailureSignal,
    ready: Gauge,
    job_differences: Gauge,
    problems: Family<CauseLabel, Gauge>,
    dropped_segments: Family<DropLabel, Counter>,
    certificate_expiry: Family<CertificateLabel, RealGauge>,
    peers: PeerMetricFamilies,
    links: LinkMetricFamilies,
    lanes: LaneMetricFamilies,
    job_counters: JobCounters,
    jobs: Arc<Mutex<JobTable>>,
}

impl Default for MetricsRegistry {
    /// Makes all metrics, at zero.
    fn default() -> Self {
        Self::new()
    }
}

impl MetricsRegistry {
    /// Makes all metrics, at zero.
    pub fn new() -> Self {
        let jobs = JobTable { labels: BoundedLabel::new(JOB_LABELS_MAX), jobs: BTreeMap::new() };
        let mut metrics = Self {
            exposition: MetricsExposition::default(),
            segments: Counter::default(),
            lost_log_lines: Counter::default(),
            exported_spans: Counter::default(),
            dropped_spans: Counter::default(),
            warnings: Warnings::default(),
            failures: FailureSignal::default(),
            ready: Gauge::default(),
            job_differences: Gauge::default(),
            problems: Family::default(),
            dropped_segments: Family::default(),
            certificate_expiry: Family::default(),
            peers: PeerMetricFamilies::default(),
            links: LinkMetricFamilies::default(),
            lanes: LaneMetricFamilies::default(),
            job_counters: JobCounters::new(),
            jobs: Arc::new(Mutex::new(jobs)),
        };
        metrics.register_all();
        metrics
    }

    /// Returns the metrics of one job; every call for a job returns the same ones. The first jobs
    /// have a label of their own, further ones share `other`.
    pub fn job_metrics(&self, job: &str) -> JobMetrics {
        let mut table = lock_ignoring_poison(&self.jobs);
        if let Some(known) = table.jobs.get(job) {
            return known.clone();
        }
        let label = table.labels.label(job);
        let is_other = label != job;
        let metrics = JobMetrics::new(label, is_other, &self.job_counters, self.failures.clone());
        table.jobs.insert(job.to_owned(), metrics.clone());
        metrics
    }

    /// Returns the counter of segments that arrived and were not used for this reason.
    pub fn dropped_segments(&self, discard: Discard) -> Counter {
        self.dropped_segments.get_or_create_owned(&DropLabel { reason: discard_label(discard) })
    }

    /// Returns the gauge that is 1 while a link is down and gone round, else 0.
    pub fn link_down(&self, link: &str) -> Gauge {
        self.links.down(link)
    }

    /// Returns the metrics of one peer from the registry; all calls with an equal place share them.
    pub fn peer_metrics(&self, place: PeerPlace<'_>) -> PeerMetrics {
        self.peers.peer_metrics(place)
    }

    /// Returns the counters of the UDP socket of a lane that listens on `address`.
    pub fn lane_metrics(&self, lane: u16, address: SocketAddr) -> LaneMetrics {
        self.lanes.lane_metrics(lane, address)
    }

    /// Sets the gauges of the times at which the gateway's certificates expire.
    pub fn set_certificate_expiry(&self, expiry: CertificateExpiry) {
        for (certificate, expiry) in [("own", expiry.own), ("ca", expiry.ca)] {
            if let Some(expiry) = expiry {
                let label = CertificateLabel { certificate };
                self.certificate_expiry.get_or_create_owned(&label).set(expiry as f64);
            }
        }
    }

    /// Sets the gauges of readiness, problems, links and jobs by the status of the gateway.
    pub fn follow_report(&self, report: &GatewayReport) {
        let differences = report.job_differences.len();
        self.job_differences.set(i64::try_from(differences).unwrap_or(i64::MAX));
        self.ready.set(i64::from(is_ready(&report.problems)));
        for cause in ProblemCause::ALL {
            // The status server alone knows of these.
            if !matches!(cause, ProblemCause::Socket | ProblemCause::Processor) {
                let found = report.problems.iter().filter(|problem| problem.cause == cause).count();
                self.set_problems(cause, found);
            }
        }
        report.links.iter().for_each(|link| self.links.set_rates(link));
        for job in &report.jobs {
            self.job_metrics(&job.job).follow_report(job);
        }
    }

    /// Sets the gauge that says whether trainers cannot attach at the gateway's socket.
    pub fn set_socket_problem(&self, has_problem: bool) {
        self.set_problems(ProblemCause::Socket, usize::from(has_problem));
    }

    /// Sets the gauge that says whether a limit on processors holds the gateway back.
    pub fn set_processor_problem(&self, has_problem: bool) {
        self.set_problems(ProblemCause::Processor, usize::from(has_problem));
    }

    /// Returns the names, units and texts of all metrics.
    pub fn described(&self) -> &[DescribedMetric] {
        self.exposition.described()
    }

    /// Returns all metrics with their present values, as OpenMetrics text.
    pub fn render(&self) -> String {
        self.exposition.render()
    }

    /// Sets the gauge of a cause to the number of problems found.
    fn set_problems(&self, cause: ProblemCause, found: usize) {
        let gauge = self.problems.get_or_create_owned(&CauseLabel { cause: cause.name() });
        gauge.set(i64::try_from(found).unwrap_or(i64::MAX));
    }

    /// Adds all metrics to the exposition.
    fn register_all(&mut self) {
        self.register_build_and_problems();
        self.register_files_and_segments();
        let exposition = &mut self.exposition;
        self.job_counters.register(exposition);
        let jobs = JobGaugeCollector(Arc::clone(&self.jobs));
        exposition.add_collected(JobGaugeCollector::described(), jobs);
        self.peers.register(exposition);
        self.links.register(exposition);
        self.lanes.register(exposition);
        exposition.add_collected(ProcessCollector::described(), ProcessCollector);
    }

    /// Adds the metrics of the build and of the gateway's judgement of itself.
    fn register_build_and_problems(&mut self) {
        let exposition = &mut self.exposition;
        let build: Family<BuildLabel, Gauge> = Family::default();
        let label = BuildLabel { version: env!("CARGO_PKG_VERSION"), arch: std::env::consts::ARCH };
        build.get_or_create_owned(&label).set(1);
        let description = MetricDescription {
            name: "landbridge_build_info",
            unit: "",
            labels: &["version", "arch"],
            meaning: "1, with the version of the program and the processor that it is built for",
            advice: "All gateways of a deployment should run one version",
        };
        exposition.add(description, build);
        let ready = single_registry_metric(
            "landbridge_ready",
            "1 while collectives can run: every job has an epoch, and none drains; else 0",
            "0 for more than a minute: see `landbridge status`",
        );
        exposition.add(ready, self.ready.clone());
        let problems = MetricDescription {
            name: "landbridge_problems",
            unit: "",
            labels: &["cause"],
            meaning: "Problems of the gateway, by their cause",
            advice: "`landbridge status` has each problem with what to do",
        };
        exposition.add(problems, self.problems.clone());
        let differences = single_registry_metric(
            "landbridge_job_differences",
            "Differences between the jobs of this gateway and those of others",
            "Make the `[job]` tables of all region files equal: `landbridge status` names them",
        );
        exposition.add(differences, self.job_differences.clone());
    }

    /// Adds the metrics of certificates, log lines and discarded segments to the exposition.
    fn register_files_and_segments(&mut self) {
        let exposition = &mut self.exposition;
        let expiry = MetricDescription {
            name: "landbridge_certificate_expiry_timestamp_seconds",
            unit: "seconds",
            labels: &["certificate"],
            meaning: "Time at which the gateway's `own` certificate and that of the `ca` expire, \
                      in seconds since 1970-01-01 00:00 UTC",
            advice: "Less than 14 days ahead: run `landbridge certs --renew 30`, and copy the new \
                     files to the gateway, which reads them within 30 s",
        };
        exposition.add(expiry, self.certificate_expiry.clone());
        let lost = single_registry_metric(
            "landbridge_lost_log_lines",
            "Log lines lost, because they could not be written or nobody read them. The log states \
             how many lines are missing",
            "Free the disk of the log, or end whatever holds its reader",
        );
        exposition.add(lost, self.lost_log_lines.clone());
        let exported = single_registry_metric(
            "landbridge_exported_spans",
            "Spans of collectives that the collector at `otlp` has taken",
            "None: `landbridge_dropped_spans_total` compares with it",
        );
        exposition.add(exported, self.exported_spans.clone());
        let dropped = single_registry_metric(
            "landbridge_dropped_spans",
            "Spans of collectives that are lost: the collector at `otlp` refused them, or was away or too slow",
            "The log has the collector's answer. Start the collector, or correct `otlp` of the region file",
        );
        exposition.add(dropped, self.dropped_spans.clone());
        let warnings = MetricDescription {
            name: "landbridge_warnings",
            unit: "",
            labels: &["cause"],
            meaning: "Log lines on which an operator should act, by their cause. For each cause \
                      and subject, one line in ten minutes is a warning; the others are INFO",
            advice: "Where it grows, the log has what to do",
        };
        exposition.add(warnings, self.warnings.counts());
        let segments = single_registry_metric(
            "landbridge_segments",
            "Segments that arrived and were used",
            "None: `landbridge_dropped_segments_total` compares with it",
        );
        exposition.add(segments, self.segments.clone());
        let dropped = MetricDescription {
            name: "landbridge_dropped_segments",
            unit: "",
            labels: &["reason"],
            meaning: "Segments that arrived and were not used",
            advice: "Some at each end of an epoch are in order; many `duplicate` tell of lanes that \
                     are lost again and again",
        };
        exposition.add(dropped, self.dropped_segments.clone());
    }
}

/// Describes a metric of the whole gateway, without labels and unit.
const fn single_registry_metric(
    name: &'static str,
    meaning: &'static str,
    advice: &'static str,
) -> MetricDescription {
    MetricDescription { name, unit: "", labels: &[], meaning, advice }
}
