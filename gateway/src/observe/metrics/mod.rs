//! Metrics in the OpenMetrics format.
//!
//! The engine, the lanes and the link control count; the HTTP server reads. A handle is an
//! atomic: take it once, then count with it. Each metric is registered with its description, from
//! which [`metrics_page`] makes docs/operations/metrics.md.

mod bounded_label;
mod exposition;
mod job;
mod job_counters;
mod job_gauges;
mod labels;
mod network;
mod page;
mod process;
mod registry;

pub use exposition::{DescribedMetric, MetricDescription};
pub use job::JobMetrics;
pub use network::{LaneMetrics, PeerMetrics, PeerPlace, RealGauge};
pub use page::metrics_page;
pub use registry::MetricsRegistry;
