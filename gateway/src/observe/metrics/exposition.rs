//! The exposition of all metrics, which has a description for each.
//!
//! A metric enters the [`MetricsExposition`] with its description only, so that the text for
//! scrapers and the page in docs cannot differ.

use super::metric_description::{DescribedMetric, MetricDescription};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Metric, Registry};
use std::fmt;

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

/// 2^53: a gauge whose value is whole and below this size is written without a decimal point. An
/// `f64` holds every whole number up to there.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
