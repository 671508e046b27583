//! Repeated measurements, of which a busy machine makes a range.

#![allow(dead_code, reason = "not every bench asks for all of it")]

use std::fmt;

/// Sorted measurements: least, median and greatest.
pub struct Spread(Vec<f64>);

impl Spread {
    /// The spread of one or more measurements.
    pub fn new(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<_> = values.into_iter().collect();
        assert!(!values.is_empty());
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// Returns the middle measurement.
    pub fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    /// Returns the least measurement.
    pub fn least(&self) -> f64 {
        self.0[0]
    }

    /// Returns whether `value` lies between the least and the greatest measurement.
    pub fn holds(&self, value: f64) -> bool {
        (self.least()..=self.0[self.0.len() - 1]).contains(&value)
    }
}

/// `median (least to most)`, with the precision asked for.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let precision = f.precision().unwrap_or(2);
        let (least, most) = (self.0[0], self.0[self.0.len() - 1]);
        write!(f, "{:.precision$} ({least:.precision$} to {most:.precision$})", self.median())
    }
}
