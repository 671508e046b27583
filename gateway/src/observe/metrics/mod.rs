//! Metrics in the OpenMetrics format.
//!
//! The engine, the lanes and the link control count; the HTTP server reads. A handle is an
//! atomic: take it once, then count with it. Each metric is registered with its description, from
//! which [`metrics_page()`] makes docs/operations/metrics.md.

mod bounded_label;
mod exposition;
mod job_counters;
mod job_gauges;
mod job_metrics;
mod labels;
mod metric_description;
mod metrics_page;
mod network;
mod process_metrics;
mod registry;

pub use job_metrics::JobMetrics;
pub use metric_description::{DescribedMetric, MetricDescription};
pub use metrics_page::metrics_page;
pub use network::{LaneMetrics, PeerMetrics, PeerPlace, RealGauge};
pub use registry::MetricsRegistry;
