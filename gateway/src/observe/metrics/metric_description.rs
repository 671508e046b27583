//! Descriptions of metrics: name, unit, labels, meaning and advice.

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// The name of a metric, and all that an operator has to know about it.
#[derive(Debug, Clone, Copy)]
pub struct MetricDescription {
    /// The name with its unit, without the `_total` that a counter has in the text for scrapers.
    pub name: &'static str,
    /// The base unit, in which the name ends; empty for a number without a unit.
    pub unit: &'static str,
    /// The names of the labels.
    pub labels: &'static [&'static str],
    /// The meaning, without a full stop at its end.
    pub meaning: &'static str,
    /// The action to take, or the use of the metric.
    pub advice: &'static str,
}

/// A metric of the exposition.
#[derive(Debug, Clone, Copy)]
pub struct DescribedMetric {
    /// Its name and texts.
    pub description: MetricDescription,
    /// Its type in the text for scrapers.
    pub kind: MetricType,
}

impl MetricDescription {
    /// Returns the name without the unit, to which the encoder adds the unit again.
    pub(super) fn base_name(&self) -> &'static str {
        let base = self.name.strip_suffix(self.unit).and_then(|base| base.strip_suffix('_'));
        base.unwrap_or(self.name)
    }

    /// Returns the unit as the encoder takes it; `None` for a number without a unit.
    pub(super) fn encoder_unit(&self) -> Option<Unit> {
        (!self.unit.is_empty()).then(|| Unit::Other(self.unit.to_owned()))
    }
}

impl DescribedMetric {
    /// Returns the name by which a query of Prometheus asks for the metric; that of a counter ends
    /// in `_total`.
    pub fn query_name(&self) -> String {
        match self.kind {
            MetricType::Counter => format!("{}_total", self.description.name),
            _ => self.description.name.to_owned(),
        }
    }
}
