//! Medians of several runs, with their spread.

use serde::Serialize;

/// The median of some values, with their spread.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figure {
    /// The median; of an even number, the upper one of the middle.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
    /// The number of values.
    pub runs: usize,
}

impl Figure {
    /// Returns the median and spread of values; `None` without any.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        Some(Self { median: values[values.len() / 2], least, most, runs: values.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_median_and_spread() {
        let figure = Figure::of([3.0, 1.0, 2.0]).expect("values");
        assert_eq!(figure, Figure { median: 2.0, least: 1.0, most: 3.0, runs: 3 });
        assert_eq!(Figure::of([1.0, 2.0]).expect("values").median, 2.0);
        assert_eq!(Figure::of([]), None);
    }
}
