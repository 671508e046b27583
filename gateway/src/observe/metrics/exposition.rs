//! Descriptions of metrics, and the exposition that has a description for each.
//!
//! A metric enters the [`MetricsExposition`] with its description only, so that the text for
//! scrapers and the page in docs cannot differ.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Metric, Registry, Unit};
use std::fmt;

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
    fn base_name(&self) -> &'static str {
        let base = self.name.strip_suffix(self.unit).and_then(|base| base.strip_suffix('_'));
        base.unwrap_or(self.name)
    }

    /// Returns the unit as the encoder takes it; `None` for a number without a unit.
    fn encoder_unit(&self) -> Option<Unit> {
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

/// One number at a scrape: its labels and its value.
pub(super) type DescribedSample = (Vec<(&'static str, String)>, f64);

/// All metrics of a gateway with their descriptions.
#[derive(Debug, Default)]
pub(super) struct MetricsExposition {
    registry: Registry,
    described: Vec<DescribedMetric>,
}

impl MetricsExposition {
    /// Adds a metric whose value changes where something happens, such as a counter.
    pub fn add(&mut self, description: MetricDescription, metric: impl Metric) {
        let kind = EncodeMetric::metric_type(&metric);
        self.described.push(DescribedMetric { description, kind });
        let (base, meaning) = (description.base_name(), description.meaning);
        match description.encoder_unit() {
            Some(unit) => self.registry.register_with_unit(base, meaning, unit, metric),
            None => self.registry.register(base, meaning, metric),
        }
    }

    /// Adds metrics that a collector reads at each scrape, and writes by
    /// [`encode_exposition_samples`].
    pub fn add_collected(
        &mut self,
        described: impl IntoIterator<Item = DescribedMetric>,
        collector: impl Collector,
    ) {
        self.described.extend(described);
        self.registry.register_collector(Box::new(collector));
    }

    /// Returns the descriptions of all metrics, in the order in which they were added.
    pub fn described(&self) -> &[DescribedMetric] {
        &self.described
    }

    /// Returns all metrics with their present values, as OpenMetrics text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        text::encode(&mut text, &self.registry).expect("a string takes every write");
        text
    }
}

/// Writes the samples of one metric to the encoder; nothing where there are none.
pub(super) fn encode_exposition_samples(
    encoder: &mut DescriptorEncoder<'_>,
    metric: &DescribedMetric,
    samples: &[DescribedSample],
) -> fmt::Result {
    if samples.is_empty() {
        return Ok(());
    }
    let DescribedMetric { description, kind } = metric;
    let (unit, help) = (description.encoder_unit(), format!("{}.", description.meaning));
    let mut family =
        encoder.encode_descriptor(description.base_name(), &help, unit.as_ref(), *kind)?;
    for (labels, value) in samples {
        if labels.is_empty() {
            encode_exposition_number(&mut family, *kind, *value)?;
        } else {
            encode_exposition_number(&mut family.encode_family(labels)?, *kind, *value)?;
        }
    }
    Ok(())
}

/// Writes one number to the encoder. A whole gauge has no decimal point, as those that count by
/// themselves.
fn encode_exposition_number(
    encoder: &mut MetricEncoder<'_>,
    kind: MetricType,
    value: f64,
) -> fmt::Result {
    match kind {
        MetricType::Counter => encoder.encode_counter::<NoLabelSet, f64, u64>(&value, None),
        _ if value.fract() == 0.0 && value.abs() < WHOLE_MAX => {
            encoder.encode_gauge(&(value as i64))
        }
        _ => encoder.encode_gauge(&value),
    }
}

/// 2^53: below it an `f64` holds every whole number.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
