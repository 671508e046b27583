//! Collectives that scenarios run: inputs, expected results, series, and what to compare with.

pub mod baselines;
pub mod batch;
pub mod data;
pub mod quinn_only;
pub mod series;
