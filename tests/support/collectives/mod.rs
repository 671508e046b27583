//! Collectives that scenarios run: inputs, expected results, series, and what to compare with.

pub mod baselines;
pub mod batch;
pub mod quinn_only;
pub mod series;

pub use reference as data;
