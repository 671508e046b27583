//! The contributions of ranks in scenarios, and the results that they must give.
//!
//! It is a crate of its own since it touches every byte of every scenario: it is optimised, and the
//! scenarios themselves are not.

mod any_values;
mod exact_values;
mod split_mix64;

pub use any_values::{as_f64, contribution, expected, ordinary, patterned};
pub use exact_values::ExactValues;
pub use split_mix64::SplitMix64;
