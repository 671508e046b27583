//! The metrics of the links of this gateway's region. Their number is that of the fabric file.

use super::peer_metrics::RealGauge;
use crate::observe::metrics::exposition::MetricsExposition;
use crate::observe::metrics::labels::LinkLabel;
use crate::observe::metrics::metric_description::MetricDescription;
use crate::observe::status::LinkReport;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// The metrics of all links.
#[derive(Debug, Default)]
pub(in crate::observe::metrics) struct LinkMetricFamilies {
    capacity: Family<LinkLabel, RealGauge>,
    limit: Family<LinkLabel, RealGauge>,
    measured: Family<LinkLabel, RealGauge>,
    down: Family<LinkLabel, Gauge>,
}

impl LinkMetricFamilies {
    /// Returns the gauge that is 1 while a link is down and gone round, else 0.
    pub fn down(&self, link: &str) -> Gauge {
        self.down.get_or_create_owned(&LinkLabel { link: link.to_owned() })
    }

    /// Sets the gauges of a link's rates as the status reports them.
    pub fn set_rates(&self, report: &LinkReport) {
        let label = LinkLabel { link: report.between.join("-") };
        let measured = report.measured_bits_per_second.unwrap_or(report.rate_bits_per_second);
        let rates = [
            (&self.capacity, report.rate_bits_per_second),
            (&self.limit, report.effective_bits_per_second),
            (&self.measured, measured),
        ];
        for (family, bits) in rates {
            family.get_or_create_owned(&label).set(bits as f64 / 8.0);
        }
    }

    /// Adds the metrics of links to the exposition.
    pub fn register(&self, exposition: &mut MetricsExposition) {
        let capacity = link_metric(
            ["landbridge_link_capacity_bytes_per_second", "bytes_per_second"],
            "Capacity of the link in each direction, by the fabric file",
            "None: the other rates of the link compare with it",
        );
        exposition.add(capacity, self.capacity.clone());
        let limit = link_metric(
            ["landbridge_link_limit_bytes_per_second", "bytes_per_second"],
            "Rate limit that applies to the link now: the operator's, the schedule's or the \
             capacity, and at most the measured capacity",
            "Below the capacity: see `landbridge status` for the cause, and `landbridge rate`",
        );
        exposition.add(limit, self.limit.clone());
        let measured = link_metric(
            ["landbridge_link_measured_bytes_per_second", "bytes_per_second"],
            "Measured capacity of the link from here; that of the fabric file until less was \
             measured",
            "Below the capacity for long: ask whoever runs the link, or correct `rate` in the \
             fabric file",
        );
        exposition.add(measured, self.measured.clone());
        let down = link_metric(
            ["landbridge_link_down", ""],
            "1 while the link is down and gone round, else 0; shown once it was down",
            "Mend the path between both regions; it is used again once it is up",
        );
        exposition.add(down, self.down.clone());
    }
}

/// Describes a metric that has one value for each link.
const fn link_metric(
    [name, unit]: [&'static str; 2],
    meaning: &'static str,
    advice: &'static str,
) -> MetricDescription {
    MetricDescription { name, unit, labels: &["link"], meaning, advice }
}
