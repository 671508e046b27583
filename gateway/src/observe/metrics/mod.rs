//! Metrics in the OpenMetrics format.
//!
//! The engine, the lanes and the link control count; the HTTP server reads. A handle is an
//! atomic: take it once, then count with it.

mod job;
mod labels;
mod lane;
mod peer;
mod registry;

pub use job::JobMetrics;
pub use labels::CollectiveOutcome;
pub use lane::LaneMetrics;
pub use peer::{PeerMetrics, RealGauge};
pub use registry::MetricsRegistry;
