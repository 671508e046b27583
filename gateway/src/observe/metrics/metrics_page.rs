//! The reference page of all metrics, `docs/operations/metrics.md`.

use super::metric_description::{DescribedMetric, MetricDescription};
use super::registry::MetricsRegistry;
use std::fmt::{self, Write};

/// Returns the text of `docs/operations/metrics.md`, in Markdown.
pub fn metrics_page() -> String {
    let mut page = PAGE_INTRODUCTION.to_owned();
    let metrics = MetricsRegistry::new();
    write_metrics_page_rows(&mut page, metrics.described()).expect("a string takes every write");
    page
}

/// Writes a table row for each metric, in the order of their names.
fn write_metrics_page_rows(page: &mut String, metrics: &[DescribedMetric]) -> fmt::Result {
    writeln!(page, "\n| metric | type | unit | labels | meaning | what to do |")?;
    writeln!(page, "|---|---|---|---|---|---|")?;
    let mut metrics: Vec<&DescribedMetric> = metrics.iter().collect();
    metrics.sort_by_key(|metric| metric.description.name);
    for metric in metrics {
        let MetricDescription { unit, labels, meaning, advice, .. } = metric.description;
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, labels) = (metric.query_name(), metric.kind.as_str(), labels.join(", "));
        let unit = unit.replace('_', " ");
        writeln!(page, "| `{name}` | {kind} | {unit} | {labels} | {meaning}. | {advice}. |")?;
    }
    Ok(())
}

/// The beginning of the page `docs/operations/metrics.md`, in Markdown, up to the table of metrics.
const PAGE_INTRODUCTION: &str = "\
# Metrics

<!-- Made by `cargo run -p gateway --example metrics > docs/operations/metrics.md`. Edit the
     descriptions in gateway/src/observe/metrics/ instead of this page. -->

A gateway serves its metrics at `/metrics` of its `status` address, in the OpenMetrics format.
[configs/prometheus](../../configs/prometheus/alerts.yml) has alert rules, whose alerts
[runbook.md](runbook.md) explains, and a scrape configuration.
[configs/grafana](../../configs/grafana/landbridge.json) has a dashboard.

* Names end in their base unit, and those of counters in `_total`. A gauge keeps its value until it
  is set again; all are set at least once a second.
* Names and labels are an interface: a metric that is replaced stays for a major version, marked as
  deprecated.
* The number of series is bounded. The first 64 jobs since the start have a `job` label of their
  own; further jobs share `job=\"other\"`. There counters add up, and a gauge has the sum or the worst
  value of these jobs. Within a job the first 16 ranks and stragglers are labelled one by one, further
  ones as `other`. Peers and links are those of the fabric file.
* A restart begins all counters at zero, which `rate` and `increase` take into account.
";
